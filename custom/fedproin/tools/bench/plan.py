"""Which runs a spec means, in which order, and what makes two runs the same."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from fedproin.data.location import locate
from fedproin.data.manifest import read_manifest
from fedproin.errors import SettingsError, UserError
from fedproin.settings import Settings
from fedproin.tools.bench.spec import Spec

HASH_LENGTH = 16


@dataclass(frozen=True, eq=False)
class Run:
    """One run of the bench.

    Attributes:
        prototypes: a class, where the sweep sets it; none in the table itself.
        resolved: all settings and the method's options, defaults too; without the run's name and the data's place.
        defaults: the same, had the spec named the method alone.
    """

    row: str
    partition: str
    seed: int
    prototypes: int | None
    sites: int
    settings: Settings
    resolved: dict[str, Any]
    defaults: dict[str, Any]

    @property
    def file(self) -> Path:
        """Where its result is, relative to the bench's folder."""
        suffix = "" if self.prototypes is None else f"_M{self.prototypes}"
        return Path("runs", self.row, self.partition, f"seed{self.seed}{suffix}.json")

    @cached_property
    def settings_hash(self) -> str:
        """The same for runs that must end with the same bits on the same data."""
        return _hash({"sites": self.sites, **self.resolved})

    def __str__(self) -> str:
        suffix = "" if self.prototypes is None else f" M {self.prototypes}"
        return f"{self.row} {self.partition} seed {self.seed}{suffix}"


def plan(spec: Spec) -> list[Run]:
    """All runs, seed by seed, so that a bench that was stopped has the same seeds of most rows; the sweep comes last.

    Raises:
        SettingsError: a row's settings are not valid, or its method does not exist or lacks an option.
    """
    table = [_run(spec, row, partition, seed) for seed, partition, row in _cells(spec, spec.ordered_rows())]
    known = {(run.row, run.partition, run.seed): run.settings_hash for run in table}
    sweep = [
        _run(spec, row, partition, seed, prototypes)
        for seed, partition, row in _cells(spec, spec.sweep.rows)
        for prototypes in spec.sweep.prototypes_per_class
    ]
    return table + [run for run in sweep if run.settings_hash != known[run.row, run.partition, run.seed]]


def table_hash(spec: Spec, directory: Path) -> str:
    """Hash of what the table of images says, wherever it lies; synthetic pictures follow from the settings.

    Args:
        directory: of the bench.

    Raises:
        UserError: there is no table, and the spec does not ask for synthetic pictures.
    """
    settings = spec.settings(next(iter(spec.rows)), next(iter(spec.partitions)), spec.seeds[0])
    location = locate(settings, simulated=True, site_root=directory / "runs")
    if location.source is None:
        if not settings.data.synthetic:
            raise UserError(
                "The bench has no data: set FEDPROIN_DATA to a table, folder or ZIP, or data.synthetic in the spec."
            )
        return "synthetic"
    return read_manifest(location.source).table_digest()[:HASH_LENGTH]


def _cells(spec: Spec, rows: "list[str] | tuple[str, ...]") -> Iterator[tuple[int, str, str]]:
    return ((seed, partition, row) for seed in spec.seeds for partition in spec.partitions for row in rows)


def _run(spec: Spec, row: str, partition: str, seed: int, prototypes: int | None = None) -> Run:
    settings = spec.settings(row, partition, seed, prototypes)
    try:
        resolved, defaults = _resolved(settings), _defaults(settings.method["name"])
    except SettingsError as error:
        raise SettingsError(f"Row '{row}': {error}") from None
    return Run(row, partition, seed, prototypes, spec.sites, settings, resolved, defaults)


@cache
def _defaults(method: str) -> dict[str, Any]:
    return _resolved(Settings(method={"name": method}))


def _resolved(settings: Settings) -> dict[str, Any]:
    from fedproin.methods import create_method

    options = create_method(settings.with_classes(settings.data.classes or ("a", "b"))).options
    values = json.loads(json.dumps(asdict(settings) | {"method": asdict(options)}))
    del values["run"], values["data"]["path"]
    return dict(values)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:HASH_LENGTH]
