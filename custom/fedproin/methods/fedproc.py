"""FedProc: FedAvg with a contrast to global class centres, which fades out (Mu et al., FGCS 2023)."""

from collections.abc import Collection
from typing import Literal, cast

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedproin.maths.class_means import class_sums
from fedproin.maths.contrast import centre_contrast
from fedproin.methods.base import ExtraSpec, LossTerms, RoundContext, ServerState, Tensors, TrainingData, Update
from fedproin.methods.passes import clean_features
from fedproin.methods.softmax import SoftmaxMethod
from fedproin.models.classifiers import ProjectionClassifier
from fedproin.settings import STRICT, AtLeast1

CENTRES, MASK = "centres", "mask"
SUM, COUNT = "class_sum", "class_count"


@dataclass(frozen=True, config=STRICT)
class FedProcOptions:
    """Options of the method.

    Attributes:
        projection: size of the projection.
        schedule_rounds: rounds after which only the cross-entropy is left; by default those of the job. Published code
            has the constant 100, with which a shorter run never gets there.
    """

    name: Literal["fedproc"] = "fedproc"
    projection: AtLeast1 = 256
    schedule_rounds: AtLeast1 | None = None


class FedProc(SoftmaxMethod):
    """Site: (1 - t/T) contrast to the centres + t/T cross-entropy; server: FedAvg, and centres from the sites' sums.

    The centres come from the sites' models after training, so the first round has none and is cross-entropy alone; so
    is the loss of a sample whose class has no centre yet.
    """

    options_class = FedProcOptions

    def build(self, site: str | None = None, pretrained: bool = False) -> ProjectionClassifier:
        """The job's encoder with a projection of unit length and a linear layer on it."""
        encoder, classes = self.build_encoder(pretrained), len(self.settings.data.classes)
        return ProjectionClassifier(encoder, classes, self.options.projection, normalise=True)

    def task_weight(self, round_: int) -> float:
        """Weight of the cross-entropy in a round, from 0 to 1."""
        return min(1.0, round_ / (self.options.schedule_rounds or self.settings.federation.rounds))

    def begin_round(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> None:
        """Take the centres, if there are any."""
        if CENTRES in ctx.message:
            ctx.constants.update({name: ctx.message[name].to(ctx.device) for name in (CENTRES, MASK)})

    def loss(self, ctx: RoundContext, model: nn.Module, images: Tensor, labels: Tensor) -> LossTerms:
        """Cross-entropy and contrast by the schedule."""
        model = cast(ProjectionClassifier, model)
        z_BD = ctx.encode(model.encoder, images)
        task_B = nn.functional.cross_entropy(model.logits(z_BD), labels, reduction="none")
        if CENTRES not in ctx.constants:
            return LossTerms.weighted({"task": task_B.mean()}, {})
        mask_C, share = ctx.constants[MASK], self.task_weight(ctx.round)
        contrast_B = centre_contrast(model.project(z_BD), labels, ctx.constants[CENTRES], mask_C)
        total_B = torch.where(mask_C[labels], (1 - share) * contrast_B + share * task_B, task_B)
        return LossTerms(total_B.mean(), {"task": task_B.mean(), "contrast": contrast_B.mean()})

    def uploads(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> Tensors:
        """Sums of the projections of each class, and counts."""
        model = cast(ProjectionClassifier, model)
        z_ND, y_N = clean_features(ctx, model, data)
        with torch.no_grad():
            q_NP = model.project(z_ND.to(ctx.device)).cpu()
        return dict(zip((SUM, COUNT), class_sums(q_NP, y_N, len(self.settings.data.classes)), strict=True))

    def extras(self, model: nn.Module) -> dict[str, ExtraSpec]:
        """Sums float64 [C, P] of vectors of unit length, and counts int64 [C]."""
        classes = len(self.settings.data.classes)
        return {SUM: ExtraSpec((classes, self.options.projection), "float64"), COUNT: ExtraSpec((classes,))}

    def merge_uploads(self, previous: ServerState, updates: Collection[Update]) -> Tensors:
        """The centres, and which classes have one; a class that no participant has keeps its own."""
        sum_CP = torch.stack([update.extras[SUM] for update in updates]).sum(dim=0)
        count_C = torch.stack([update.extras[COUNT] for update in updates]).sum(dim=0)
        mean_CP = (sum_CP / count_C.clamp_min(1).unsqueeze(1)).float()
        before_CP = previous.public.get(CENTRES, torch.zeros_like(mean_CP))
        known_C = previous.public.get(MASK, torch.tensor(False)) | (count_C > 0)
        return {CENTRES: torch.where((count_C > 0).unsqueeze(1), mean_CP, before_CP), MASK: known_C}
