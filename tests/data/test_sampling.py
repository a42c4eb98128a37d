import subprocess
import sys

import pytest
import torch

from fedproin.data.sampling import epoch_batches, epoch_length

LABELS = torch.tensor([0] + [1] * 5 + [2] * 10)  # vector group `balanced_sampling`: 1, 5, 10 and 0 images


def batches(labels=LABELS, size=4, sampler="shuffle", length="dataset", seed=0):
    return epoch_batches(labels, size, sampler, length, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("sampler", "length", "expected"),
    [
        ("class_balanced", "max_times_present", 30),
        ("class_balanced", "dataset", 16),
        ("shuffle", "max_times_present", 16),
        ("shuffle", "dataset", 16),
    ],
)
def test_epoch_length(sampler, length, expected):
    assert epoch_length(LABELS, sampler, length) == expected
    assert sum(map(len, batches(sampler=sampler, length=length))) == expected


def test_shuffle_shows_every_image_once():
    shown = torch.cat(batches())
    assert shown.sort().values.tolist() == list(range(16))
    assert shown.tolist() != list(range(16))


def test_balanced_draws_classes_and_then_images_uniformly():
    """Vector group `balanced_sampling`: 1/3, 1/15 and 1/30 for an image of each class."""
    labels = LABELS.repeat(300)
    drawn = torch.cat(batches(labels, 128, "class_balanced", "max_times_present")) % 16
    share = drawn.bincount(minlength=16) / len(drawn)
    expected = torch.tensor([1 / 3] + [1 / 15] * 5 + [1 / 30] * 10)
    torch.testing.assert_close(share, expected, atol=0.012, rtol=0)


@pytest.mark.parametrize("sampler", ["shuffle", "class_balanced"])
def test_the_generator_decides_alone(sampler):
    first = torch.cat(batches(sampler=sampler))
    torch.manual_seed(5)
    assert torch.equal(torch.cat(batches(sampler=sampler)), first)
    assert not torch.equal(torch.cat(batches(sampler=sampler, seed=1)), first)


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        pytest.param(9, 4, [4, 4], id="a trailing single is dropped"),
        pytest.param(10, 4, [4, 4, 2], id="a trailing pair stays"),
        pytest.param(1, 4, [1], id="the only batch stays"),
        pytest.param(3, 1, [1, 1, 1], id="batches of one by choice"),
        pytest.param(0, 4, [], id="no image"),
    ],
)
@pytest.mark.parametrize("sampler", ["shuffle", "class_balanced"])
def test_batch_sizes(count, size, expected, sampler):
    labels = torch.zeros(count, dtype=torch.int64)
    drawn = batches(labels, size, sampler, "max_times_present")
    assert [len(batch) for batch in drawn] == expected
    assert all(batch.dtype == torch.int64 for batch in drawn)


def test_importing_costs_no_torch():
    code = (
        "import sys, fedproin.data.sampling, fedproin.data.synthetic, fedproin.data.cache\n"
        "assert not {'torch', 'monai'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("sampler", ["shuffle", "class_balanced"])
@pytest.mark.parametrize(("steps", "size"), [(1, 4), (3, 4), (11, 4), (2, 40), (5, 1)])
def test_a_number_of_steps_is_kept_whatever_the_site_has(sampler, steps, size):
    """`max_times_present` is no matter then, and no batch is short or dropped."""
    generator = torch.Generator().manual_seed(0)
    drawn = epoch_batches(LABELS, size, sampler, "max_times_present", generator, steps)
    assert [len(batch) for batch in drawn] == [size] * steps
    if sampler == "shuffle":  # from one order of all images to the next
        counts = torch.cat(drawn).bincount(minlength=16)
        assert counts.max() - counts.min() <= 1


def test_degenerate_no_image_makes_no_step():
    assert epoch_batches(LABELS[:0], 4, "shuffle", "dataset", torch.Generator(), 3) == []
