"""From a location to the pictures of a site; tables of tiny PNGs and synthetic pictures."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedproin.data.cache import default_directory
from fedproin.data.location import Location
from fedproin.data.manifest import read_manifest
from fedproin.data.site_images import deal, describe, open_site, table_classes
from fedproin.data.synthetic import CLASSES
from fedproin.errors import DataError, SettingsError

SITES = ("site-1", "site-2")


@pytest.fixture
def table(tmp_path):
    """A table of 60 pictures, three of a patient, by default in two classes and from two laboratories."""

    def make(name="table", classes=("mel", "bcc"), sites=("lab x", "lab y")):
        folder = tmp_path / name
        folder.mkdir()
        rows = ["image,label,patient" + (",site" if sites else "")]
        for number in range(60):
            Image.new("RGB", (8, 8), (4 * number, 0, 0)).save(folder / f"{number}.png")
            patient = number // 3
            row = [f"{number}.png", classes[patient % len(classes)], f"p{patient}"]
            rows.append(",".join(row + ([sites[patient // 2 % len(sites)]] if sites else [])))
        (folder / "manifest.csv").write_text("\n".join(rows))
        return folder

    return make


def simulated(source=None):
    return Location(source, default_directory(), simulated=True)


def hospital(tmp_path, source=None):
    return Location(source, tmp_path / "own-cache", simulated=False)


def rows(images):
    return np.concatenate([images.train, images.val, images.test])


# classes


def test_only_a_simulation_takes_classes_from_its_table(table, tmp_path, make_settings):
    folder = table()
    assert table_classes(make_settings(), simulated(folder)) == ("bcc", "mel")  # sorted, not as they come
    with pytest.raises(SettingsError, match=r"must name data\.classes in order"):
        table_classes(make_settings(), hospital(tmp_path, folder))
    named = make_settings(data={"classes": ["mel", "bcc"]})
    assert table_classes(named, simulated(folder)) == table_classes(named, hospital(tmp_path, folder)) == ("mel", "bcc")


def test_synthetic_pictures_have_seven_classes(make_settings):
    assert table_classes(make_settings(), simulated()) == CLASSES


def test_degenerate_a_table_with_one_class(table, make_settings):
    with pytest.raises(SettingsError, match="one class only"):
        table_classes(make_settings(), simulated(table(classes=("mel",))))


def test_labels_are_positions_in_the_jobs_classes(table, tmp_path, make_settings):
    folder = table()
    for classes in (["mel", "bcc"], ["bcc", "mel"], ["nv", "mel", "bcc"]):
        images = open_site(make_settings(data={"classes": classes}), hospital(tmp_path, folder), "site-1", SITES)
        assert [classes[label] for label in images.labels] == read_manifest(folder).label.tolist()


def test_labels_that_the_job_does_not_know_are_refused(table, tmp_path, make_settings):
    with pytest.raises(DataError, match=r"30 of 60 images have a label .* \(bcc\)"):
        open_site(make_settings(data={"classes": ["mel", "nv"]}), hospital(tmp_path, table()), "site-1", SITES)


@pytest.mark.parametrize(("minimum", "refused"), [(0, False), (30, False), (31, True)])
def test_degenerate_a_site_with_too_few_images_of_a_class_takes_no_part(
    table, tmp_path, make_settings, minimum, refused
):
    """30 images of each of two classes; none of a third class are fine."""
    settings = make_settings(data={"classes": ["mel", "nv", "bcc"]})
    location = replace(hospital(tmp_path, table()), minimum_count=minimum)
    if not refused:
        assert len(open_site(settings, location, "site-1", SITES).labels) == 60
        return
    with pytest.raises(DataError, match="takes no part") as refusal:
        open_site(settings, location, "site-1", SITES)
    assert not [word for word in ("mel", "bcc", "nv", "30", "31") if f"{word} " in str(refusal.value)]


# dealing


@pytest.mark.parametrize(
    ("kind", "sites", "column", "how"),
    [
        ("auto", 2, ("lab x", "lab y"), "by the column 'site'"),
        ("auto", 3, ("lab x", "lab y"), "Dirichlet 0.5"),
        ("auto", 2, (), "Dirichlet 0.5"),
        ("auto", 2, ("lab x", "lab y", ""), "by the column 'site'"),
        ("iid", 2, ("lab x", "lab y"), "IID"),
        ("dirichlet", 2, ("lab x", "lab y"), "Dirichlet 0.5"),
        ("site", 2, ("lab x", "lab y"), "by the column 'site'"),
    ],
)
def test_how_a_table_is_dealt(table, make_settings, kind, sites, column, how):
    settings = make_settings(partition={"kind": kind, "minimum": 2})
    names = [f"site-{number}" for number in range(sites)]
    assert describe(settings, simulated(table(sites=column)), names) == how


def test_what_every_site_would_refuse_the_server_refuses(table, make_settings):
    with pytest.raises(SettingsError, match=r"partition\.minimum"):
        describe(make_settings(partition={"kind": "dirichlet", "minimum": 1000}), simulated(table()), SITES)
    with pytest.raises(SettingsError, match="no column `site`"):
        describe(make_settings(partition={"kind": "site"}), simulated(table("other", sites=())), SITES)


def test_the_column_says_whose_picture_it_is(table, make_settings):
    folder = table()
    settings = make_settings(data={"classes": ["bcc", "mel"]})
    manifest = read_manifest(folder)
    for site, laboratory in zip(SITES, ("lab x", "lab y"), strict=True):
        images = open_site(settings, simulated(folder), site, SITES)
        assert set(manifest.site[rows(images)]) == {laboratory}


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "site"])
def test_sites_share_everything_and_nothing_twice(table, make_settings, kind):
    folder = table()
    settings = make_settings(data={"classes": ["bcc", "mel"]}, partition={"kind": kind, "minimum": 2})
    parts = [open_site(settings, simulated(folder), site, SITES) for site in SITES]
    assert sorted(np.concatenate([rows(images) for images in parts])) == list(range(60))
    group = read_manifest(folder).group
    names = ("train", "val", "test")
    groups = [set(group[np.concatenate([getattr(images, name) for images in parts])]) for name in names]
    assert not groups[0] & groups[1] and not groups[0] & groups[2] and not groups[1] & groups[2]  # noqa: PT018


def test_the_split_does_not_depend_on_how_it_is_dealt(table, make_settings):
    manifest = read_manifest(table())
    splits = [
        deal(make_settings(partition={"kind": kind, "minimum": 2}), manifest, names)[0]
        for kind in ("iid", "dirichlet")
        for names in (SITES, ("a", "b", "c"))
    ]
    assert all(np.array_equal(one.train, splits[0].train) for one in splits)
    assert all(np.array_equal(one.test, splits[0].test) for one in splits)


def test_the_partition_has_a_seed_of_its_own(table, make_settings):
    folder = table()

    def train(seed, partition_seed):
        settings = make_settings(
            seed=seed, data={"classes": ["bcc", "mel"]}, partition={"seed": partition_seed, "kind": "iid"}
        )
        return open_site(settings, simulated(folder), "site-1", SITES).train.tolist()

    assert train(0, None) == train(0, 0) == train(9, 0)
    assert train(0, None) != train(1, None)


def test_leaky_splits_must_be_asked_for(table, make_settings):
    manifest = read_manifest(table())
    for group, leaks in (("table", False), ("none", True)):
        split, _, _ = deal(make_settings(data={"group": group}, partition={"kind": "iid"}), manifest, SITES)
        assert bool(set(manifest.group[split.train]) & set(manifest.group[split.test])) == leaks


# pictures


def test_a_hospital_splits_its_own_table(table, tmp_path, make_settings):
    folder = table()
    settings = make_settings(data={"classes": ["bcc", "mel"]})
    images = open_site(settings, hospital(tmp_path, folder), "anything", SITES)
    assert sorted(rows(images)) == list(range(60))
    assert images.images.shape == (60, 16, 16, 3)
    assert images.images[:, 8, 8, 0].tolist() == [4 * number for number in range(60)]
    assert not images.images.flags.writeable
    assert list((tmp_path / "own-cache").glob("images-*.npy"))


def test_sites_of_a_simulation_share_one_array(make_settings):
    settings = make_settings(data={"classes": list(CLASSES)})
    one, other = (open_site(settings, simulated(), site, SITES) for site in SITES)
    assert one.images.filename == other.images.filename
    assert np.array_equal(one.labels, other.labels)
    assert len(one.images) == 200
    assert not set(rows(one)) & set(rows(other))
    assert len(rows(one)) + len(rows(other)) == 200


def test_a_rehearsal_has_the_pictures_of_the_simulation(tmp_path, make_settings):
    """Each process draws all of them and takes its share, which is the same as in one process."""
    settings = make_settings(data={"synthetic": True})
    assert table_classes(settings, hospital(tmp_path)) == CLASSES
    settings = settings.with_classes(CLASSES)
    for site in SITES:
        alone = open_site(settings, hospital(tmp_path / site), site, SITES)
        together = open_site(settings, simulated(), site, SITES)
        assert np.array_equal(alone.images, together.images)
        assert np.array_equal(rows(alone), rows(together))


@pytest.mark.parametrize("change", [{"data": {"image_size": 20}}, {"seed": 1}, {"data": {"synthetic_images": 220}}])
def test_pictures_that_were_drawn_for_other_settings_are_not_taken(make_settings, change):
    names = {"data": {"classes": list(CLASSES)}}
    one = open_site(make_settings(**names), simulated(), "site-1", SITES).images
    changed = make_settings(**{**change, "data": {**names["data"], **change.get("data", {})}})
    other = open_site(changed, simulated(), "site-1", SITES).images
    assert other.shape == (changed.data.synthetic_images, *(changed.data.image_size,) * 2, 3)
    assert not np.array_equal(one, other)
