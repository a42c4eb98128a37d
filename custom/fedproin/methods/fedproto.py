"""FedProto: only class prototypes travel (Tan et al., AAAI 2022)."""

from collections.abc import Collection
from typing import Literal, cast

import torch
from pydantic.dataclasses import dataclass
from torch import nn

from fedproin.maths.class_means import merge_class_means
from fedproin.methods.base import LARGEST_FEATURE, ExtraSpec, RoundContext, ServerState, Tensors, TrainingData, Update
from fedproin.methods.personal import MASK, PROTOS, PersonalPrototypes
from fedproin.models.classifiers import LogitClassifier
from fedproin.settings import STRICT, NonNegative

COUNT = "class_count"


@dataclass(frozen=True, config=STRICT)
class FedProtoOptions:
    """Options of the method.

    Attributes:
        weight: lambda, of the distance to the global prototypes.
        aggregation: weights of the sites in a prototype: by `count` of images (for label skew), `uniform` (all
            published code), or `paper_literal`, which shrinks prototypes and is for comparison only.
        inference: by the nearest global `prototype`, or the site's own `head`.
    """

    name: Literal["fedproto"] = "fedproto"
    weight: NonNegative = 1.0
    aggregation: Literal["count", "uniform", "paper_literal"] = "count"
    inference: Literal["prototype", "head"] = "prototype"


class FedProto(PersonalPrototypes):
    """Site: cross-entropy + lambda MSE to the global prototypes; server: mean of the sites' class means."""

    options_class = FedProtoOptions

    def uploads(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> Tensors:
        """Class means and counts."""
        mean_CD, count_C = self.local_means(ctx, model, data)
        return {PROTOS: mean_CD, COUNT: count_C}

    def extras(self, model: nn.Module) -> dict[str, ExtraSpec]:
        """Class means float32 [C, D] and counts int64 [C]."""
        classes, size = len(self.settings.data.classes), cast(LogitClassifier, model).encoder.feature_size
        return {PROTOS: ExtraSpec((classes, size), "float32", LARGEST_FEATURE), COUNT: ExtraSpec((classes,))}

    def merge_uploads(self, previous: ServerState, updates: Collection[Update]) -> Tensors:
        """The global prototypes, and which classes have one; a class that nobody reported keeps its own."""
        mean_KCD = torch.stack([update.extras[PROTOS] for update in updates])
        count_KC = torch.stack([update.extras[COUNT] for update in updates])
        before_CD = previous.public.get(PROTOS, torch.zeros_like(mean_KCD[0]))
        known_C = previous.public.get(MASK, torch.tensor(False)) | (count_KC > 0).any(dim=0)
        return {PROTOS: merge_class_means(mean_KCD, count_KC, before_CD, self.options.aggregation), MASK: known_C}
