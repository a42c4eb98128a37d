"""Scoring of a model: counts of (true, predicted), from which every score is computed later, over any set of sites."""

import torch
from torch import Tensor, nn

from fedproin.methods.base import Method, RoundContext
from fedproin.training.batches import Part


def confusion(method: Method, model: nn.Module, part: Part, ctx: RoundContext) -> Tensor:
    """Confusion counts int64 [C, C] of a part, rows are true classes; all zero for an empty part."""
    classes = len(ctx.settings.data.classes)
    counts = torch.zeros(classes * classes, dtype=torch.int64, device=ctx.device)
    model.eval()
    with torch.no_grad():
        for images, labels in part.clean_batches():
            counts += torch.bincount(labels * classes + method.predict(ctx, model, images), minlength=classes * classes)
    return counts.reshape(classes, classes).cpu()
