"""The scores of a bench, put where the table has them: a cell is a row, a partition and a score, over the seeds."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedproin.tools.bench.plan import Run
from fedproin.tools.bench.result import RunResult
from fedproin.tools.bench.spec import Spec

SCORES = {"accuracy": "Acc", "f1_weighted": "W-F1", "mcc": "MCC", "balanced_accuracy": "Bal. acc"}


@dataclass(frozen=True)
class Cell:
    """One score of one row in one partition.

    Attributes:
        values: in percent, one a finished run.
        wanted: number of seeds.
    """

    values: tuple[float, ...]
    wanted: int

    @property
    def complete(self) -> bool:
        """Whether every seed has run; only such cells are compared with each other."""
        return len(self.values) == self.wanted

    @property
    def mean(self) -> float:
        """Over the finished runs, of which there must be one."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation (n - 1); none for a single run."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Bench:
    """A spec, its runs, and the results that are there, by file."""

    spec: Spec
    runs: Sequence[Run]
    results: Mapping[Path, RunResult]

    def of(self, row: str, partition: str, prototypes: int | None = None) -> list[RunResult]:
        """Finished runs of a row in a partition, by seed; of the table, or with so many prototypes a class."""
        runs = [run for run in self.runs if (run.row, run.partition) == (row, partition)]
        if prototypes is None:
            runs = [run for run in runs if run.prototypes is None]
        else:
            runs = [run for run in runs if run.resolved["method"].get("prototypes_per_class") == prototypes]
        return [self.results[run.file] for run in runs if run.file in self.results]

    def score(self, result: RunResult, score: str) -> float:
        """In percent, of the model and the images that the spec shows."""
        model = getattr(result, self.spec.model)
        return 100 * float(getattr(model, self.spec.images)[score])

    def cell(self, row: str, partition: str, score: str, prototypes: int | None = None) -> Cell:
        """One score over the seeds."""
        values = [self.score(result, score) for result in self.of(row, partition, prototypes)]
        return Cell(tuple(values), len(self.spec.seeds))

    def all_of(self, row: str) -> list[RunResult]:
        """Finished runs of a row in the table, of all partitions."""
        return [result for partition in self.spec.partitions for result in self.of(row, partition)]

    def ranked_rows(self) -> list[str]:
        """The rows that are compared with each other: methods, not ablations."""
        return [row for row, changes in self.spec.rows.items() if changes.group == "method"]
