"""Which images an epoch sees, and in which batches (methods.md 1.5).

Nothing here imports torch until an epoch is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Sampler = Literal["shuffle", "class_balanced"]
Length = Literal["dataset", "max_times_present"]


def epoch_length(labels: Tensor, sampler: Sampler, length: Length) -> int:
    """Presentations of one epoch, before a trailing single sample is dropped.

    Args:
        labels: int64 ``[n]``.
        sampler: ``"shuffle"`` shows every image once, whatever `length` says.
        length: of a balanced epoch. ``"dataset"``: n; ``"max_times_present"``: size of the largest class times the
            number of classes present, so that an image of the largest class is drawn about once (G0).
    """
    if sampler == "shuffle" or length == "dataset" or len(labels) == 0:
        return len(labels)
    counts = labels.bincount()
    return int(counts.max() * (counts > 0).sum())


def epoch_batches(
    labels: Tensor,
    batch_size: int,
    sampler: Sampler,
    length: Length,
    generator: torch.Generator,
    steps: int | None = None,
) -> list[Tensor]:
    """Index batches of one epoch, each int64 ``[batch_size]`` or shorter at the end.

    Args:
        labels: int64 ``[n]`` on the CPU; an empty one gives no batch.
        batch_size: at least 1.
        sampler: ``"shuffle"`` takes every image once; ``"class_balanced"`` draws with replacement, a class uniformly
            among those present, then an image of it.
        length: see :func:`epoch_length`.
        generator: the only source of randomness.
        steps: exactly so many full batches instead of what `length` says; ``"shuffle"`` then goes on from one order of
            all images to the next.

    Batch normalisation cannot train on one sample (methods.md 1.4): a trailing batch of one is dropped, unless it is
    the only one.
    """
    import torch

    if len(labels) == 0:
        return []
    draws = steps * batch_size if steps else epoch_length(labels, sampler, length)
    if sampler == "shuffle":
        orders = [torch.randperm(len(labels), generator=generator) for _ in range(-(-draws // len(labels)))]
        indices = torch.cat(orders)[:draws]
    else:
        indices = _draw_balanced(labels, draws, generator)
    batches = [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]
    lonely = len(batches) > 1 and batch_size > 1 and len(batches[-1]) == 1
    return batches[:-1] if lonely else batches


def _draw_balanced(labels: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    import torch
    from torch.utils.data import WeightedRandomSampler

    weight_n = labels.bincount().double().reciprocal()[labels]
    return torch.tensor(list(WeightedRandomSampler(weight_n, draws, replacement=True, generator=generator)))  # type: ignore[arg-type]
