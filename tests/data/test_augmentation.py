import colorsys

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from fedproin.data import augmentation as subject
from fedproin.data.augmentation import (
    Batch,
    RandAutocontrast,
    RandSharpness,
    augmentation,
    class_probabilities,
    uniform_probabilities,
    warp,
)
from fedproin.data.pixels import normalise, to_unit


def images(count=4, size=20):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def warped(pictures, angle=0.0, mirror=(1.0, 1.0), shift=(0.0, 0.0), scale=1.0):
    rows = [torch.tensor([value]).float().expand(len(pictures), *torch.tensor(value).shape)
            for value in (angle, mirror, shift, scale)]  # fmt: skip
    return warp(pictures, *(row.reshape(len(pictures), *row.shape[1:]) for row in rows))


def test_class_probabilities():
    """Vector group `balanced_sampling`: classes of 1, 5, 10 and 0 images."""
    labels = np.repeat([0, 1, 2], [1, 5, 10])
    assert class_probabilities(labels, 4).tolist() == [0.9, 0.5, 0.0, 1.0]
    assert class_probabilities([], 2).tolist() == [1.0, 1.0]


def test_uniform_probabilities_are_the_mean_of_the_classes_present():
    labels = np.repeat([0, 1, 2], [1, 5, 10])
    assert uniform_probabilities(labels, 4).tolist() == pytest.approx([1.4 / 3] * 4)
    assert uniform_probabilities([1, 1], 3).tolist() == [0, 0, 0]  # one class only: adaptive leaves it alone too


def test_probability_zero_returns_the_same_bits():
    pictures, labels = images(64), torch.arange(64) % 2
    augmented = augmentation([0.0, 1.0]).set_random_state(seed=1)(pictures, labels)
    assert torch.equal(augmented[::2], pictures[::2])
    assert (augmented[1::2] != pictures[1::2]).flatten(1).any(1).all()
    assert augmented.min() >= 0
    assert augmented.max() <= 1


def test_same_seed_same_bits_and_global_generators_play_no_part():
    pictures, labels, augment = images(), torch.zeros(4, dtype=torch.int64), augmentation([0.8])
    augment.set_random_state(seed=7)
    first = [augment(pictures, labels) for _ in range(2)]
    np.random.seed(3)
    torch.manual_seed(3)
    augment.set_random_state(seed=7)
    assert all(torch.equal(augment(pictures, labels), picture) for picture in first)
    assert not torch.equal(*first)
    assert not torch.equal(augmentation([0.8]).set_random_state(seed=8)(pictures, labels), first[0])


@pytest.mark.parametrize(
    ("flip_probability", "expected"),
    [
        pytest.param(None, 0.25, id="the class probability twice"),  # effective_flip_probability_code, class 1
        pytest.param(0.5, 0.25, id="fixed, one half"),
        pytest.param(1.0, 0.5, id="fixed, always"),
        pytest.param(0.0, 0.0, id="fixed, never"),
    ],
)
def test_how_often_an_inner_transform_reaches_an_image(flip_probability, expected):
    augment = subject.ForSomeImages([RandAutocontrast()], [0.5], flip_probability).set_random_state(seed=0)
    pictures = images(4000, 2) * 0.5 + 0.25
    changed = (augment(pictures, torch.zeros(4000, dtype=torch.int64)) != pictures).flatten(1).any(1)
    assert changed.float().mean().item() == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_colour_changes_agree_with_torchvision(name):
    pictures, factors = images(), torch.tensor([0.8, 0.93, 1.0, 1.2])
    expected = [getattr(tv, f"adjust_{name}")(p, f) for p, f in zip(pictures, factors.tolist(), strict=True)]
    torch.testing.assert_close(getattr(subject, f"adjust_{name}")(pictures, factors), torch.stack(expected))


@pytest.mark.parametrize(
    ("transform", "expected"),
    [(RandSharpness(2.0), lambda p: tv.adjust_sharpness(p, 2.0)), (RandAutocontrast(), tv.autocontrast)],
    ids=["sharpness", "autocontrast"],
)
def test_sharpness_and_autocontrast_agree_with_torchvision(transform, expected):
    pictures = images() * 0.6 + 0.1
    batch = Batch(pictures, torch.tensor([1.0, 1.0, 0.0, 0.0]))
    changed = transform.set_random_state(seed=0)(batch).images
    torch.testing.assert_close(changed, torch.cat([expected(pictures[:2]), pictures[2:]]))


def test_hue_keeps_grey_and_luma_and_can_be_undone():
    grey = torch.full((1, 3, 2, 2), 0.4)
    torch.testing.assert_close(subject.rotate_hue(grey, torch.tensor([0.1])), grey, atol=1e-5, rtol=0)
    pictures, turns = images() * 0.2 + 0.4, torch.full((4,), 0.1)
    turned = subject.rotate_hue(pictures, turns)
    torch.testing.assert_close(tv.rgb_to_grayscale(turned), tv.rgb_to_grayscale(pictures), atol=1e-3, rtol=0)
    torch.testing.assert_close(subject.rotate_hue(turned, -turns), pictures, atol=1e-5, rtol=0)


@pytest.mark.parametrize("colour", [(0.8, 0.5, 0.4), (0.4, 0.3, 0.5), (0.4, 0.6, 0.5), (0.6, 0.3, 0.4)])
@pytest.mark.parametrize("turn", [-0.1, 0.05, 0.1])
def test_hue_turns_the_way_torchvision_does(colour, turn):
    """Not by the same amount: equal steps in YIQ are not equal in HSV."""
    turned = subject.rotate_hue(torch.tensor(colour).view(1, 3, 1, 1), torch.tensor([turn])).flatten()
    shift = colorsys.rgb_to_hsv(*turned.tolist())[0] - colorsys.rgb_to_hsv(*colour)[0]
    assert ((shift + 0.5) % 1 - 0.5) / turn == pytest.approx(1.0, abs=0.6)


def test_flips_are_those_of_torchvision():
    pictures = images()
    torch.testing.assert_close(warped(pictures, mirror=(-1.0, 1.0)), tv.hflip(pictures), atol=1e-5, rtol=0)
    torch.testing.assert_close(warped(pictures, mirror=(1.0, -1.0)), tv.vflip(pictures), atol=1e-5, rtol=0)
    torch.testing.assert_close(warped(pictures), pictures, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("angle", "shift", "scale"),
    [(15.0, (0, 0), 1.0), (0.0, (0.1, -0.05), 1.0), (0.0, (0, 0), 0.9), (-10.0, (-0.1, 0.1), 1.1)],
)
def test_warp_agrees_with_torchvision_affine(angle, shift, scale):
    pictures = images(size=20)
    expected = tv.affine(
        pictures,
        angle=angle,
        translate=[20 * shift[0], 20 * shift[1]],
        scale=scale,
        shear=[0.0, 0.0],
        interpolation=InterpolationMode.BILINEAR,
    )
    result = warped(pictures, np.deg2rad(angle), shift=tuple(map(float, shift)), scale=scale)
    assert (result - expected).abs().median() < 1e-4
    # torchvision blends its outermost pixels with a mask, so only what is well inside can be compared
    torch.testing.assert_close(result[..., 5:-5, 5:-5], expected[..., 5:-5, 5:-5], atol=1e-4, rtol=0)


def test_rotation_comes_before_the_flips():
    pictures = images()
    both = warped(pictures, np.deg2rad(12.0), mirror=(-1.0, 1.0))
    torch.testing.assert_close(both, tv.hflip(warped(pictures, np.deg2rad(12.0))), atol=1e-4, rtol=0)


def test_unit_and_normalise():
    pictures = torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8).expand(2, 4, 4, 3)
    unit = to_unit(pictures)
    assert unit.shape == (2, 3, 4, 4)
    assert unit.is_contiguous()
    assert unit.dtype == torch.float32
    assert unit[0, :, 0, 0].tolist() == pytest.approx([0.0, 0.2, 1.0])
    normal = normalise(unit, (0.5, 0.1, 0.0), (0.5, 0.1, 2.0))
    assert normal[1, :, 3, 3].tolist() == pytest.approx([-1.0, 1.0, 0.5])
