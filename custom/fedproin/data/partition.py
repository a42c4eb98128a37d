"""Which images train, validate and test, and which site of a simulation gets them; groups stay whole.

N images, G groups, C classes, K sites. Every draw comes from its own generator, so the split does not depend on the
partition, and groups are drawn in alphabetical order, so neither depends on the order of the table's rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproin.data.manifest import PARTS, Indices, Manifest, Strings
from fedproin.errors import SettingsError

SPLIT, IID, DIRICHLET = 1, 2, 3  # purposes of a draw
REDRAWS = 1000

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of the training, validation and test images, int64, ascending."""

    train: Indices
    val: Indices
    test: Indices


@dataclass(frozen=True, eq=False)
class _Units:
    """What is dealt as a whole, G of them: a group, or the part of a group that lies in one part of the split.

    Attributes:
        of_image: unit of every image, -1 for none, [N].
        size: images of every unit, [G].
        kind: most frequent class of every unit, [G].
        part: part of the split that the unit lies in, [G].
    """

    of_image: Indices
    size: Indices
    kind: Indices
    part: Indices

    def to_images(self, of_unit: Indices) -> Indices:
        """A value of every unit as a value of every image; -1 for an image in no unit."""
        return np.append(of_unit, -1)[self.of_image]


def split(
    manifest: Manifest,
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2),
    seed: int = 0,
    by_group: bool = True,
) -> Split:
    """Split into training, validation and test images, stratified by class; no group lies in two parts.

    What the table's column `split` says is kept, for the whole group; only the rest is drawn, and there a class with at
    least three groups gets one into each part. `by_group=False` splits image by image, as published work often does:
    pictures of one lesion then lie in several parts and the test scores are too high. It is for comparison only.

    Raises:
        SettingsError: `fractions` are not three shares of 1, or leave nothing to train on.
    """
    if min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6 or fractions[0] == 0:
        raise SettingsError("The split must be three shares of training, validation and test that add up to 1.")
    units = _units(manifest.group if by_group else manifest.image, manifest.label, np.zeros(len(manifest), np.int64))
    part = _decided_parts(manifest, units)
    order = _generator(seed, SPLIT).permutation(len(part))
    for mine in _by_kind(units.kind, order[part[order] < 0]):
        part[mine] = _cut_parts(units.size[mine], np.array(fractions))
    of_image = part[units.of_image]
    return Split(*(np.flatnonzero(of_image == code) for code in range(len(PARTS))))


def hold_out(manifest: Manifest, split: Split, site: str) -> Split:
    """The split for a test on a site that never trained: its images alone are the test, and it has no others.

    A group with an image of that site trains nobody.

    Raises:
        SettingsError: the table does not have the site.
    """
    if manifest.site is None or site not in manifest.site:
        known = [] if manifest.site is None else sorted(set(manifest.site.tolist()) - {""})
        raise SettingsError(
            f"The column `site` has no value '{site}' to hold out; it has {', '.join(known) or 'none'}."
        )
    held_out = manifest.site == site
    touched = np.isin(manifest.group, manifest.group[held_out])
    train, val = (rows[~touched[rows]] for rows in (split.train, split.val))
    return Split(train, val, np.flatnonzero(held_out))


def iid(manifest: Manifest, split: Split, sites: int, seed: int) -> Indices:
    """Site of every image, int64 [N], -1 outside the split: every site gets the same classes and number of images.

    As even as whole groups allow: in each part, sites differ by no more images than the largest group has.

    Raises:
        SettingsError: there are more sites than training groups.
    """
    units = _split_units(manifest, split)
    _refuse_more_sites_than_groups(units, sites)
    rng = _generator(seed, IID)
    owner = np.full(len(units.size), -1, dtype=np.int64)
    for code in range(len(PARTS)):
        load = np.zeros(sites)
        order = rng.permutation(np.flatnonzero(units.part == code))
        for mine in _by_kind(units.kind, order):
            owner[mine] = _deal_evenly(units.size[mine], load, rng.permutation(sites))
            load += np.bincount(owner[mine], units.size[mine], sites)
    return units.to_images(owner)


def dirichlet(manifest: Manifest, split: Split, sites: int, alpha: float, minimum: int, seed: int) -> Indices:
    """Site of every image, int64 [N], -1 outside the split: each class is shared out by one draw of Dirichlet(alpha).

    One matrix [C, K] of shares deals training, validation and test images, so that a site is tested on what it trains
    on. It is drawn again until every site has at least `minimum` training images.

    Raises:
        SettingsError: alpha is not positive, or `minimum` cannot be had, or not within 1000 draws.
    """
    units = _split_units(manifest, split)
    _refuse_more_sites_than_groups(units, sites)
    _refuse_infeasible(alpha, minimum, sites, len(split.train))
    rng = _generator(seed, DIRICHLET)
    place = _places(units, rng.permutation(len(units.size)))
    training = np.where(units.part == 0, units.size, 0)
    for _ in range(REDRAWS):
        shares = rng.dirichlet(np.full(sites, alpha), size=units.kind.max() + 1)
        owner = _deal_by_shares(place, units.kind, shares)
        if np.bincount(owner, training, sites).min() >= minimum:
            return units.to_images(owner)
    raise SettingsError(
        f"None of {REDRAWS} draws with alpha {alpha:g} gave each of {sites} sites {minimum} training images: "
        "raise `partition.alpha`, lower `partition.minimum`, or use fewer sites."
    )


def by_column(manifest: Manifest, split: Split, sites: int, held_out: str | None = None) -> Indices:
    """Site of every image by the table's column `site`, int64 [N]: its values in sorted order, -1 where it is empty.

    A group with images from several sites goes as a whole to the one it has most images from. The images of the value
    `held_out` are dealt in turn: every site tests its share of them.

    Raises:
        SettingsError: the column is absent, has not `sites` different values, or one without training images.
    """
    if manifest.site is None:
        raise SettingsError("The table has no column `site`: choose another `partition.kind`, or add the column.")
    known = np.flatnonzero((manifest.site != "") & (manifest.site != (held_out or "")))
    values = np.unique(manifest.site[known])
    if len(values) != sites:
        beside = f" beside '{held_out}'" if held_out else ""
        raise SettingsError(
            f"The column `site` has {len(values)} different values{beside}, but there are {sites} sites: "
            f"use {len(values)} sites (-n {len(values)}), or choose another `partition.kind`."
        )
    owner = np.full(len(manifest), -1, dtype=np.int64)
    _, group = np.unique(manifest.group[known], return_inverse=True)
    owner[known] = _most_frequent(group, np.searchsorted(values, manifest.site[known]))[group]
    empty = sites - len(np.unique(owner[split.train][owner[split.train] >= 0]))
    if empty:
        raise SettingsError(
            f"{empty} of the {sites} values of `site` have no training image: choose another `partition.kind`."
        )
    if held_out:
        owner[split.test] = np.arange(len(split.test)) % sites
    return owner


def _generator(seed: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence((seed, purpose)))


def _most_frequent(row: Indices, code: Indices) -> Indices:
    """The most frequent code of every row (the smallest of several); [N] and [N] to [G]."""
    columns = code.max(initial=0) + 1
    count = np.bincount(row * columns + code, minlength=(row.max(initial=-1) + 1) * columns)
    most: Indices = count.reshape(-1, columns).argmax(axis=1)
    return most


def _units(group: Strings, label: Strings, part: Indices) -> _Units:
    inside = np.flatnonzero(part >= 0)
    _, group_code = np.unique(group[inside], return_inverse=True)
    _, kind = np.unique(label[inside], return_inverse=True)
    key, unit = np.unique(group_code * len(PARTS) + part[inside], return_inverse=True)
    of_image = np.full(len(group), -1, dtype=np.int64)
    of_image[inside] = unit
    return _Units(of_image, np.bincount(unit), _most_frequent(unit, kind), key % len(PARTS))


def _split_units(manifest: Manifest, split: Split) -> _Units:
    part = np.full(len(manifest), -1, dtype=np.int64)
    for code, rows in enumerate((split.train, split.val, split.test)):
        part[rows] = code
    return _units(manifest.group, manifest.label, part)


def _decided_parts(manifest: Manifest, units: _Units) -> Indices:
    """Part of every unit as the table has it, -1 where it is open, [G]."""
    part = np.full(len(units.size), -1, dtype=np.int64)
    if manifest.split is not None:
        for code, name in enumerate(PARTS):
            part[units.of_image[manifest.split == name]] = code
    return part


def _by_kind(kind: Indices, order: Indices) -> Iterator[Indices]:
    """The units in `order`, class by class."""
    by_kind = order[np.argsort(kind[order], kind="stable")]
    return iter(np.split(by_kind, np.flatnonzero(np.diff(kind[by_kind])) + 1)) if len(order) else iter(())


def _cut_parts(size: Indices, fractions: Floats) -> Indices:
    """Cut units in line into parts with about those shares of the images, each with a unit if there are enough; [G]."""
    middle = size.cumsum() - size / 2
    cut = np.searchsorted(middle, fractions.cumsum()[:-1] * size.sum())
    wanted = (fractions > 0).astype(np.int64)
    if len(size) >= wanted.sum():
        before, after = wanted.cumsum()[:-1], wanted[::-1].cumsum()[::-1][1:]
        cut = np.maximum.accumulate(np.maximum(cut - before, 0)) + before
        cut = np.minimum(cut, len(size) - after)
    return np.searchsorted(cut, np.arange(len(size)), side="right")


def _deal_evenly(size: Indices, load: Floats, tie: Indices) -> Indices:
    """Site of every unit of one class, [G]: dealt to and fro from the largest; who has least so far takes most."""
    sites = len(load)
    turn = np.arange(len(size)) % (2 * sites)
    place = np.empty(len(size), dtype=np.int64)
    place[np.argsort(-size, kind="stable")] = np.minimum(turn, 2 * sites - 1 - turn)
    heaviest = np.argsort(-np.bincount(place, size, sites), kind="stable")
    site_of_place = np.empty(sites, dtype=np.int64)
    site_of_place[heaviest] = tie[np.argsort(load[tie], kind="stable")]
    return site_of_place[place]


def _places(units: _Units, order: Indices) -> Floats:
    """Middle of every unit in the line of images of its part and class, as a share in (0, 1), [G]."""
    stratum = units.kind * len(PARTS) + units.part
    line = order[np.argsort(stratum[order], kind="stable")]
    size, total = units.size[line], np.bincount(stratum, units.size)
    before = (total.cumsum() - total)[stratum[line]]
    place = np.empty(len(line))
    place[line] = (size.cumsum() - size / 2 - before) / total[stratum[line]]
    return place


def _deal_by_shares(place: Floats, kind: Indices, shares: Floats) -> Indices:
    """Site of every unit, [G], from its place in its class and the shares of the sites in each class [C, K]."""
    ends = np.minimum(shares.cumsum(axis=1)[:, :-1], 1.0)
    all_ends = (ends + np.arange(len(ends))[:, None]).ravel()  # class c fills the line from c to c + 1
    owner: Indices = np.searchsorted(all_ends, place + kind, side="right") - kind * ends.shape[1]
    return owner


def _refuse_more_sites_than_groups(units: _Units, sites: int) -> None:
    groups = int((units.part == 0).sum())
    if not 1 <= sites <= groups:
        raise SettingsError(f"{sites} sites cannot share {groups} training groups: use between 1 and {groups} sites.")


def _refuse_infeasible(alpha: float, minimum: int, sites: int, images: int) -> None:
    if not 0 < alpha < np.inf:
        raise SettingsError(f"`partition.alpha` must be a positive number, got {alpha:g}.")
    if minimum * sites > images:
        raise SettingsError(
            f"{sites} sites with {minimum} training images each need more than the {images} that there are: "
            f"lower `partition.minimum` to {images // sites} or less, or use fewer sites."
        )
