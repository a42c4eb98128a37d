"""Scoring of a model: counts of (true, predicted), from which every score is computed later, over any set of sites."""

import torch
from torch import Tensor, nn

from fedproin.methods.base import Method, RoundContext
from fedproin.training.batches import Part


def log_frequencies(labels: Tensor, classes: int) -> Tensor:
    """Logarithm of how frequent each class is, [C]; every class counts once more, so that none is impossible."""
    return ((torch.bincount(labels, minlength=classes) + 1) / (len(labels) + classes)).log()


def confusion(
    method: Method, model: nn.Module, part: Part, ctx: RoundContext, log_prior_C: Tensor | None = None
) -> Tensor:
    """Confusion counts int64 [C, C] of a part, rows are true classes; all zero for an empty part.

    Args:
        log_prior_C: of the classes where the model is used, for one that was trained as if all were equally frequent
            (Saerens et al. 2002), on the model's device; by default their scores stay as they are.
    """
    classes = len(ctx.settings.data.classes)
    counts = torch.zeros(classes * classes, dtype=torch.int64, device=ctx.device)
    model.eval()
    with torch.no_grad():
        for images, labels in part.clean_batches():
            scores = method.scores(ctx, model, images)
            if log_prior_C is not None:
                scores = scores + log_prior_C
            counts += torch.bincount(labels * classes + scores.argmax(dim=1), minlength=classes * classes)
    return counts.reshape(classes, classes).cpu()
