"""The images of one site: its table, or its share of a simulation's table, split into training, validation and test."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproin.data import cache, partition, synthetic
from fedproin.data.location import Location
from fedproin.data.manifest import Manifest, read_manifest
from fedproin.errors import DataError, SettingsError
from fedproin.seeds import derive_seed
from fedproin.settings import Settings

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class SiteImages:
    """Decoded pictures and the rows that belong to a site.

    Attributes:
        images: uint8 [N, H, W, 3]; in a simulation the array of all sites.
        labels: int64 [N], positions in the job's classes.
        train, val, test: rows of the site.
        table: digest of the table.
        union: rows of all sites together; none at a hospital, which sees its own only.
    """

    images: NDArray[np.uint8]
    labels: Indices
    train: Indices
    val: Indices
    test: Indices
    table: str
    union: partition.Split | None = None


def table_classes(settings: Settings, location: Location) -> tuple[str, ...]:
    """The job's classes; only a table that all share may say what they are: hospitals must mean the same by class 3."""
    if settings.data.classes or not location.dealt:
        return require_classes(settings)
    classes = _table(settings, location).classes
    if len(classes) < 2:
        raise SettingsError("The table has one class only; a classifier needs at least two.")
    return classes


def require_classes(settings: Settings) -> tuple[str, ...]:
    """The classes that the job names; without a simulation's table it must."""
    if not settings.data.classes:
        raise SettingsError("The job must name data.classes in order: only a simulation may take them from its table.")
    return settings.data.classes


def deal(settings: Settings, manifest: Manifest, sites: Sequence[str]) -> tuple[partition.Split, Indices, str]:
    """Split a simulation's table and deal it: the parts, the position of every image's site, and how it was dealt."""
    part, seed = settings.partition, _partition_seed(settings)
    split = partition.split(manifest, settings.data.split, seed, settings.data.group == "table")
    without = ""
    if part.held_out is not None:
        split, without = partition.hold_out(manifest, split, part.held_out), f", tested on '{part.held_out}'"
    kind = part.kind
    if kind == "auto":
        values = set() if manifest.site is None else set(manifest.site.tolist()) - {"", part.held_out}
        kind = "site" if len(values) == len(sites) else "dirichlet"
    if kind == "site":
        owner = partition.by_column(manifest, split, len(sites), part.held_out)
        return split, owner, "by the column 'site'" + without
    if kind == "iid":
        return split, partition.iid(manifest, split, len(sites), seed), "IID" + without
    owner = partition.dirichlet(manifest, split, len(sites), part.alpha, part.minimum, seed)
    return split, owner, f"Dirichlet {part.alpha:g}{without}"


def describe(settings: Settings, location: Location, sites: Sequence[str]) -> str:
    """How a simulation deals its table; raises what every site would raise."""
    return deal(settings, _table(settings, location), sites)[2]


def open_site(settings: Settings, location: Location, site: str, sites: Sequence[str]) -> SiteImages:
    """Read, split and decode what belongs to `site`; pictures that others have decoded before are shared."""
    manifest = _table(settings, location)
    labels = manifest.encode(settings.data.classes)
    if location.dealt:
        split, owner, _ = deal(settings, manifest, sites)
    else:
        _require_enough(labels, location.minimum_count)
        by_group = settings.data.group == "table"
        split = partition.split(manifest, settings.data.split, _partition_seed(settings), by_group)
        owner, sites = np.zeros(len(manifest), np.int64), (site,)
    images = _pictures(settings, location, manifest, owner, sites)
    mine = _only(split, owner == list(sites).index(site))
    union = _only(split, owner >= 0) if location.dealt else None
    return SiteImages(images, labels, mine.train, mine.val, mine.test, manifest.table_digest(), union)


def _require_enough(labels: Indices, minimum: int) -> None:
    """Refuse classes so small that they may tell who the patients are; the message does not say which."""
    counts = np.bincount(labels)
    if ((counts > 0) & (counts < minimum)).any():
        raise DataError(
            "This site takes no part: a class has fewer images than its minimum_count allows; `fedproin doctor` on "
            "this machine says which."
        )


def _only(split: partition.Split, wanted: NDArray[np.bool_]) -> partition.Split:
    """The rows of each part that are wanted."""
    return partition.Split(*(part[wanted[part]] for part in (split.train, split.val, split.test)))


def _partition_seed(settings: Settings) -> int:
    return settings.seed if settings.partition.seed is None else settings.partition.seed


@lru_cache(maxsize=1)  # a process reads its table once, also for the many sites of the local engine
def _read(source: Path) -> Manifest:
    return read_manifest(source)


def _table(settings: Settings, location: Location) -> Manifest:
    if location.source is not None:
        return _read(location.source)
    return synthetic.synthetic_manifest(settings.data.synthetic_images, _partition_seed(settings))


def _pictures(
    settings: Settings,
    location: Location,
    manifest: Manifest,
    owner: Indices,
    sites: Sequence[str],
) -> NDArray[np.uint8]:
    size = settings.data.image_size
    if location.source is not None:
        return cache.cached_manifest(manifest, size, location.cache)
    kinds = manifest.encode(synthetic.CLASSES)
    looks = np.array([derive_seed(settings.seed, site, "look") for site in sites])[owner]
    seed = _partition_seed(settings)
    drawn = repr((size, seed, cache.CODE_VERSION, *manifest.group.tolist()))
    content = hashlib.sha256(kinds.tobytes() + looks.tobytes() + drawn.encode())

    def draw(pixels: NDArray[np.uint8]) -> None:
        pixels[:] = synthetic.draw_images(kinds, manifest.group, looks, size, seed)

    return cache.open_images_array(location.cache, content.hexdigest(), len(manifest), size, draw)
