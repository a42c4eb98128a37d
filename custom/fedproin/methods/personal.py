"""What the methods without a global model have in common: every site keeps its own, at most prototypes travel.

B batch, C classes, D feature size.
"""

from collections.abc import Collection
from typing import cast

import torch
from torch import Tensor, nn

from fedproin.maths.class_means import class_means, distances_to_means, regression_to_means
from fedproin.methods.base import RoundContext, ServerState, Tensors, TrainingData, Update
from fedproin.methods.passes import clean_features
from fedproin.methods.softmax import SoftmaxMethod
from fedproin.models.classifiers import LogitClassifier

PROTOS, MASK = "protos", "mask"


class PersonalMethod(SoftmaxMethod):
    """Each site goes on with the model that it had; all begin with the same one."""

    scored = "local"

    def local_names(self, model: nn.Module) -> set[str]:
        """All of the model."""
        return set(model.state_dict())

    def initial(self, model: nn.Module) -> ServerState:
        """Nothing."""
        return ServerState({})

    def merge(self, previous: ServerState, updates: Collection[Update]) -> ServerState:
        """What the method makes of the uploads; there is no model to merge."""
        return ServerState({**previous.public, **self.merge_uploads(previous, updates)}, previous.private)


class PersonalPrototypes(PersonalMethod):
    """Sites upload class means and hold their features close to the global prototypes [C, D] that they get back.

    The classifier is the nearest global prototype; while there is none it is the site's own head.
    """

    def weights(self) -> dict[str, float]:
        """The factor lambda."""
        return {"prototype": self.options.weight}

    def begin_round(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> None:
        """Take the global prototypes, if there are any."""
        if self.options.weight and PROTOS in ctx.message:
            ctx.constants[PROTOS], ctx.constants[MASK] = _received(ctx)

    def own_terms(self, ctx: RoundContext, model: nn.Module, z_BD: Tensor, images: Tensor, labels: Tensor) -> Tensors:
        """Squared difference to the prototype of the class; none before the server has sent any."""
        if PROTOS not in ctx.constants:
            return {}
        return {"prototype": regression_to_means(z_BD, labels, ctx.constants[PROTOS], ctx.constants[MASK])}

    def local_means(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> tuple[Tensor, Tensor]:
        """Class means [C, D] of the trained encoder's features of all images, and counts int64 [C]."""
        z_ND, y_N = clean_features(ctx, cast(LogitClassifier, model), data)
        return class_means(z_ND, y_N, len(self.settings.data.classes))

    def scores(self, ctx: RoundContext, model: nn.Module, images: Tensor) -> Tensor:
        """Minus the distance to the global prototype of each class."""
        if self.options.inference == "head" or PROTOS not in ctx.message:
            return super().scores(ctx, model, images)
        z_BD = ctx.encode(cast(LogitClassifier, model).encoder, images)
        return -distances_to_means(z_BD, *_received(ctx))


def _received(ctx: RoundContext) -> tuple[Tensor, Tensor]:
    """Global prototypes [C, D] and which classes have one, bool [C]; without a mask all have."""
    protos_CD = ctx.message[PROTOS]
    mask_C = ctx.message.get(MASK, torch.ones(len(protos_CD), dtype=torch.bool))
    return protos_CD.to(ctx.device), mask_C.to(ctx.device)
