"""What a job may set, with the only copy of each default: the values of the FedProIn paper and of its published code.

A job's `settings.json` names what differs from here. Unknown keys, wrong types and values out of range are refused with
one sentence; the options of a method are declared beside the method and parsed by the same `parse`.
"""

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fedproin.errors import NOT_JSON, SettingsError

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

AtLeast1 = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
ScoreName = Literal["accuracy", "f1_weighted", "f1_macro", "balanced_accuracy", "mcc"]


@dataclass(frozen=True, config=STRICT)
class DataSettings:
    """The images: which classes in which order, their size, and how a site's table is split.

    Attributes:
        path: a table, folder or ZIP; a site's own `local/fedproin.json` and FEDPROIN_DATA come first.
        classes: names in the order of the model's outputs; only a simulation may leave them to its table (sorted).
        image_size: side in pixels; pictures are resized to squares.
        mean, std: input statistics per channel in [0, 1]; by default those of the backbone's pretraining.
        split: shares of training, validation and test images.
        group: `table` keeps the pictures of a lesion or patient in one part; `none` splits picture by picture, which
            leaks (2,545 of HAM10000's pictures repeat a lesion): only for comparison with published numbers.
        synthetic: a provisioned site draws its own pictures (rehearsal); a simulation without data always does.
        synthetic_images: how many pictures the whole synthetic federation has.
    """

    path: str | None = None
    classes: tuple[str, ...] = ()
    image_size: Annotated[int, Field(ge=16, le=1024)] = 128
    mean: tuple[float, float, float] | None = None
    std: tuple[Positive, Positive, Positive] | None = None
    split: tuple[Share, Share, Share] = (0.7, 0.1, 0.2)
    group: Literal["table", "none"] = "table"
    synthetic: bool = False
    synthetic_images: Annotated[int, Field(ge=100)] = 2000

    def __post_init__(self) -> None:
        if abs(sum(self.split) - 1) > 1e-6:
            raise ValueError(f"split must add up to 1, got {sum(self.split):g}")
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("classes must be different from each other")
        if len(self.classes) == 1:
            raise ValueError("classes must name at least two classes, got one")


@dataclass(frozen=True, config=STRICT)
class PartitionSettings:
    """How a simulation deals one table over its sites.

    Attributes:
        kind: `auto` deals by the column `site` when it has as many values as there are sites, else by Dirichlet.
        alpha: concentration of the Dirichlet distribution; smaller is more skewed.
        minimum: fewest training images that each site must get.
        held_out: a value of the column `site` whose images are the test images, all of them and no others; with kind
            `site` the other values are the sites (leave one site out).
        seed: of split and partition; by default the job's seed.
    """

    kind: Literal["auto", "iid", "dirichlet", "site"] = "auto"
    alpha: Positive = 0.5
    minimum: AtLeast1 = 10
    held_out: str | None = None
    seed: int | None = None


@dataclass(frozen=True, config=STRICT)
class ModelSettings:
    """The encoder.

    Attributes:
        width: channels of ResNet-18's first stage; 64 is the standard network, feature size is eight times the width.
        pretrained: start from ImageNet weights.
        weights: local file with them; FEDPROIN_WEIGHTS and torchvision's download are the other ways.
    """

    backbone: Literal["resnet18", "efficientnet_lite0"] = "resnet18"
    width: Annotated[int, Field(ge=4, le=256)] = 64
    pretrained: bool = True
    weights: str | None = None


@dataclass(frozen=True, config=STRICT)
class TrainingSettings:
    """Local training of one round at one site.

    Attributes:
        optimizer_state: `reset` starts Adam afresh each round; `persist` keeps its moments at the site.
        sampler: `class_balanced` draws classes uniformly, with replacement; `shuffle` takes each image once an epoch.
        epoch_length: draws of a balanced epoch: `max_times_present` (largest class times classes present, the
            authors' code) or `dataset` (as many as there are images).
        steps_per_epoch: full batches of every epoch, whatever the sampler and the site's size, so that all methods and
            sites make the same number of optimizer steps; by default as many as `epoch_length` makes.
        augmentation: `adaptive` augments a class the more, the rarer it is (paper); `uniform` all classes as often as
            `adaptive` does in the mean of the classes, so that traces of it do not tell the class; `none` not at all.
        flip_probability: of flips, sharpness and autocontrast inside the augmentation; by default the class's own.
        bn_mode: `average` treats BatchNorm as everything else; `local` keeps its entries at the site (FedBN).
        bn_variance: how running variances are merged: `average`, or `pooled` with the spread of the means.
        precision: `auto` is float32 on a CPU and bfloat16 on a GPU; it concerns the encoder only.
        threads: of the CPU; a fixed number, since it changes the last bits of a sum.
    """

    local_epochs: AtLeast1 = 5
    batch_size: AtLeast1 = 128
    learning_rate: Positive = 1e-4
    optimizer_state: Literal["reset", "persist"] = "reset"
    sampler: Literal["class_balanced", "shuffle"] = "class_balanced"
    epoch_length: Literal["max_times_present", "dataset"] = "max_times_present"
    steps_per_epoch: AtLeast1 | None = None
    augmentation: Literal["adaptive", "uniform", "none"] = "adaptive"
    flip_probability: Annotated[float, Field(ge=0, le=1)] | None = None
    bn_mode: Literal["average", "local"] = "average"
    bn_variance: Literal["average", "pooled"] = "average"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: AtLeast1 = 1


@dataclass(frozen=True, config=STRICT)
class FederationSettings:
    """Rounds and participation.

    Attributes:
        participation: share of the sites that train in a round; drawn from (seed, round).
        quorum: fewest accepted updates for a round to count; with less the model stays as it is.
        deadline_seconds: when a round closes without the sites that are late; none by default, never in a simulation.
        validate_every: the received global model is scored on all sites in every such round, and after the last one.
        best_score: validation score that picks the best model.
        local_scores: what the models that sites keep (SOLO, FedProto, FedTGP) are scored on: the parts of all sites
            (`pooled_full`, simulations only) or each site's own (`slices`); `auto` is the first where it can be had.
        prior_correction: add the logarithms of the class frequencies to the scores of the classes before the largest is
            taken, since `class_balanced` has trained as if all were equally frequent. They are those of the training
            images of the sites that are scored. Meant for scores that are logits; other distances have no scale.
        max_step: largest norm of a site's step, relative to 1 + the norm of the global model; larger ones are refused.
    """

    rounds: AtLeast1 = 50
    participation: Share = 0.5
    quorum: AtLeast1 = 1
    deadline_seconds: Positive | None = None
    validate_every: AtLeast1 = 1
    best_score: ScoreName = "mcc"
    local_scores: Literal["auto", "pooled_full", "slices"] = "auto"
    prior_correction: bool = False
    max_step: Positive = 10.0


@dataclass(frozen=True, config=STRICT)
class Settings:
    """All settings of a job; `method` holds the method's name and its own options."""

    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "fedproin"
    seed: Annotated[int, Field(ge=0)] = 0
    data: DataSettings = DataSettings()
    partition: PartitionSettings = PartitionSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    federation: FederationSettings = FederationSettings()
    method: dict[str, Any] = Field(default_factory=lambda: {"name": "fedproin"})

    def __post_init__(self) -> None:
        if self.training.precision == "bfloat16" and self.data.image_size < 17:
            raise ValueError(
                "training.precision bfloat16 needs data.image_size of at least 17: oneDNN errs on 1x1 maps"
            )
        if self.federation.prior_correction and self.training.sampler != "class_balanced":
            raise ValueError(
                "federation.prior_correction needs training.sampler class_balanced: others learn the frequencies"
            )

    def with_classes(self, classes: tuple[str, ...]) -> "Settings":
        """The same settings with the classes that a simulation read from its table."""
        return replace(self, data=replace(self.data, classes=classes))

    def digest(self) -> str:
        """SHA-256 of everything set here: server and sites must agree on it."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


T = TypeVar("T")


def parse(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """An instance of the settings class `cls` from plain values.

    Raises:
        SettingsError: one sentence about the first thing that is wrong, with the nearest known key for an unknown one.
    """
    try:
        return TypeAdapter(cls).validate_json(json.dumps(values))  # JSON mode: strict types, but lists are tuples
    except ValidationError as error:
        raise SettingsError(_sentence(cls, error.errors()[0], where)) from None
    except NOT_JSON:
        raise SettingsError(f"Setting '{where or 'settings.json'}': a value is nested too deeply.") from None


def load_settings(path: Path) -> Settings:
    """The settings of a job's `settings.json`."""
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise SettingsError("The job has no config/settings.json; copy one from jobs/fedproin and edit it.") from None
    except OSError as error:
        raise SettingsError(f"The job's settings.json cannot be read ({error.strerror}).") from None
    except NOT_JSON as error:
        raise SettingsError(f"settings.json is not valid JSON: {error}.") from None
    if not isinstance(values, dict):
        raise SettingsError('settings.json must hold one JSON object, such as {"seed": 0}.')
    return parse(Settings, values)


def _sentence(cls: type, error: Any, where: str) -> str:
    location = [str(part) for part in error["loc"]]
    key = ".".join(filter(None, [where, *location]))
    if error["type"] == "unexpected_keyword_argument":
        known = _known_keys(cls, location[:-1])
        near = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}."
        return f"Unknown setting '{key}': {hint}"
    reason = error["msg"].removeprefix("Value error, ")
    shown = error.get("input")
    got = f", got {shown!r}" if isinstance(shown, str | int | float | bool) else ""
    return f"Setting '{key or 'settings.json'}': {reason[0].lower()}{reason[1:]}{got}."


def _known_keys(cls: type, location: list[str]) -> list[str]:
    for part in location:
        cls = get_type_hints(cls).get(part, cls)
    return [field.name for field in fields(cls)] if is_dataclass(cls) else []
