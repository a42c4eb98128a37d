"""The contract of a method: what it trains, what it sends, how the server merges it, how it predicts.

A method does not know FLARE, files or processes. Everything above calls these verbs and never asks which method runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from fedproin.settings import Settings

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Memory:
    """What a site kept of the last round in which it trained."""

    round: int
    tensors: Mapping[str, Tensor]


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
        memory: of the last round in which this site trained; none in its first one.
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
    epoch: int = 0
    frozen: dict[str, nn.Module] = field(default_factory=dict)
    constants: Tensors = field(default_factory=dict)
    counters: Tensors = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def last_epoch(self) -> bool:
        """Whether this is the last local epoch of the round."""
        return self.epoch == self.settings.training.local_epochs - 1

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
    """Shape and bounds that the server demands of an extra: non-negative integers, with a bounded sum."""

    shape: tuple[int, ...]


class Method(ABC):
    """A federated learning method, made from the settings of a job.

    Attributes:
        scored: `global` models are scored as the server merged them; `local` ones as each site keeps them.
        options: of the method, a frozen dataclass.
    """

    scored: Literal["global", "local"] = "global"
    options: Any

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @abstractmethod
    def build(self, site: str | None = None) -> nn.Module:
        """A new model; its random numbers come from torch's global generator."""

    def receive(self, model: nn.Module, message: Mapping[str, Tensor], memory: Memory | None) -> None:
        """Take the server's message into the model; by default all of it, and nothing else."""
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

    @abstractmethod
    def loss(self, ctx: RoundContext, model: nn.Module, images: Tensor, labels: Tensor) -> LossTerms:
        """The loss of one batch; it changes nothing but `ctx.counters`."""

    @abstractmethod
    def end_round(self, ctx: RoundContext, model: nn.Module, data: TrainingData) -> SiteResult:
        """What the server gets and what the site remembers."""

    def extras(self) -> Mapping[str, ExtraSpec]:
        """The extras that every update must carry; by default none."""
        return {}

    @abstractmethod
    def merge(self, previous: ServerState, updates: Collection[Update]) -> ServerState:
        """The next global state; `updates` are sorted by site, may be read twice, and none has zero samples."""

    @abstractmethod
    def predict(self, ctx: RoundContext, model: nn.Module, images: Tensor) -> Tensor:
        """Predicted class, int64 [B]."""
