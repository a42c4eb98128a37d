"""What the methods with logits have in common: cross-entropy, FedAvg of what is shared, logits.

B batch, C classes, D feature size.
"""

from collections.abc import Collection, Mapping
from typing import cast

from torch import Tensor, nn

from fedproin.maths.averaging import WeightedMean
from fedproin.methods.base import (
    LossTerms,
    Method,
    RoundContext,
    ServerState,
    SiteResult,
    Tensors,
    TrainingData,
    Update,
)
from fedproin.models.classifiers import LinearClassifier, LogitClassifier


class SoftmaxMethod(Method):
    """FedAvg with places for what a method adds: terms of the loss, uploads beside the model, and their merging."""

    def build(self, site: str | None = None, pretrained: bool = False) -> nn.Module:
        """The job's encoder with a linear head."""
        return LinearClassifier(self.build_encoder(pretrained), len(self.settings.data.classes))

    def weights(self) -> Mapping[str, float]:
        """Weights of the method's own terms; by default each counts once."""
        return {}

    def own_terms(self, ctx: RoundContext, model: nn.Module, z_BD: Tensor, images: Tensor, labels: Tensor) -> Tensors:
        """Terms beside the cross-entropy, before weighting; by default none."""
        return {}

    def loss(self, ctx: RoundContext, model: nn.Module, images: Tensor, labels: Tensor) -> LossTerms:
        """Cross-entropy and the method's own terms."""
        model = cast(LogitClassifier, model)
        z_BD = ctx.encode(model.encoder, images)
        task = nn.functional.cross_entropy(model.logits(z_BD), labels)
        return LossTerms.weighted({"task": task, **self.own_terms(ctx, model, z_BD, images, labels)}, self.weights())

    def uploads(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> Tensors:
        """What travels beside the model, from a pass over the data after training; by default nothing."""
        return {}

    def remembered_names(self, model: nn.Module) -> set[str]:
        """Names of the tensors that the site needs in its next round; by default those that never leave it."""
        return self.local_names(model)

    def end_round(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> SiteResult:
        """The shared tensors and the uploads."""
        state = model.state_dict()
        return SiteResult(
            shared={name: state[name] for name in self.shared_names(model)},
            extras=self.uploads(ctx, model, data),
            remember={name: state[name] for name in self.remembered_names(model)},
        )

    def site_weight(self, update: Update) -> float:
        """Weight of a site in the average; by default its number of training images."""
        return update.samples

    def merge_uploads(self, previous: ServerState, updates: Collection[Update]) -> Tensors:
        """What is sent beside the model, made from the uploads; by default nothing."""
        return {}

    def merge(self, previous: ServerState, updates: Collection[Update]) -> ServerState:
        """FedAvg over the participants, and what the method makes of the uploads."""
        mean = WeightedMean(self.settings.training.bn_variance)
        for update in updates:
            mean.add(update.shared, self.site_weight(update))
        return ServerState({**previous.public, **mean.result(), **self.merge_uploads(previous, updates)})

    def scores(self, ctx: RoundContext, model: nn.Module, images: Tensor) -> Tensor:
        """The logits."""
        model = cast(LogitClassifier, model)
        return model.logits(ctx.encode(model.encoder, images))
