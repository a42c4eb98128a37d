"""FedPLVM: FedAvg with clusters of each class's features, and a contrast to them (Wang et al., NeurIPS 2024)."""

from collections.abc import Collection
from importlib.util import find_spec
from typing import Annotated, Literal, cast

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedproin.errors import SettingsError
from fedproin.maths.class_means import class_means
from fedproin.maths.clusters import finch_means
from fedproin.maths.contrast import cluster_contrast, cluster_correction
from fedproin.methods.base import LARGEST_FEATURE, ExtraSpec, RoundContext, ServerState, Tensors, TrainingData, Update
from fedproin.methods.passes import clean_features
from fedproin.methods.softmax import SoftmaxMethod
from fedproin.models.classifiers import LogitClassifier
from fedproin.settings import STRICT, NonNegative, Positive, Settings

CLUSTERS, CLASSES = "clusters", "cluster_class"
CENTRES, MASK = "centres", "mask"


@dataclass(frozen=True, config=STRICT)
class FedPlvmOptions:
    """Options of the method; the defaults are those of its published code.

    Attributes:
        weight: lambda, of contrast and correction together.
        alpha: power of the cosine.
        tau: temperature of the contrast.
        site_weights: of the average: by `samples`, or `equal` as its authors have it for sites of the same classes.
    """

    name: Literal["fedplvm"] = "fedplvm"
    weight: NonNegative = 100.0
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.25
    tau: Positive = 0.07
    site_weights: Literal["samples", "equal"] = "samples"


class FedPlvm(SoftmaxMethod):
    """Site: cross-entropy + lambda (contrast + correction); FINCH clusters each class, at the sites and the server."""

    options_class = FedPlvmOptions

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        if find_spec("finch") is None:
            raise SettingsError("FedPLVM needs FINCH; run `pip install 'fedproin[clustering]'`.")

    def weights(self) -> dict[str, float]:
        """The factor lambda, of both terms."""
        return {"contrast": self.options.weight, "correction": self.options.weight}

    def site_weight(self, update: Update) -> float:
        """Images, or the same for all."""
        return update.samples if self.options.site_weights == "samples" else 1.0

    def begin_round(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> None:
        """Take the global clusters, if there are any, and the mean of those of each class."""
        if not self.options.weight or not len(ctx.message.get(CLUSTERS, ())):
            return
        clusters_ND, class_N = ctx.message[CLUSTERS], ctx.message[CLASSES]
        centre_CD, count_C = class_means(clusters_ND, class_N, len(self.settings.data.classes))
        received = {CLUSTERS: clusters_ND, CLASSES: class_N, CENTRES: centre_CD, MASK: count_C > 0}
        ctx.constants.update({name: tensor.to(ctx.device) for name, tensor in received.items()})

    def own_terms(self, ctx: RoundContext, model: nn.Module, z_BD: Tensor, images: Tensor, labels: Tensor) -> Tensors:
        """Contrast and correction; none before the server has sent clusters."""
        if CLUSTERS not in ctx.constants:
            return {}
        clusters_ND, class_N, centre_CD, mask_C = (ctx.constants[n] for n in (CLUSTERS, CLASSES, CENTRES, MASK))
        return {
            "contrast": cluster_contrast(z_BD, labels, clusters_ND, class_N, self.options.alpha, self.options.tau),
            "correction": cluster_correction(z_BD, labels, centre_CD, mask_C),
        }

    def uploads(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> Tensors:
        """The site's clusters and their classes."""
        return _clusters(*clean_features(ctx, cast(LogitClassifier, model), data))

    def extras(self, model: nn.Module) -> dict[str, ExtraSpec]:
        """Clusters float32 [n, D] and their classes int64 [n]; how many there are, the site's images decide."""
        classes, size = len(self.settings.data.classes), cast(LogitClassifier, model).encoder.feature_size
        return {
            CLUSTERS: ExtraSpec(("clusters", size), "float32", LARGEST_FEATURE),
            CLASSES: ExtraSpec(("clusters",), largest=classes - 1),
        }

    def merge_uploads(self, previous: ServerState, updates: Collection[Update]) -> Tensors:
        """Clusters of the participants' clusters; a class that none of them has keeps its own."""
        points_ND = torch.cat([update.extras[CLUSTERS] for update in updates])
        class_N = torch.cat([update.extras[CLASSES] for update in updates])
        merged = _clusters(points_ND, class_N)
        if CLUSTERS in previous.public:
            kept_N = ~torch.isin(previous.public[CLASSES], class_N)
            merged = {name: torch.cat([merged[name], previous.public[name][kept_N]]) for name in merged}
        return merged


def _clusters(points_ND: Tensor, class_N: Tensor) -> Tensors:
    """Coarsest FINCH clusters of each class, the classes in order."""
    means = {label: finch_means(points_ND[class_N == label]) for label in sorted(set(class_N.tolist()))}
    classes = [torch.full((len(mean_kD),), label) for label, mean_kD in means.items()]
    return {CLUSTERS: torch.cat([points_ND[:0], *means.values()]), CLASSES: torch.cat([class_N[:0], *classes])}
