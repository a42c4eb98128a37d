import time

import numpy as np
import pytest

from fedproin.data.synthetic import CLASSES, draw_images, synthetic_manifest


def draw(count=60, size=28, seed=0, look=0, label=5):
    groups = np.array([f"lesion-{index // 2}" for index in range(count)])
    return draw_images(np.full(count, label), groups, np.full(count, look), size, seed)


def test_manifest_has_a_long_tail_in_small_groups():
    manifest = synthetic_manifest(1000, seed=0)
    names, counts = np.unique(manifest.label, return_counts=True)
    assert tuple(names) == CLASSES == tuple(sorted(CLASSES))
    assert counts.min() >= 12
    assert names[counts.argmax()] == "nv"
    assert counts.max() > 600
    assert len(np.unique(manifest.image)) == len(manifest) == 1000
    groups, sizes = np.unique(manifest.group, return_counts=True)
    assert set(sizes) == {1, 2}
    assert all(len(set(manifest.label[manifest.group == group])) == 1 for group in groups)


@pytest.mark.parametrize("count", [0, 1, 7, 50, 200])
def test_small_tables_have_the_size_asked_for(count):
    assert len(synthetic_manifest(count, seed=1)) == count


def test_seed_and_site_decide_the_manifest():
    first, second = synthetic_manifest(200, 0, "site-1"), synthetic_manifest(200, 0, "site-2")
    again = synthetic_manifest(200, 0, "site-1")
    assert np.array_equal(first.group, again.group)
    assert np.array_equal(first.label, again.label)
    assert set(first.site) == {"site-1"}
    assert not set(first.group) & set(second.group)
    assert not np.array_equal(first.label, synthetic_manifest(200, 1, "site-1").label)


@pytest.mark.parametrize("size", [1, 28, 65])
def test_pictures_of_any_size(size):
    pictures = draw(3, size)
    assert pictures.shape == (3, size, size, 3)
    assert pictures.dtype == np.uint8


def test_same_seed_same_pictures():
    assert np.array_equal(draw(), draw())
    assert not np.array_equal(draw(), draw(seed=1))


def test_no_picture():
    assert draw(0).shape == (0, 28, 28, 3)


def test_two_images_of_a_lesion_are_more_alike_than_two_lesions():
    pictures = draw(200, label=4).astype(float)
    within = np.abs(pictures[0::2] - pictures[1::2]).mean()
    between = np.abs(pictures[0:-2:2] - pictures[2::2]).mean()
    assert within < 0.75 * between
    assert np.abs(pictures[0::2] - pictures[1::2]).mean(axis=(1, 2, 3)).min() > 1


def test_a_look_shifts_the_pictures_of_a_site():
    looks = np.stack([draw(look=look).mean(axis=(0, 1, 2)) for look in range(6)])
    assert looks.std(axis=0).max() > 5


def test_classes_differ_but_overlap():
    from sklearn.ensemble import RandomForestClassifier

    labels = np.tile(np.arange(7), 150)
    groups = np.array([f"lesion-{index}" for index in range(len(labels))])
    pictures = draw_images(labels, groups, labels * 0 + 1, 14, 0).reshape(len(labels), -1)
    forest = RandomForestClassifier(60, random_state=0).fit(pictures[:700], labels[:700])
    assert 0.4 < forest.score(pictures[700:], labels[700:]) < 0.9


def test_two_thousand_small_pictures_take_under_two_seconds():
    def seconds():
        start = time.process_time()
        draw(2000)
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 2
