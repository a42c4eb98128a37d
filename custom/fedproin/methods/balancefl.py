"""BalanceFL: local updates as if the classes were balanced (Shuai et al., IPSN 2022)."""

from typing import Literal, cast

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedproin.maths.balance import absent_distillation, present_cross_entropy, present_entropy, within_class_noise
from fedproin.methods.base import LossTerms, RoundContext, TrainingData
from fedproin.methods.passes import clean_features, frozen_copy
from fedproin.methods.softmax import SoftmaxMethod
from fedproin.models.classifiers import LinearClassifier
from fedproin.settings import STRICT, AtLeast1, NonNegative, Positive


@dataclass(frozen=True, config=STRICT)
class BalanceFlOptions:
    """Options of the method. It belongs with `sampler` class_balanced and `epoch_length` dataset.

    Attributes:
        weight: lambda, of the knowledge inheritance.
        temperature: of the knowledge inheritance.
        entropy_weight: of the smooth regularisation.
        entropy_reduction: `sum` over the batch (published code), or `mean` times the batch size of the job, which does
            not weaken with a short last batch.
        class_scope: classes count as present if the `client` has them (the paper), or the `batch` (published code).
        scale: factor of the logits.
        noise_vectors: drawn in each round for the features of rare classes.
    """

    name: Literal["balancefl"] = "balancefl"
    weight: NonNegative = 1.0
    temperature: Positive = 2.0
    entropy_weight: NonNegative = 0.002
    entropy_reduction: Literal["sum", "mean"] = "sum"
    class_scope: Literal["client", "batch"] = "client"
    scale: Positive = 2.0
    noise_vectors: AtLeast1 = 500


class BalanceFl(SoftmaxMethod):
    """Cross-entropy among present classes on noisy features + lambda inheritance of absent ones - entropy; FedAvg.

    A feature gets noise with the covariance inside the site's classes, the more often, the rarer its class. The teacher
    of the absent classes is the received model, in evaluation mode: the published one is in training mode and changes.
    """

    options_class = BalanceFlOptions

    def build(self, site: str | None = None, pretrained: bool = False) -> LinearClassifier:
        """The job's encoder with a linear head without bias and with a factor."""
        encoder, classes = self.build_encoder(pretrained), len(self.settings.data.classes)
        return LinearClassifier(encoder, classes, bias=False, scale=self.options.scale)

    def weights(self) -> dict[str, float]:
        """Lambda, and the weight of the entropy, which is subtracted."""
        return {"inheritance": self.options.weight, "entropy": -self.options.entropy_weight}

    def begin_round(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> None:
        """Freeze the teacher, count the classes and draw the noise."""
        model, classes = cast(LinearClassifier, model), len(self.settings.data.classes)
        z_ND, y_N = clean_features(ctx, model, data)
        count_C = y_N.bincount(minlength=classes)
        noise_ND = within_class_noise(z_ND, y_N, self.options.noise_vectors, ctx.generator("noise"))
        constants = {"noise": noise_ND, "probability": 1 - count_C / count_C.max(), "present": count_C > 0}
        ctx.constants.update({name: tensor.to(ctx.device) for name, tensor in constants.items()})
        ctx.frozen["teacher"] = frozen_copy(model).eval()

    def loss(self, ctx: RoundContext, model: nn.Module, images: Tensor, labels: Tensor) -> LossTerms:
        """The three terms; only the cross-entropy sees noisy features."""
        model, teacher = cast(LinearClassifier, model), cast(LinearClassifier, ctx.frozen["teacher"])
        z_BD = ctx.encode(model.encoder, images)
        with torch.no_grad():
            teacher_BC = teacher.logits(ctx.encode(teacher.encoder, images))
        logits_BC, present_C = model.logits(z_BD), self._present(ctx, labels)
        entropy_B = present_entropy(logits_BC, present_C)
        by_mean = self.options.entropy_reduction == "mean"
        terms = {
            "task": present_cross_entropy(model.logits(z_BD + _noise(ctx, labels)), labels, present_C),
            "inheritance": absent_distillation(logits_BC, teacher_BC, ~present_C, self.options.temperature),
            "entropy": entropy_B.mean() * self.settings.training.batch_size if by_mean else entropy_B.sum(),
        }
        return LossTerms.weighted(terms, self.weights())

    def _present(self, ctx: RoundContext, labels: Tensor) -> Tensor:
        present_C = ctx.constants["present"]
        if self.options.class_scope == "client":
            return present_C
        return torch.zeros_like(present_C).scatter_(0, labels, torch.ones_like(labels, dtype=torch.bool))


def _noise(ctx: RoundContext, labels: Tensor) -> Tensor:
    """Noise [B, D] for the features of a batch, 0 where none falls."""
    noise_ND, generator = ctx.constants["noise"], ctx.generator("noise")
    chance_B = torch.rand(len(labels), generator=generator).to(ctx.device)
    picked_B = torch.randint(len(noise_ND), (len(labels),), generator=generator).to(ctx.device)
    return noise_ND[picked_B] * (chance_B < ctx.constants["probability"][labels]).unsqueeze(1)
