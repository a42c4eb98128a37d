"""Decoded pictures as tensors: the two plain steps around the augmentation."""

from collections.abc import Sequence

from torch import Tensor


def to_unit(images: Tensor) -> Tensor:
    """Pictures uint8 ``[B, S, S, 3]`` to contiguous float32 ``[B, 3, S, S]`` in [0, 1]."""
    return images.permute(0, 3, 1, 2).contiguous().float().div_(255)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Subtract `mean` and divide by `std`, three numbers each; images ``[B, 3, S, S]``."""
    return (images - images.new_tensor(mean).view(3, 1, 1)) / images.new_tensor(std).view(3, 1, 1)
