"""FedTGP: the server trains its prototypes against those of the sites (Zhang et al., AAAI 2024)."""

from collections.abc import Collection
from typing import Literal, cast

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedproin.maths.class_means import class_means
from fedproin.maths.contrast import adaptive_margin, margin_contrast
from fedproin.methods.base import LARGEST_FEATURE, ExtraSpec, RoundContext, ServerState, Tensors, TrainingData, Update
from fedproin.methods.personal import MASK, PROTOS, PersonalPrototypes
from fedproin.models.classifiers import LogitClassifier
from fedproin.seeds import derive_seed
from fedproin.settings import STRICT, AtLeast1, NonNegative, Positive

TRAININGS = "trainings"  # how often the server has trained: its draws follow from that, also after a restart


@dataclass(frozen=True, config=STRICT)
class FedTgpOptions:
    """Options of the method.

    Attributes:
        weight: lambda, of the distance to the global prototypes.
        margin_limit: the paper's tau.
        margin_rule: `max_of_min` (published code) or `max_pair` (the paper's eq. 9).
        server_epochs: S, of the server's training in every round.
        server_batch: uploaded prototypes a step.
        server_rate: learning rate of the server's SGD, apart from the sites': with their 1e-4 it would hardly move.
        inference: by the nearest global `prototype`, or the site's own `head`.
    """

    name: Literal["fedtgp"] = "fedtgp"
    weight: NonNegative = 1.0
    margin_limit: NonNegative = 100.0
    margin_rule: Literal["max_of_min", "max_pair"] = "max_of_min"
    server_epochs: AtLeast1 = 100
    server_batch: AtLeast1 = 10
    server_rate: Positive = 0.01
    inference: Literal["prototype", "head"] = "prototype"


class TrainablePrototypes(nn.Module):
    """The server's model: an embedding [C, D] and two linear layers that make the global prototypes of it."""

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(classes, size))
        self.l1, self.l2 = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self) -> Tensor:
        """Global prototypes [C, D]."""
        proto_CD: Tensor = self.l2(torch.relu(self.l1(self.embedding)))
        return proto_CD


class FedTgp(PersonalPrototypes):
    """Site: cross-entropy + lambda MSE to the global prototypes; server: trains them with an adaptive margin."""

    options_class = FedTgpOptions

    def initial(self, model: nn.Module) -> ServerState:
        """Nothing to send yet; the server's model is drawn under a seed of its own."""
        size = cast(LogitClassifier, model).encoder.feature_size
        return ServerState({}, {**_copies(self._server_model(size)), TRAININGS: torch.tensor(0)})

    def uploads(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> Tensors:
        """Class means, and which classes the site has."""
        mean_CD, count_C = self.local_means(ctx, model, data)
        return {PROTOS: mean_CD, MASK: count_C > 0}

    def extras(self, model: nn.Module) -> dict[str, ExtraSpec]:
        """Class means float32 [C, D] and a mask bool [C]."""
        classes, size = len(self.settings.data.classes), cast(LogitClassifier, model).encoder.feature_size
        return {PROTOS: ExtraSpec((classes, size), "float32", LARGEST_FEATURE), MASK: ExtraSpec((classes,), "bool")}

    def merge(self, previous: ServerState, updates: Collection[Update]) -> ServerState:
        """Train the server's model on the uploaded prototypes; without any, everything stays as it was."""
        z_ND = torch.cat([update.extras[PROTOS][update.extras[MASK]] for update in updates])
        y_N = torch.cat([update.extras[MASK].nonzero().squeeze(1) for update in updates])
        if len(y_N) == 0:
            return previous
        model = self._server_model(z_ND.shape[1])
        model.load_state_dict({name: previous.private[name] for name in model.state_dict()})
        trainings = previous.private[TRAININGS] + 1
        self._train(model, z_ND, y_N, int(trainings))
        return ServerState({PROTOS: model().detach()}, {**_copies(model), TRAININGS: trainings})

    def _train(self, model: TrainablePrototypes, z_ND: Tensor, y_N: Tensor, number: int) -> None:
        options = self.options
        mean_CD, count_C = class_means(z_ND, y_N, len(self.settings.data.classes))
        margin = adaptive_margin(mean_CD[count_C > 0], options.margin_limit, options.margin_rule)
        generator = torch.Generator().manual_seed(derive_seed(self.settings.seed, number, "server training"))
        optimizer = torch.optim.SGD(model.parameters(), lr=options.server_rate)
        for _ in range(options.server_epochs):
            order = torch.randperm(len(y_N), generator=generator)
            for start in range(0, len(order), options.server_batch):
                rows = order[start : start + options.server_batch]
                optimizer.zero_grad(set_to_none=True)
                margin_contrast(z_ND[rows], y_N[rows], model(), margin).backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    def _server_model(self, size: int) -> TrainablePrototypes:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.settings.seed, "server model"))
            return TrainablePrototypes(len(self.settings.data.classes), size)


def _copies(model: nn.Module) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
