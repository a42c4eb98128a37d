"""The contract of a method: what it trains, what it sends, how the server merges it, how it predicts.

A method does not know FLARE, files or processes. Everything above calls these verbs and never asks which method runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from fedproin.models.encoders import Encoder, build_encoder
from fedproin.seeds import derive_seed
from fedproin.settings import Settings, parse

Tensors = dict[str, Tensor]

LARGEST_FEATURE = 1e6  # of a vector of features that the server accepts


@dataclass(frozen=True)
class Memory:
    """What a site kept of the last round in which it trained.

    Attributes:
        table: digest of the table that it trained on.
    """

    round: int
    tensors: Mapping[str, Tensor]
    table: str = ""


class TrainingData(Protocol):
    """The training part of a site, as a method may see it."""

    def __len__(self) -> int:
        """Number of images."""

    def clean_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every image once, not augmented: images [B, 3, H, W], normalised, and labels int64 [B], on the device."""


@dataclass
class RoundContext:
    """One round at one site: where it stands, what the site remembers, and what the method counts.

    Attributes:
        site: its name; with seed and round it makes the seeds of all that is drawn here.
        memory: of the last round in which this site trained; none in its first one.
        message: what the server sent beside the model's own tensors; an entry is absent while there is nothing to send.
        frozen: models without gradients that the method compares with; it fills them in `begin_round`.
        constants: tensors that stay fixed during the round, likewise.
        counters: what is counted while training; zeroed by the method in `begin_round`.
        notes: codes of events worth a line in the log.
    """

    settings: Settings
    round: int
    device: torch.device
    autocast_dtype: torch.dtype | None = None
    memory: Memory | None = None
    site: str = ""
    message: Mapping[str, Tensor] = field(default_factory=dict)
    epoch: int = 0
    frozen: dict[str, nn.Module] = field(default_factory=dict)
    constants: Tensors = field(default_factory=dict)
    counters: Tensors = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _generators: dict[str, torch.Generator] = field(default_factory=dict)

    @property
    def last_epoch(self) -> bool:
        """Whether this is the last local epoch of the round."""
        return self.epoch == self.settings.training.local_epochs - 1

    def remembered(self, oldest: int | None = None) -> Mapping[str, Tensor]:
        """What the site kept; nothing in its first round, or when that was more than `oldest` rounds ago."""
        if self.memory is None or (oldest and self.round - self.memory.round > oldest):
            return {}
        return self.memory.tensors

    def generator(self, purpose: str) -> torch.Generator:
        """The round's source of random numbers for a purpose, on the CPU; its draws depend on no other purpose's."""
        if purpose not in self._generators:
            seed = derive_seed(self.settings.seed, self.site, self.round, purpose)
            self._generators[purpose] = torch.Generator().manual_seed(seed)
        return self._generators[purpose]

    def encode(self, encoder: nn.Module, images: Tensor) -> Tensor:
        """Features [B, D] in float32; only the encoder runs in the reduced precision, never a prototype term."""
        with self._autocast():
            features: Tensor = encoder(images)
        return features.float()

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, self.autocast_dtype) if self.autocast_dtype else nullcontext()


@dataclass(frozen=True)
class LossTerms:
    """The loss of a batch: its total with gradient, and its terms before weighting, for the curves."""

    total: Tensor
    terms: Tensors

    @classmethod
    def weighted(cls, terms: Tensors, weights: Mapping[str, float]) -> "LossTerms":
        """The terms and their weighted sum; a term without a weight counts once."""
        return cls(torch.stack([weights.get(name, 1.0) * term for name, term in terms.items()]).sum(), terms)


@dataclass(frozen=True)
class SiteResult:
    """What a method hands over at the end of a round.

    Attributes:
        shared: tensors for the server, named like the public ones it sent.
        extras: arrays beside them that no average may touch, such as counts.
        remember: what this site needs in its next round.
    """

    shared: Tensors
    extras: Tensors = field(default_factory=dict)
    remember: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """An accepted update of a site."""

    site: str
    samples: int
    shared: Mapping[str, Tensor]
    extras: Mapping[str, Tensor]


@dataclass(frozen=True)
class ServerState:
    """The global model: `public` is sent to the sites, `private` is only checkpointed."""

    public: Tensors
    private: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class ExtraSpec:
    """What the server demands of an extra: finite values, and integers that are not negative.

    Attributes:
        shape: a name in it stands for a length that the site chooses, at most its training images; extras that have the
            same name in their shapes have the same length there.
        largest: bound of the absolute values; without one they are counts, whose sum is at most the images shown.
    """

    shape: tuple[int | str, ...]
    dtype: Literal["int64", "float32", "float64", "bool"] = "int64"
    largest: float | None = None


class Method(ABC):
    """A federated learning method, made from the settings of a job.

    Attributes:
        options_class: settings class of the method's own options.
        scored: `global` models are scored as the server merged them; `local` ones as each site keeps them.
        trains_on: each site's `own` images; or the `union` of all, which exists in a simulation only, at one site.
        options: of the method, an instance of `options_class`.
    """

    options_class: ClassVar[type]
    scored: Literal["global", "local"] = "global"
    trains_on: Literal["own", "union"] = "own"
    options: Any

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.options = parse(self.options_class, settings.method, "method")

    @abstractmethod
    def build(self, site: str | None = None, pretrained: bool = False) -> nn.Module:
        """A new model; its random numbers come from torch's global generator.

        Args:
            site: whose model it is; none at the server.
            pretrained: begin with the settings' pretrained weights, if they want any. Where another model will be
                received they are not read.
        """

    def build_encoder(self, pretrained: bool) -> Encoder:
        """The job's encoder; every method draws it first, so all begin with the same one."""
        model = self.settings.model
        return build_encoder(
            model.backbone,
            width=model.width,
            image_size=self.settings.data.image_size,
            pretrained=model.pretrained and pretrained,
            weights=model.weights,
        )

    def initial(self, model: nn.Module) -> ServerState:
        """The state of the server before the first round; by default all of its model."""
        return ServerState({name: tensor.detach().clone() for name, tensor in model.state_dict().items()})

    def receive(self, model: nn.Module, message: Mapping[str, Tensor], memory: Memory | None) -> None:
        """Take the server's message into the model; by default all of it, and nothing else.

        What is local comes from the memory, or while there is none from the message: the caller puts first values in.
        """
        entries = dict(message)
        if memory is not None:
            entries.update({name: memory.tensors[name] for name in self.local_names(model) if name in memory.tensors})
        missing = set(model.state_dict()) - set(entries) - self.local_names(model)
        if missing:
            raise ValueError(f"the message lacks {len(missing)} tensors of the model")
        model.load_state_dict(entries, strict=False)

    def local_names(self, model: nn.Module) -> set[str]:
        """Names of state that never leaves the site; with `bn_mode = local` all of BatchNorm (FedBN)."""
        if self.settings.training.bn_mode == "average":
            return set()
        layers = [name for name, module in model.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        return {name for name in model.state_dict() if name.rpartition(".")[0] in layers}

    def shared_names(self, model: nn.Module) -> set[str]:
        """Names of the tensors that travel in an update; by default all that are not local."""
        return set(model.state_dict()) - self.local_names(model)

    def begin_round(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> None:  # noqa: B027  optional
        """Prepare the round; by default nothing."""

    def parameter_groups(self, model: nn.Module, rate: float) -> list[dict[str, Any]]:
        """Groups of parameters for the optimizer, each with its learning rate; by default one."""
        return [{"params": list(model.parameters()), "lr": rate}]

    @abstractmethod
    def loss(self, ctx: RoundContext, model: nn.Module, images: Tensor, labels: Tensor) -> LossTerms:
        """The loss of one batch; it changes nothing but `ctx.counters` and the generators of `ctx`."""

    @abstractmethod
    def end_round(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> SiteResult:
        """What the server gets and what the site remembers."""

    def extras(self, model: nn.Module) -> Mapping[str, ExtraSpec]:
        """The extras that every update must carry; by default none."""
        return {}

    @abstractmethod
    def merge(self, previous: ServerState, updates: Collection[Update]) -> ServerState:
        """The next global state; `updates` are sorted by site, may be read twice, and none has zero samples."""

    @abstractmethod
    def scores(self, ctx: RoundContext, model: nn.Module, images: Tensor) -> Tensor:
        """Scores [B, C] of the classes, logits where there are any; the largest is predicted, the first of equals."""


def initial_model(method: Method, site: str | None = None, pretrained: bool = False) -> nn.Module:
    """The model that the server and every site begin with: the same bits everywhere for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(method.settings.seed, "initial model"))
        return method.build(site, pretrained)
