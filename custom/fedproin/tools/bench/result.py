"""The result of one run: a small JSON file that says how it was made and what came out."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from fedproin.errors import NOT_JSON, SettingsError, UserError
from fedproin.federation.records import FinalRecord, RunRecord, SiteRecord
from fedproin.settings import STRICT, parse
from fedproin.tensor_file import write_atomically
from fedproin.tools.bench.plan import Run

DONE = ("trained", "validated")


@dataclass(frozen=True, config=STRICT)
class ModelScores:
    """The pooled scores of one model.

    Attributes:
        version: rounds of training that it has seen.
        recall: of each class, none where no test image shows it.
        confusion: counts on the test images, rows are true classes.
    """

    version: int
    validation: dict[str, float]
    test: dict[str, float]
    recall: dict[str, float | None]
    confusion: list[list[int]]


@dataclass(frozen=True, config=STRICT)
class Provenance:
    """What all runs of one call have in common."""

    command: str
    engine: str
    data_hash: str


@dataclass(frozen=True, config=STRICT)
class RunResult:
    """What is kept of a run.

    Attributes:
        settings: as `Run.resolved`; `settings_hash` and `data_hash` name them and the table of images.
        dealt: how the table was dealt over the sites.
        steps: of the optimizers of all sites, over all rounds.
        bytes_down, bytes_up: of tensors between server and all sites, over all rounds.
        validation: pooled scores by version of the global model.
    """

    row: str
    partition: str
    seed: int
    prototypes: int | None
    settings_hash: str
    data_hash: str
    command: str
    engine: str
    sites: int
    settings: dict[str, Any]
    versions: dict[str, str]
    data: str
    dealt: str
    steps: int
    seconds: float
    bytes_down: int
    bytes_up: int
    validation: dict[str, dict[str, float]]
    last: ModelScores
    best: ModelScores


def result_of(run: Run, record: RunRecord, provenance: Provenance) -> RunResult:
    """What to keep of a run that has ended.

    Raises:
        UserError: it has no test scores, or some site failed: its numbers would not be the method's.
    """
    _require_whole(record)
    assert record.last is not None
    assert record.best is not None
    sites = list(_site_records(record))
    curve = {str(past.round): past.validation for past in record.rounds if past.validation}
    return RunResult(
        row=run.row,
        partition=run.partition,
        seed=run.seed,
        prototypes=run.prototypes,
        settings_hash=run.settings_hash,
        data_hash=provenance.data_hash,
        command=provenance.command,
        engine=provenance.engine,
        sites=run.sites,
        settings=run.resolved,
        versions=record.versions,
        data=record.data,
        dealt=record.partition,
        steps=sum(site.steps for site in sites),
        seconds=round(record.seconds, 1),
        bytes_down=sum(site.bytes_down for site in sites),
        bytes_up=sum(site.bytes_up for site in sites),
        validation=curve | {str(record.last.version): record.last.validation},
        last=_scores(record.classes, record.last),
        best=_scores(record.classes, record.best),
    )


def write_result(result: RunResult, path: Path) -> None:
    """Write atomically, one line a key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in asdict(result).items()]
    write_atomically(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def read_result(path: Path) -> RunResult | None:
    """The result in a file; none if there is no file.

    Raises:
        UserError: the file is damaged, or of another version of the package.
    """
    try:
        return parse(RunResult, json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, *NOT_JSON, TypeError, SettingsError) as error:
        where = "/".join(path.parts[-3:])
        raise UserError(f"The result {where} is damaged or of another version: remove it ({error}).") from None


def finished(runs: Iterable[Run], directory: Path, data_hash: str | None = None) -> dict[Path, RunResult]:
    """The results of those runs that are there, by file.

    Args:
        directory: of the bench.
        data_hash: that they must have; none if any will do, but all the same.

    Raises:
        UserError: some are of other settings or other data.
    """
    results, reasons = _sorted_out(runs, directory, data_hash)
    if reasons:
        (first, why), total = next(iter(reasons.items())), len(reasons) + len(results)
        raise UserError(
            f"{len(reasons)} of {total} results in the folder are not of this spec ({first}: {why}): "
            "give --redo to make them again, or another folder as --out."
        )
    return results


def discard_others(runs: Iterable[Run], directory: Path, data_hash: str) -> int:
    """Remove the results of other settings or other data; how many there were."""
    _, reasons = _sorted_out(runs, directory, data_hash)
    for file in reasons:
        (directory / file).unlink()
    return len(reasons)


def _sorted_out(
    runs: Iterable[Run], directory: Path, data_hash: str | None
) -> tuple[dict[Path, RunResult], dict[Path, str]]:
    """The results that are those runs', and for each of the others what differs."""
    found = [(run, result) for run in runs if (result := read_result(directory / run.file)) is not None]
    data_hash = data_hash or next((result.data_hash for _, result in found), None)
    reasons = {run.file: reason for run, result in found if (reason := _why_other(run, result, data_hash))}
    return {run.file: result for run, result in found if run.file not in reasons}, reasons


def _why_other(run: Run, result: RunResult, data_hash: str | None) -> str:
    """What differs between a result and a run; empty if it is the run's.

    A setting that was added to the package since does not count while it has its default: a new default keeps what was.
    """
    if result.data_hash != data_hash:
        return "it is of another table of images"
    before = {"sites": result.sites, **_flat(result.settings)}
    after = {"sites": run.sites, **_flat(run.resolved)}
    defaults = _flat(run.defaults)
    for key in sorted(before.keys() | after.keys()):
        if key not in after or before.get(key, defaults.get(key)) != after[key]:
            return f"{key} was {json.dumps(before.get(key))} and is {json.dumps(after.get(key))}"
    return ""


def _flat(values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{where}{key}.") if isinstance(value, Mapping) else {f"{where}{key}": value}
    return flat


def _site_records(record: RunRecord) -> Iterator[SiteRecord]:
    return (site for past in record.rounds for site in past.sites.values())


def _require_whole(record: RunRecord) -> None:
    if record.last is None or record.best is None:
        raise UserError("The run ended without test scores.")
    bad = [site for site in _site_records(record) if site.status not in DONE]
    if bad:
        example = f"{bad[0].status}, {bad[0].reason}"
        raise UserError(
            f"{len(bad)} answers of sites are missing or were not used, so the run does not count: {example}"
        )
    unscored = set(record.site_names) - record.last.sites.keys()
    if unscored or not all(past.counted for past in record.rounds):
        raise UserError("A round was not counted, or a site gave no test scores, so the run does not count.")


def _scores(classes: Sequence[str], model: FinalRecord) -> ModelScores:
    recall = dict(zip(classes, model.recall, strict=True))
    return ModelScores(model.version, model.validation, model.test, recall, model.confusion)
