import numpy as np
import pytest
import torch

from fedproin.training.batches import Part


@pytest.fixture
def part():
    images = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 3), dtype=np.uint8)
    rows = np.array([7, 2, 9, 0, 4])
    return Part(images, rows, torch.tensor([1, 0, 2, 1, 0]), (0.5, 0.4, 0.3), (0.1, 0.2, 0.5), 2, torch.device("cpu"))


def test_a_batch_is_normalised_and_comes_from_the_parts_own_rows(part):
    images, labels = part.batch(torch.tensor([2, 0]))
    raw = torch.tensor(part.images[[9, 7]]).permute(0, 3, 1, 2).float() / 255
    expected = (raw - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / torch.tensor([0.1, 0.2, 0.5]).view(3, 1, 1)
    assert torch.allclose(images, expected)
    assert images.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.tolist() == [2, 1]
    assert labels.dtype == torch.int64


def test_augmentation_sees_plain_pictures_and_is_normalised_after(part):
    seen = []

    def white(images, labels):
        seen.append((images.min().item() >= 0, images.max().item() <= 1, labels.tolist()))
        return torch.ones_like(images)

    images, _ = part.batch(torch.tensor([0, 1]), white)
    assert seen == [(True, True, [1, 0])]
    assert images[0, :, 0, 0].tolist() == pytest.approx([5.0, 3.0, 1.4])


def test_clean_batches_show_every_image_once_in_order(part):
    batches = list(part.clean_batches())
    assert [len(labels) for _, labels in batches] == [2, 2, 1]
    assert torch.cat([labels for _, labels in batches]).tolist() == part.labels.tolist()
    assert torch.equal(torch.cat([images for images, _ in batches]), part.batch(torch.arange(5))[0])
    assert len(part) == 5


def test_shared_pictures_are_never_written(part):
    part.images.flags.writeable = False
    before = part.images.copy()
    images, _ = part.batch(torch.arange(5), lambda images, _: images.mul_(0))
    images.zero_()
    assert (part.images == before).all()
