"""Mann-Whitney U by scipy, on the cells of a bench."""

import pytest

from fedproin.tools.bench.scores import Cell
from fedproin.tools.bench.significance import comparisons, mann_whitney, smallest_p

THREE = ("seeds = [0, 1]", "seeds = [0, 1, 2]")


@pytest.mark.parametrize(
    ("one", "other", "u", "p"),
    [
        ((4, 5, 6), (1, 2, 3), 9.0, 0.1),  # by hand: 2 of the 20 ways to choose 3 of 6 ranks are as extreme
        ((1, 2, 3), (4, 5, 6), 0.0, 0.1),
        ((1, 3, 5), (2, 4, 6), 3.0, 0.7),  # 14 of 20
        ((2, 2, 2), (2, 2, 2), 4.5, 1.0),
        ((19, 22, 16, 29, 24), (20, 11, 17, 12), 17.0, 0.1111111111111111),  # the example in scipy's documentation
    ],
)
def test_values(one, other, u, p):
    assert mann_whitney(Cell(one, len(one)), Cell(other, len(other))) == pytest.approx((u, p))


@pytest.mark.parametrize(("n", "p"), [(2, 1 / 3), (3, 0.1), (4, 2 / 70), (5, 2 / 252)])
def test_the_smallest_p(n, p):
    assert smallest_p(n) == pytest.approx(p)
    values = Cell(tuple(range(n)), n), Cell(tuple(range(n, 2 * n)), n)
    assert mann_whitney(*values)[1] == pytest.approx(p)


def test_every_row_against_the_reference_with_n(make_bench):
    low, high = [(10.0, 10, 10, 10), (11.0, 11, 11, 11), (12.0, 12, 12, 12)], [(20.0, 1, 1, 1)] * 2
    bench = make_bench({("fedproin", "iid"): low, ("fedavg", "iid"): high, ("no_fdl", "iid"): high[:1]}, THREE)
    found = {(one.row, one.partition, one.score): one for one in comparisons(bench)}
    assert {row for row, _, _ in found} == {"fedavg"}  # a single run cannot be tested
    accuracy, mcc = found["fedavg", "iid", "accuracy"], found["fedavg", "iid", "mcc"]
    assert (accuracy.n, accuracy.n_reference, accuracy.u, mcc.u) == (2, 3, 6.0, 0.0)


def test_the_sweep_compares_at_the_same_number_of_prototypes(make_bench):
    sweep = '[sweep]\nprototypes_per_class = [1, 2]\nrows = ["fedproin", "no_fdl"]\n'
    scores = {m: [(m, m, m, m), (m + 1, m + 1, m + 1, m + 1)] for m in (10.0, 20.0, 30.0)}
    values = {
        ("fedproin", "iid"): scores[10.0],
        ("no_fdl", "iid"): scores[20.0],
        ("fedproin", "iid", 2): scores[30.0],
        ("no_fdl", "iid", 2): scores[20.0],
    }
    found = [one for one in comparisons(make_bench(values, more=sweep)) if one.score == "f1_weighted"]
    assert [(one.prototypes, one.u) for one in found] == [(None, 4.0), (1, 4.0), (2, 0.0)]
