"""FedProIn: learnable prototypes, feature divergence (FDL), prototype contrast (PCL), influence-weighted merging (NIA).

Source: "Mitigating Client Drift for Learnable Prototypes in Federated Medical Imaging", equations 1 to 7.
B batch, C classes, M prototypes a class, D feature size, K sites.
"""

from collections.abc import Collection
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedproin.maths import drift, prototypes
from fedproin.maths.averaging import WeightedMean
from fedproin.methods.base import (
    ExtraSpec,
    LossTerms,
    Method,
    RoundContext,
    ServerState,
    SiteResult,
    TrainingData,
    Update,
)
from fedproin.methods.passes import clean_features, frozen_copy, reference_features
from fedproin.models.classifiers import PrototypeClassifier
from fedproin.settings import STRICT, AtLeast1, NonNegative, Positive

PAPER_WEIGHTS = {"mce": (1.0, 0.1), "mcl": (0.1, 0.01), "gmcl": (0.1, 0.01)}  # lambda_FDL, lambda_PCL
PROTOTYPES = "prototypes"
INFLUENCE = "influence"


@dataclass(frozen=True, config=STRICT)
class FedProInOptions:
    """Options of the method; where paper and published code disagree, the default is what this package recommends.

    Attributes:
        prototypes_per_class: M.
        prototype_rate: factor of the learning rate, for the prototypes alone.
        prototype_init: `normal` draws N(0, 1); `feature_mean` takes cluster centres of the first sites' features.
        task_loss: `mce` (MCEL), `mcl` (MCL) or `gmcl`, of convolutional prototype learning.
        distance: between feature and prototype inside the task loss; squared distances need a much smaller slope.
        slope, margin: of the sigmoid of MCE, of the hinge of MCL and GMCL.
        lambda_fdl, lambda_pcl: weights in equation 4; by default 1.0 and 0.1 with MCE, else 0.1 and 0.01.
        fdl_reduction: `mean` over batch and features (the weights belong to it), or `sum` over features.
        fdl_reference_bn: the frozen encoder normalises by `batch` statistics (authors' code) or its `running` ones.
        pcl_reduction: one hinge `per_prototype`, or one over the whole `tensor`.
        pcl_margin: of the prototype contrast.
        prev_max_age: rounds after which a site's previous prototypes count as absent; by default never.
        influence_scope: nearest among the prototypes of the true class, or counted only when nearest of `all`.
        influence_source: presentations of the `last_epoch` or `all_epochs`, or one clean pass over the `dataset`.
        prototype_merge: `nia` keeps unused prototypes; `nia_literal` (eq. 7 as printed) and `fedavg` are for ablation.
    """

    name: Literal["fedproin"] = "fedproin"
    prototypes_per_class: AtLeast1 = 1
    prototype_rate: Positive = 1.0
    prototype_init: Literal["normal", "feature_mean"] = "normal"
    task_loss: Literal["mce", "mcl", "gmcl"] = "mce"
    distance: Literal["euclidean", "squared"] = "euclidean"
    slope: Positive = 1.0
    margin: NonNegative = 0.5
    lambda_fdl: NonNegative | None = None
    lambda_pcl: NonNegative | None = None
    fdl_reduction: Literal["mean", "sum"] = "mean"
    fdl_reference_bn: Literal["batch", "running"] = "batch"
    pcl_reduction: Literal["per_prototype", "tensor"] = "per_prototype"
    pcl_margin: Annotated[float, Field(ge=0, le=2)] = 0.5
    prev_max_age: AtLeast1 | None = None
    influence_scope: Literal["true_class", "all"] = "true_class"
    influence_source: Literal["last_epoch", "all_epochs", "dataset"] = "last_epoch"
    prototype_merge: Literal["nia", "nia_literal", "fedavg"] = "nia"

    def __post_init__(self) -> None:
        for name, default in zip(("lambda_fdl", "lambda_pcl"), PAPER_WEIGHTS[self.task_loss], strict=True):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)


class FedProIn(Method):
    """Site: task loss + lambda_FDL FDL + lambda_PCL PCL; server: FedAvg of the encoder, NIA of the prototypes."""

    options_class = FedProInOptions

    def build(self, site: str | None = None, pretrained: bool = False) -> PrototypeClassifier:
        """A prototype classifier on the job's encoder; prototypes are drawn N(0, 1)."""
        classes, per_class = len(self.settings.data.classes), self.options.prototypes_per_class
        return PrototypeClassifier(self.build_encoder(pretrained), classes, per_class)

    def begin_round(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> None:
        """Freeze what this round is compared with, and start counting."""
        model = cast(PrototypeClassifier, model)
        if ctx.round == 0 and self.options.prototype_init == "feature_mean":
            self._start_at_features(ctx, model, data)
        if self.options.lambda_fdl:
            ctx.frozen["encoder"] = frozen_copy(model.encoder)
        previous = ctx.remembered(self.options.prev_max_age).get(PROTOTYPES)
        if self.options.lambda_pcl and previous is not None:
            ctx.constants["global"] = model.prototypes.detach().clone()
            ctx.constants["previous"] = previous.to(ctx.device)
        ctx.counters[INFLUENCE] = torch.zeros(model.prototypes.shape[:2], dtype=torch.int64, device=ctx.device)

    def parameter_groups(self, model: nn.Module, rate: float) -> list[dict[str, Any]]:
        """The prototypes, with a rate of their own, and the encoder."""
        model = cast(PrototypeClassifier, model)
        return [
            {"params": [model.prototypes], "lr": rate * self.options.prototype_rate},
            {"params": list(model.encoder.parameters()), "lr": rate},
        ]

    def loss(self, ctx: RoundContext, model: nn.Module, images: Tensor, labels: Tensor) -> LossTerms:
        """Equation 4; influence is counted on the features before the optimizer's step."""
        model, options = cast(PrototypeClassifier, model), self.options
        z_BD = ctx.encode(model.encoder, images)
        dist_BCM = prototypes.prototype_distances(z_BD, model.prototypes)
        if options.influence_source == "all_epochs" or (options.influence_source == "last_epoch" and ctx.last_epoch):
            self._count(ctx, dist_BCM, labels)
        terms = {"task": self._task_loss(dist_BCM, labels)}
        total = terms["task"]
        if "encoder" in ctx.frozen:
            by_batch = model.training and options.fdl_reference_bn == "batch"
            reference_BD = reference_features(ctx, ctx.frozen["encoder"], images, by_batch)
            terms["fdl"] = drift.feature_divergence(z_BD, reference_BD, options.fdl_reduction)
            total = total + cast(float, options.lambda_fdl) * terms["fdl"]
        if "previous" in ctx.constants:
            terms["pcl"] = drift.prototype_contrast(
                model.prototypes,
                ctx.constants["global"],
                ctx.constants["previous"],
                options.pcl_margin,
                options.pcl_reduction,
            )
            total = total + cast(float, options.lambda_pcl) * terms["pcl"]
        return LossTerms(total, terms)

    def end_round(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> SiteResult:
        """Everything but local BatchNorm goes to the server, with the influence; the prototypes are remembered."""
        model = cast(PrototypeClassifier, model)
        if self.options.influence_source == "dataset":
            model.eval()
            with torch.no_grad():
                for images, labels in data.clean_batches():
                    z_BD = ctx.encode(model.encoder, images)
                    self._count(ctx, prototypes.prototype_distances(z_BD, model.prototypes), labels)
        state = model.state_dict()
        return SiteResult(
            shared={name: state[name] for name in self.shared_names(model)},
            extras={INFLUENCE: ctx.counters[INFLUENCE]},
            remember={name: state[name] for name in {PROTOTYPES, *self.local_names(model)}},
        )

    def extras(self, model: nn.Module) -> dict[str, ExtraSpec]:
        """The influence matrix [C, M]."""
        return {INFLUENCE: ExtraSpec((len(self.settings.data.classes), self.options.prototypes_per_class))}

    def merge(self, previous: ServerState, updates: Collection[Update]) -> ServerState:
        """Equation 5 for the encoder, equation 7 for the prototypes."""
        mean = WeightedMean(self.settings.training.bn_variance)
        by_nia = self.options.prototype_merge != "fedavg"
        for update in updates:
            averaged = {k: v for k, v in update.shared.items() if not (by_nia and k == PROTOTYPES)}
            mean.add(averaged, update.samples)
        public = {**previous.public, **mean.result()}
        if by_nia:
            proto_KCMD = torch.stack([update.shared[PROTOTYPES] for update in updates])
            influence_KCM = torch.stack([update.extras[INFLUENCE] for update in updates])
            if self.options.prototype_merge == "nia":
                public[PROTOTYPES] = prototypes.merge_prototypes(proto_KCMD, influence_KCM, previous.public[PROTOTYPES])
            else:
                public[PROTOTYPES] = prototypes.merge_prototypes_literal(proto_KCMD, influence_KCM)
        return ServerState(public)

    def scores(self, ctx: RoundContext, model: nn.Module, images: Tensor) -> Tensor:
        """Minus the distance to the nearest prototype of each class; with MCE times its slope, so its logits."""
        model = cast(PrototypeClassifier, model)
        dist_BCM = prototypes.prototype_distances(ctx.encode(model.encoder, images), model.prototypes)
        slope: float = self.options.slope if self.options.task_loss == "mce" else 1.0
        return -slope * prototypes.class_distances(self._scaled(dist_BCM))

    def _scaled(self, dist_BCM: Tensor) -> Tensor:
        return dist_BCM**2 if self.options.distance == "squared" else dist_BCM

    def _task_loss(self, dist_BCM: Tensor, labels: Tensor) -> Tensor:
        options, dist_BCM = self.options, self._scaled(dist_BCM)
        if options.task_loss == "mce":
            return prototypes.mce_loss(dist_BCM, labels, options.slope)
        margin_loss = prototypes.mcl_loss if options.task_loss == "mcl" else prototypes.gmcl_loss
        return margin_loss(dist_BCM, labels, options.margin)

    def _count(self, ctx: RoundContext, dist_BCM: Tensor, labels: Tensor) -> None:
        counts = prototypes.influence_counts(dist_BCM.detach(), labels, self.options.influence_scope)
        ctx.counters[INFLUENCE] += counts

    def _start_at_features(self, ctx: RoundContext, model: PrototypeClassifier, data: TrainingData) -> None:
        features, labels = clean_features(ctx, model, data)
        with torch.no_grad():
            for label in sorted(set(labels.tolist())):
                centres = _cluster_centres(features[labels == label], model.prototypes.shape[1])
                model.prototypes[label, : len(centres)] = centres.to(ctx.device)


def _cluster_centres(features: Tensor, count: int) -> Tensor:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # its sums differ in the last bits with the number of cores
        clusters = KMeans(min(count, len(features)), n_init=1, random_state=0).fit(features.double().numpy())
    return torch.as_tensor(clusters.cluster_centers_, dtype=features.dtype)
