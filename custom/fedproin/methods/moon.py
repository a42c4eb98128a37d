"""MOON: FedAvg with a contrast between the global and the site's previous model (Li et al., CVPR 2021)."""

from typing import Literal, cast

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedproin.maths.contrast import model_contrast
from fedproin.methods.base import RoundContext, Tensors, TrainingData
from fedproin.methods.passes import frozen_copy
from fedproin.methods.softmax import SoftmaxMethod
from fedproin.models.classifiers import ProjectionClassifier
from fedproin.settings import STRICT, AtLeast1, NonNegative, Positive


@dataclass(frozen=True, config=STRICT)
class MoonOptions:
    """Options of the method; the defaults are those of its published code.

    Attributes:
        mu: weight of the contrast; its authors tune it over 0.001 to 10.
        temperature: of the contrast.
        projection: size of the projection.
        head_on: the classifier sees the `projection` (published code) or the `features`.
        prev_max_age: rounds after which a site's previous model counts as absent; by default never.
    """

    name: Literal["moon"] = "moon"
    mu: NonNegative = 1.0
    temperature: Positive = 0.5
    projection: AtLeast1 = 256
    head_on: Literal["projection", "features"] = "projection"
    prev_max_age: AtLeast1 | None = None


class Moon(SoftmaxMethod):
    """Cross-entropy + mu times the model contrast; the term begins with the second round in which a site trains."""

    options_class = MoonOptions

    def build(self, site: str | None = None, pretrained: bool = False) -> ProjectionClassifier:
        """The job's encoder with a projection and a linear layer."""
        encoder, options = self.build_encoder(pretrained), self.options
        classes = len(self.settings.data.classes)
        return ProjectionClassifier(encoder, classes, options.projection, head_on=options.head_on)

    def weights(self) -> dict[str, float]:
        """The factor mu."""
        return {"contrast": self.options.mu}

    def remembered_names(self, model: nn.Module) -> set[str]:
        """The whole model: it is the previous one of this site's next round."""
        return set(model.state_dict())

    def begin_round(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> None:
        """Freeze the received model and the site's previous one, if there is one."""
        remembered, names = ctx.remembered(self.options.prev_max_age), model.state_dict().keys()
        if not self.options.mu or names - remembered.keys():
            return
        ctx.frozen["global"] = frozen_copy(model).eval()
        ctx.frozen["previous"] = frozen_copy(model).eval()
        ctx.frozen["previous"].load_state_dict({name: remembered[name] for name in names})

    def own_terms(self, ctx: RoundContext, model: nn.Module, z_BD: Tensor, images: Tensor, labels: Tensor) -> Tensors:
        """The contrast between projections; none without a previous model."""
        if not ctx.frozen:
            return {}
        q_BP = cast(ProjectionClassifier, model).project(z_BD)
        q_global_BP, q_previous_BP = (_projection(ctx, ctx.frozen[name], images) for name in ("global", "previous"))
        return {"contrast": model_contrast(q_BP, q_global_BP, [q_previous_BP], self.options.temperature)}


def _projection(ctx: RoundContext, model: nn.Module, images: Tensor) -> Tensor:
    model = cast(ProjectionClassifier, model)
    with torch.no_grad():
        return model.project(ctx.encode(model.encoder, images))
