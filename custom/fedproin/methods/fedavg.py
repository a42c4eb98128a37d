"""FedAvg: local cross-entropy, average of the models by images (McMahan et al., AISTATS 2017)."""

from typing import Literal, cast

from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedproin.maths.drift import feature_divergence
from fedproin.methods.base import RoundContext, Tensors, TrainingData
from fedproin.methods.passes import frozen_copy, reference_features
from fedproin.methods.softmax import SoftmaxMethod
from fedproin.models.classifiers import LinearClassifier
from fedproin.settings import STRICT, NonNegative


@dataclass(frozen=True, config=STRICT)
class FedAvgOptions:
    """Options of the method.

    Attributes:
        lambda_fdl: weight of FedProIn's feature divergence loss (its equation 2), as FedProIn uses it by default; 0 is
            FedAvg. It tells what that loss does without prototypes.
    """

    name: Literal["fedavg"] = "fedavg"
    lambda_fdl: NonNegative = 0.0


class FedAvg(SoftmaxMethod):
    """Encoder and linear head, averaged over the participants with their numbers of images as weights."""

    options_class = FedAvgOptions

    def weights(self) -> dict[str, float]:
        """The factor lambda_FDL."""
        return {"fdl": self.options.lambda_fdl}

    def begin_round(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> None:
        """Freeze the encoder that the round begins with."""
        if self.options.lambda_fdl:
            ctx.frozen["encoder"] = frozen_copy(cast(LinearClassifier, model).encoder)

    def own_terms(self, ctx: RoundContext, model: nn.Module, z_BD: Tensor, images: Tensor, labels: Tensor) -> Tensors:
        """The divergence of the features from those of the frozen encoder."""
        if not self.options.lambda_fdl:
            return {}
        reference_BD = reference_features(ctx, ctx.frozen["encoder"], images, batch_statistics=model.training)
        return {"fdl": feature_divergence(z_BD, reference_BD)}
