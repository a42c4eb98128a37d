"""What several methods do with a model outside of training: freeze a copy, use it, look at clean images."""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedproin.methods.base import RoundContext, TrainingData
from fedproin.models.classifiers import Classifier

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def frozen_copy(model: AnyModule) -> AnyModule:
    """A copy without gradients whose BatchNorm buffers never move: momentum 0 keeps them, in training mode too."""
    frozen = copy.deepcopy(model).requires_grad_(False)
    for layer in frozen.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.momentum = 0.0
    return frozen


def reference_features(ctx: RoundContext, encoder: nn.Module, images: Tensor, batch_statistics: bool) -> Tensor:
    """Features [B, D] of a frozen encoder, normalised by the batch's or by its running statistics; no gradients."""
    encoder.train(batch_statistics)
    with torch.no_grad():
        return ctx.encode(encoder, images)


def clean_features(ctx: RoundContext, model: Classifier, data: TrainingData) -> tuple[Tensor, Tensor]:
    """Encoder features [N, D] and labels int64 [N] of all images, not augmented, in evaluation mode; on the CPU."""
    model.eval()
    with torch.no_grad():
        pairs = [(ctx.encode(model.encoder, images).cpu(), labels.cpu()) for images, labels in data.clean_batches()]
    return torch.cat([z for z, _ in pairs]), torch.cat([y for _, y in pairs])
