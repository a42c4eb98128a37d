"""Mann-Whitney U of each row against the reference row, over the runs of the seeds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedproin.tools.bench.scores import SCORES, Bench, Cell


@dataclass(frozen=True)
class Comparison:
    """A row against the reference row, in one partition and score.

    Attributes:
        prototypes: a class, in the sweep; none in the table.
        n, n_reference: runs on both sides.
        u: statistic of the row: in how many pairs it is ahead; ties count half.
        p: two-sided.
    """

    row: str
    partition: str
    score: str
    prototypes: int | None
    n: int
    n_reference: int
    u: float
    p: float


def mann_whitney(values: Cell, reference: Cell) -> tuple[float, float]:
    """U and two-sided p: exact without ties, by the normal approximation with them."""
    from scipy.stats import mannwhitneyu

    u, p = mannwhitneyu(values.values, reference.values, alternative="two-sided", method="auto")
    return float(u), float(p)


def smallest_p(n: int) -> float:
    """What complete separation of n runs from n others gives: the test cannot go below it."""
    return 2 / math.comb(2 * n, n)


def comparisons(bench: Bench) -> list[Comparison]:
    """Every row of the table and of the sweep for which both sides have at least two runs."""
    spec, found = bench.spec, list[Comparison]()
    for row, prototypes in _pairs(bench):
        for partition in spec.partitions:
            for score in SCORES:
                own = bench.cell(row, partition, score, prototypes)
                other = bench.cell(spec.reference, partition, score, prototypes)
                n, m = len(own.values), len(other.values)
                if min(n, m) > 1:
                    found.append(Comparison(row, partition, score, prototypes, n, m, *mann_whitney(own, other)))
    return found


def _pairs(bench: Bench) -> Iterator[tuple[str, int | None]]:
    spec = bench.spec
    yield from ((row, None) for row in spec.ordered_rows() if row != spec.reference)
    if spec.reference in spec.sweep.rows:
        swept = [row for row in spec.sweep.rows if row != spec.reference]
        yield from ((row, m) for row in swept for m in spec.sweep.prototypes_per_class)
