from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedproin.data.checks import groups_in_two_parts
from fedproin.data.manifest import Manifest, read_manifest
from fedproin.data.partition import Split, by_column, dirichlet, hold_out, iid, split
from fedproin.errors import SettingsError

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
HAM10000, BLOOD = SHARED / "ham10000_28px.csv", SHARED / "wbc_4sites_160px.csv"
needs_data = pytest.mark.skipif(not HAM10000.exists() or not BLOOD.exists(), reason="shared data are not here")


def make(groups: list[tuple[int, int]], site: list[str] | None = None, part: list[str] | None = None) -> Manifest:
    """A table with a group for every (images, class)."""
    group = np.repeat([f"g{number:04}" for number in range(len(groups))], [size for size, _ in groups])
    label = np.repeat([f"c{kind}" for _, kind in groups], [size for size, _ in groups])
    image = np.array([f"{number}.png" for number in range(len(group))])
    columns = (None if column is None else np.array(column) for column in (site, part))
    return Manifest(Path(), image, label, group, *columns)


def parts_of(parts: Split, images: int) -> np.ndarray:
    part = np.full(images, -1)
    for code, rows in enumerate((parts.train, parts.val, parts.test)):
        assert (part[rows] == -1).all()
        part[rows] = code
    return part


tables = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=60).map(make)
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=60, deadline=None)


@few
@given(tables, seeds)
def test_split_is_exhaustive_disjoint_and_keeps_groups(manifest, seed):
    parts = split(manifest, seed=seed)
    part = parts_of(parts, len(manifest))
    assert (part >= 0).all()
    assert groups_in_two_parts(manifest.group, part).size == 0
    assert all(rows.dtype == np.int64 for rows in (parts.train, parts.val, parts.test))
    for name in manifest.classes:
        mine = manifest.label == name
        if len(np.unique(manifest.group[mine])) >= 3:
            assert set(part[mine]) == {0, 1, 2}


@few
@given(tables, seeds, st.randoms(use_true_random=False))
def test_split_depends_on_seed_and_not_on_row_order(manifest, seed, random):
    order = np.array(random.sample(range(len(manifest)), len(manifest)))
    first = parts_of(split(manifest, seed=seed), len(manifest))
    assert (parts_of(split(manifest, seed=seed), len(manifest)) == first).all()
    assert (parts_of(split(manifest.take(order), seed=seed), len(manifest)) == first[order]).all()


def test_fractions_are_about_right_in_every_class():
    random = np.random.default_rng(0)
    manifest = make([(int(size), kind) for kind in range(3) for size in random.integers(1, 4, 300)])
    part = parts_of(split(manifest, (0.6, 0.15, 0.25), seed=3), len(manifest))
    for name in manifest.classes:
        shares = np.bincount(part[manifest.label == name]) / (manifest.label == name).sum()
        assert shares == pytest.approx([0.6, 0.15, 0.25], abs=0.01)


def test_other_seeds_give_other_splits():
    manifest = make([(1, 0)] * 100)
    assert (split(manifest, seed=0).test != split(manifest, seed=1).test).any()


def test_the_class_of_a_group_is_its_most_frequent_label():
    manifest = make([(3, 0)] * 30)
    mixed = Manifest(Path(), manifest.image, np.tile(["a", "b", "b"], 30), manifest.group)
    part = parts_of(split(mixed, seed=1), 90)
    assert np.bincount(part).tolist() == [63, 9, 18]
    assert groups_in_two_parts(mixed.group, part).size == 0


def test_a_share_of_nothing_stays_empty():
    parts = split(make([(1, 0)] * 10), (0.8, 0.0, 0.2))
    assert [len(parts.train), len(parts.val), len(parts.test)] == [8, 0, 2]


@pytest.mark.parametrize("fractions", [(0.7, 0.1, 0.1), (1.2, -0.2, 0.0), (0.0, 0.5, 0.5)])
def test_impossible_fractions(fractions):
    with pytest.raises(SettingsError, match="add up to 1"):
        split(make([(1, 0)] * 10), fractions)


def test_the_tables_own_split_is_kept_and_completed():
    decided = ["test", "", *["train"] * 2, *["val"] * 2, *[""] * 14]  # the second image of the first group follows it
    manifest = make([(2, 0)] * 10, part=decided)
    part = parts_of(split(manifest, seed=5), 20)
    assert part[:6].tolist() == [2, 2, 0, 0, 1, 1]
    assert (part >= 0).all()
    assert groups_in_two_parts(manifest.group, part).size == 0


@few
@given(tables, seeds, st.integers(1, 6))
def test_iid_is_even(manifest, seed, sites):
    parts = split(manifest, seed=seed)
    groups = len(np.unique(manifest.group[parts.train]))
    if sites > groups:
        with pytest.raises(SettingsError, match=f"{sites} sites cannot share {groups} training groups"):
            iid(manifest, parts, sites, seed)
        return
    owner = iid(manifest, parts, sites, seed)
    assert (iid(manifest, parts, sites, seed) == owner).all()
    assert ((owner >= 0) & (owner < sites)).all()
    assert groups_in_two_parts(manifest.group, owner).size == 0
    for rows in (parts.train, parts.val, parts.test):
        images = np.bincount(owner[rows], minlength=sites)
        sizes = np.unique(manifest.group[rows], return_counts=True)[1]
        assert np.ptp(images) <= sizes.max(initial=0)
        for name in manifest.classes:
            mine = rows[manifest.label[rows] == name]
            firsts = mine[np.unique(manifest.group[mine], return_index=True)[1]]
            assert np.ptp(np.bincount(owner[firsts], minlength=sites)) <= 1


@few
@given(tables, seeds, st.integers(1, 5), st.sampled_from([0.1, 0.5, 5.0]))
def test_dirichlet_keeps_groups_and_the_minimum(manifest, seed, sites, alpha):
    parts = split(manifest, seed=seed)
    try:
        owner = dirichlet(manifest, parts, sites, alpha, 2, seed)
    except SettingsError:
        assert sites > 1 or len(parts.train) < 2
        return
    assert (dirichlet(manifest, parts, sites, alpha, 2, seed) == owner).all()
    assert ((owner >= 0) & (owner < sites)).all()
    assert groups_in_two_parts(manifest.group, owner).size == 0
    assert np.bincount(owner[parts.train], minlength=sites).min() >= 2


def test_one_matrix_deals_all_parts():
    manifest = make([(1, kind) for kind in range(3) for _ in range(2000)])
    parts = split(manifest, (0.4, 0.3, 0.3), seed=0)
    owner = dirichlet(manifest, parts, 4, 0.5, 1, seed=7)
    for name in manifest.classes:
        shares = [
            np.bincount(owner[mine], minlength=4) / len(mine)
            for mine in (rows[manifest.label[rows] == name] for rows in (parts.train, parts.val, parts.test))
        ]
        assert shares[1] == pytest.approx(shares[0], abs=0.01)
        assert shares[2] == pytest.approx(shares[0], abs=0.01)


def test_alpha_sets_the_skew():
    manifest = make([(1, kind) for kind in range(5) for _ in range(400)])
    parts = split(manifest)

    def spread(alpha: float) -> float:
        owner = dirichlet(manifest, parts, 4, alpha, 1, seed=0)
        count = np.bincount(owner * 5 + manifest.encode(manifest.classes), minlength=20).reshape(4, 5)
        return (count / 400).std()

    assert spread(0.1) > spread(1.0) > spread(1000.0)
    assert spread(1000.0) < 0.02


@pytest.mark.parametrize(
    ("sites", "alpha", "minimum", "message"),
    [
        (8, 0.5, 1, "8 sites cannot share 7 training groups: use between 1 and 7"),
        (0, 0.5, 1, "0 sites cannot share"),
        (3, 0.5, 5, "more than the 14 that there are: lower `partition.minimum` to 4"),
        (7, 0.01, 2, "None of 1000 draws with alpha 0.01"),
        (2, 0.0, 1, "`partition.alpha` must be a positive number"),
    ],
)
def test_dirichlet_refusals(sites, alpha, minimum, message):
    manifest = make([(2, 0)] * 10)
    parts = split(manifest)
    with pytest.raises(SettingsError, match=message):
        dirichlet(manifest, parts, sites, alpha, minimum, 0)


def test_images_outside_the_split_belong_to_nobody():
    manifest = make([(1, 0)] * 6)
    parts = Split(np.arange(3), np.array([3]), np.array([4]))
    assert iid(manifest, parts, 2, 0)[5] == -1
    assert dirichlet(manifest, parts, 2, 5.0, 1, 0)[5] == -1


def test_by_column():
    manifest = make([(2, 0)] * 9 + [(3, 0)], site=["b"] * 6 + ["a"] * 6 + ["c"] * 4 + [""] * 2 + ["c", "a", "c"])
    owner = by_column(manifest, split(manifest, seed=0), 3)
    assert owner.tolist() == [1] * 6 + [0] * 6 + [2] * 4 + [-1] * 2 + [2] * 3  # the last group goes as a whole


@pytest.mark.parametrize(
    ("site", "sites", "message"),
    [
        (None, 2, "no column `site`"),
        (["a", "b", "c", "d"], 2, r"has 4 different values, but there are 2 sites: use 4 sites \(-n 4\)"),
        (["a", "a", "b", "b"], 10, r"has 2 different values, but there are 10 sites: use 2 sites \(-n 2\)"),
        (["a", "a", "a", "b"], 2, "1 of the 2 values of `site` have no training image"),
    ],
)
def test_by_column_refusals(site, sites, message):
    manifest = make([(1, 0)] * 4, site=site)
    with pytest.raises(SettingsError, match=message):
        by_column(manifest, Split(np.arange(3), np.array([3]), np.array([], dtype=np.int64)), sites)


def test_a_held_out_site_is_the_whole_test_and_trains_nobody():
    site = ["a"] * 20 + ["b"] * 20 + ["c"] * 6 + ["c", "a"] * 3
    manifest = make([(2, number % 2) for number in range(26)], site=site)
    parts = hold_out(manifest, split(manifest, seed=0), "c")
    assert parts.test.tolist() == [row for row in range(52) if site[row] == "c"]
    touched = {manifest.group[row] for row in parts.test}  # three groups have a picture of "a" too
    assert not touched & {*manifest.group[parts.train], *manifest.group[parts.val]}
    owner = by_column(manifest, parts, 2, "c")
    assert {(site[row], owner[row]) for row in (*parts.train, *parts.val)} == {("a", 0), ("b", 1)}
    assert np.bincount(owner[parts.test]).tolist() == [5, 4]


def test_what_is_held_out_must_be_there():
    with pytest.raises(SettingsError, match="no value 'z' to hold out; it has a, b"):
        hold_out(make([(1, 0)] * 2, site=["b", "a"]), Split(*[np.arange(0)] * 3), "z")
    with pytest.raises(SettingsError, match="it has none"):
        hold_out(make([(1, 0)] * 2), Split(*[np.arange(0)] * 3), "z")
    manifest = make([(1, 0)] * 3, site=["a", "b", "c"])
    with pytest.raises(SettingsError, match="has 2 different values beside 'c', but there are 3 sites: use 2 sites"):
        by_column(manifest, hold_out(manifest, split(manifest, seed=0), "c"), 3, "c")


@needs_data
def test_ham10000():
    manifest = read_manifest(HAM10000)
    assert len(manifest) == 10015
    assert len(np.unique(manifest.group)) == 7470

    part = parts_of(split(manifest, seed=0), 10015)
    assert groups_in_two_parts(manifest.group, part).size == 0
    assert np.bincount(part) / 10015 == pytest.approx([0.7, 0.1, 0.2], abs=0.002)
    leaking = parts_of(split(manifest, seed=0, by_group=False), 10015)
    assert groups_in_two_parts(manifest.group, leaking).size > 500


@needs_data
@pytest.mark.parametrize("seed", range(3))
def test_ham10000_over_ten_sites(seed):
    manifest = read_manifest(HAM10000)
    parts = split(manifest, seed=seed)
    owner = dirichlet(manifest, parts, 10, 0.5, 10, seed)
    assert np.bincount(owner[parts.train], minlength=10).min() >= 10
    assert groups_in_two_parts(manifest.group, owner).size == 0
    even = iid(manifest, parts, 10, seed)
    assert np.ptp(np.bincount(even[parts.train])) <= 6  # the largest lesion has six pictures


@needs_data
def test_blood_cells_by_laboratory():
    manifest = read_manifest(BLOOD)
    parts = split(manifest, seed=0)
    owner = by_column(manifest, parts, 4)
    assert np.bincount(owner).tolist() == [342, 100, 300, 2500]
    barcelona = parts_of(parts, len(manifest))[owner == 3]
    assert np.bincount(barcelona).tolist() == [1750, 375, 375]  # the table's own split
    assert all(len(np.unique(owner[rows])) == 4 for rows in (parts.train, parts.val, parts.test))
