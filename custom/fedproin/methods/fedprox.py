"""FedProx: FedAvg with a proximal term (Li et al., MLSys 2020)."""

from typing import Literal

from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedproin.maths.drift import proximal_distance
from fedproin.methods.base import RoundContext, Tensors, TrainingData
from fedproin.methods.softmax import SoftmaxMethod
from fedproin.settings import STRICT, NonNegative


@dataclass(frozen=True, config=STRICT)
class FedProxOptions:
    """Options of the method.

    Attributes:
        mu: weight of the proximal term; 0 is FedAvg. Its authors tune it over 0.001 to 1. The term is part of the loss,
            so Adam rescales its gradient together with the rest; published code that adds it to the step assumes SGD.
    """

    name: Literal["fedprox"] = "fedprox"
    mu: NonNegative = 0.01


class FedProx(SoftmaxMethod):
    """Cross-entropy + mu/2 ||w - w_global||^2 over the trained tensors, BatchNorm's buffers excluded."""

    options_class = FedProxOptions

    def weights(self) -> dict[str, float]:
        """The factor mu."""
        return {"proximal": self.options.mu}

    def begin_round(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> None:
        """Keep the parameters that the round begins with."""
        if self.options.mu:
            ctx.constants.update({name: tensor.detach().clone() for name, tensor in model.named_parameters()})

    def own_terms(self, ctx: RoundContext, model: nn.Module, z_BD: Tensor, images: Tensor, labels: Tensor) -> Tensors:
        """Half the squared distance to those parameters."""
        if not self.options.mu:
            return {}
        own = dict(model.named_parameters())
        return {"proximal": proximal_distance(own.values(), (ctx.constants[name] for name in own))}
