"""The spec of a bench, a TOML file: rows (methods and their settings) times partitions times seeds.

A run's settings are the base settings, changed by its row; nothing else in the package may change them.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedproin.errors import NOT_JSON, SettingsError
from fedproin.settings import STRICT, AtLeast1, PartitionSettings, Settings, parse

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"  # it becomes a folder, and the name of a run
GROUPS = {"method": "methods", "ablation": "ablations", "factorial": "factorial", "bound": "upper bound"}
PARTITION_LABELS = {"auto": "auto", "iid": "IID", "dirichlet": "Dirichlet", "site": "by site"}
Values = dict[str, Any]
Images = Literal["test", "validation"]


@dataclass(frozen=True, config=STRICT)
class Row:
    """A row of the table: what it changes in the base settings, and the method with its options.

    Attributes:
        label: in the table; by default the row's name.
        group: only rows of the group `method` are ranked; ablations, factorial and upper bound stand below them.
    """

    method: Values
    label: str = ""
    group: Literal["method", "ablation", "factorial", "bound"] = "method"
    model: Values = Field(default_factory=dict)
    training: Values = Field(default_factory=dict)
    federation: Values = Field(default_factory=dict)


@dataclass(frozen=True, config=STRICT)
class BaseSettings:
    """Settings that all rows share, with the keys of a job's settings.json; rows and partitions bring the rest."""

    data: Values = Field(default_factory=dict)
    model: Values = Field(default_factory=dict)
    training: Values = Field(default_factory=dict)
    federation: Values = Field(default_factory=dict)


@dataclass(frozen=True, config=STRICT)
class Partition:
    """How the sites got their data: a group of columns of the table."""

    label: str
    settings: PartitionSettings


@dataclass(frozen=True, config=STRICT)
class Sweep:
    """Figure 2: these rows again with these numbers of prototypes a class."""

    prototypes_per_class: tuple[AtLeast1, ...] = ()
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, config=STRICT)
class Claims:
    """What the paper claims, in points of accuracy.

    Attributes:
        above_fedavg: the reference is at least so much above FedAvg where data are not IID.
        largest_loss: the reference loses at most so much from IID to not IID.
    """

    above_fedavg: float = 3.0
    largest_loss: float = 2.4


@dataclass(frozen=True, config=STRICT)
class _File:
    """The top level of the file."""

    name: Annotated[str, Field(pattern=f"^{NAME}$")]
    sites: Annotated[int, Field(ge=2)]
    rows: Annotated[dict[str, Values], Field(min_length=1)]
    partitions: Annotated[dict[str, Values], Field(min_length=1)]
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (0, 1, 2)
    reference: str = "fedproin"
    model: Literal["last", "best"] = "last"
    images: Images = "test"
    settings: Values = Field(default_factory=dict)
    sweep: Sweep = Sweep()
    claims: Claims = Claims()


@dataclass(frozen=True, config=STRICT)
class Spec:
    """A whole bench.

    Attributes:
        sites: number of simulated sites.
        reference: the row that the others are compared with.
        model: which one the table shows: of the `last` round, or the `best` one on validation images.
        images: which ones its scores are of; `validation` is for choosing settings without a look at the test.
    """

    name: str
    sites: int
    seeds: tuple[int, ...]
    reference: str
    model: Literal["last", "best"]
    images: Images
    base: BaseSettings
    rows: dict[str, Row]
    partitions: dict[str, Partition]
    sweep: Sweep
    claims: Claims

    def settings(self, row: str, partition: str, seed: int, prototypes: int | None = None) -> Settings:
        """The settings of one run; `prototypes` replaces the row's own number of prototypes a class."""
        changes = self.rows[row]
        groups = ("model", "training", "federation")
        values = {group: getattr(self.base, group) | getattr(changes, group) for group in groups}
        values |= {"run": row, "seed": seed, "data": self.base.data}
        values["partition"] = asdict(self.partitions[partition].settings)
        values["method"] = changes.method | ({} if prototypes is None else {"prototypes_per_class": prototypes})
        return parse(Settings, values, f"rows.{row}")

    def label(self, row: str) -> str:
        """The row's name for readers."""
        return self.rows[row].label or row

    def ordered_rows(self) -> list[str]:
        """The rows group by group, each in the order of the file."""
        return [name for group in GROUPS for name, row in self.rows.items() if row.group == group]


def load_spec(path: Path) -> Spec:
    """Read and check a spec; whether its methods exist is for `plan` to say.

    Raises:
        SettingsError: one sentence about the first thing that is wrong.
    """
    file = parse(_File, _read(path), "spec")
    base = parse(BaseSettings, file.settings, "settings")
    parse(Settings, asdict(base), "settings")
    rows = {name: _row(name, values) for name, values in file.rows.items()}
    partitions = {name: _partition(name, values) for name, values in file.partitions.items()}
    _refuse_odd_names("row", rows)
    _refuse_odd_names("partition", partitions)
    if len(set(file.seeds)) != len(file.seeds):
        raise SettingsError("Setting 'spec.seeds': name each seed once.")
    _require_rows("spec.reference", [file.reference], rows)
    _require_rows("spec.sweep.rows", file.sweep.rows, rows)
    if bool(file.sweep.rows) != bool(file.sweep.prototypes_per_class):
        raise SettingsError("Setting 'spec.sweep': it needs both, rows and prototypes_per_class.")
    return Spec(
        file.name,
        file.sites,
        file.seeds,
        file.reference,
        file.model,
        file.images,
        base,
        rows,
        partitions,
        file.sweep,
        file.claims,
    )


def _read(path: Path) -> Values:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        plain: Values = json.loads(json.dumps(values, default=str))  # a date becomes a text, which is then refused
    except FileNotFoundError:
        raise SettingsError(f"There is no spec {path.name}; benchmarks/ has some to copy.") from None
    except OSError as error:
        raise SettingsError(f"The spec {path.name} cannot be read ({error.strerror}).") from None
    except NOT_JSON as error:
        raise SettingsError(f"The spec {path.name} is not valid TOML: {error}.") from None
    return plain


def _row(name: str, values: Values) -> Row:
    row = parse(Row, values, f"rows.{name}")
    changes = {"model": row.model, "training": row.training, "federation": row.federation}
    parse(Settings, changes, f"rows.{name}")
    if not isinstance(row.method.get("name"), str):
        raise SettingsError(f"Setting 'rows.{name}.method': it needs a name, such as fedavg.")
    return row


def _partition(name: str, values: Values) -> Partition:
    own = {key: value for key, value in values.items() if key != "label"}
    settings = parse(PartitionSettings, own, f"partitions.{name}")
    alpha = f" {settings.alpha:g}" if settings.kind == "dirichlet" else ""
    label = values.get("label", PARTITION_LABELS[settings.kind] + alpha)
    if not isinstance(label, str):
        raise SettingsError(f"Setting 'partitions.{name}.label': input should be a text.")
    return Partition(label, settings)


def _refuse_odd_names(what: str, names: Iterable[str]) -> None:
    for name in names:
        if not re.fullmatch(NAME, name):
            raise SettingsError(
                f"The {what} '{name}' cannot be a folder: use up to 64 letters, digits, dots, dashes and underscores."
            )


def _require_rows(key: str, names: Iterable[str], rows: Mapping[str, Row]) -> None:
    for name in names:
        if name not in rows:
            raise SettingsError(f"Setting '{key}': there is no row '{name}'; known are {', '.join(rows)}.")
