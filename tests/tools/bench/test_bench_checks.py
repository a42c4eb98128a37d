"""The paper's claims on numbers made by hand."""

from handmade import METHODS

from fedproin.tools.bench.checks import checks, checks_page

PAGE = """# The paper's claims on tiny

Test scores in percent of the last model, means over the 2 seeds; FedProIn against the rows of other methods that the table ranks.

- **true**: FedProIn is first in Acc, W-F1 and MCC, IID. Acc 80.0, best other FedAvg 76.0; W-F1 79.0, best other FedAvg 75.0; MCC 70.0, best other FedAvg 60.0; Bal. acc 75.0, best other FedAvg 50.0.
- **true**: FedProIn is first in Acc, W-F1 and MCC, Dirichlet 0.5. Acc 77.5, best other FedAvg 74.6; W-F1 76.0, best other FedAvg 73.0; MCC 65.0, best other FedAvg 50.0; Bal. acc 70.0, best other FedAvg 45.0.
- **false**: FedProIn is at least 3 points of accuracy above FedAvg, Dirichlet 0.5. Acc 77.5 against 74.6 (+2.9); W-F1 76.0 against 73.0 (+3.0); MCC 65.0 against 50.0 (+15.0); Bal. acc 70.0 against 45.0 (+25.0).
- **false**: FedProIn loses at most 2.4 points of accuracy from IID to Dirichlet 0.5. Acc 77.5 against 80.0 (-2.5); W-F1 76.0 against 79.0 (-3.0); MCC 65.0 against 70.0 (-5.0); Bal. acc 70.0 against 75.0 (-5.0).
"""  # noqa: E501


def all_rows(iid, dirichlet):
    """Values of a bench from one tuple of scores a row, the same for both seeds."""
    return {
        (row, partition): [scores, scores]
        for partition, rows in (("iid", iid), ("dirichlet", dirichlet))
        for row, scores in rows.items()
    }


GOOD = {"fedproin": (80.0, 79, 70, 75), "fedavg": (76.0, 75, 60, 50), "fed_odd": (70.0, 70, 50, 50)}
GOOD_DIRICHLET = {"fedproin": (77.6, 76, 65, 70), "fedavg": (74.6, 73, 50, 45), "fed_odd": (60.0, 60, 40, 40)}


def verdicts(bench):
    return [check.holds for check in checks(bench)]


def test_all_hold_at_the_bounds(make_bench):
    assert verdicts(make_bench(all_rows(GOOD, GOOD_DIRICHLET))) == [True, True, True, True]


def test_first_must_be_first_in_every_score_of_the_paper(make_bench):
    better_mcc = GOOD | {"fed_odd": (70.0, 70, 70, 50)}  # equal is not ahead
    bench = make_bench(all_rows(better_mcc, GOOD_DIRICHLET))
    assert verdicts(bench) == [False, True, True, True]
    better_balanced = GOOD | {"fed_odd": (70.0, 70, 50, 99)}  # not among the paper's scores
    assert verdicts(make_bench(all_rows(better_balanced, GOOD_DIRICHLET))) == [True, True, True, True]


def test_an_ablation_is_no_rival(make_bench):
    assert verdicts(make_bench(all_rows(GOOD | {"no_fdl": (99.0, 99, 99, 99)}, GOOD_DIRICHLET)))[0] is True


def test_too_little_ahead_and_too_much_lost(make_bench):
    lower = GOOD_DIRICHLET | {"fedproin": (77.5, 76, 65, 70)}
    assert verdicts(make_bench(all_rows(GOOD, lower))) == [True, True, False, False]


def test_the_spec_may_have_other_bounds(make_bench):
    lower = GOOD_DIRICHLET | {"fedproin": (77.5, 76, 65, 70)}
    more = "[claims]\nabove_fedavg = 2.5\nlargest_loss = 2.5\n"
    assert verdicts(make_bench(all_rows(GOOD, lower), more=METHODS + more)) == [True, True, True, True]


def test_what_has_not_run_decides_nothing_unless_it_is_decided(make_bench):
    without = {row: scores for row, scores in GOOD.items() if row != "fed_odd"}
    assert verdicts(make_bench(all_rows(without, GOOD_DIRICHLET)))[0] is None
    assert verdicts(make_bench(all_rows(without | {"fedavg": (81.0, 1, 1, 1)}, GOOD_DIRICHLET)))[0] is False
    values = all_rows(GOOD, GOOD_DIRICHLET)
    values["fedproin", "iid"] = values["fedproin", "iid"][:1]
    assert verdicts(make_bench(values)) == [None, True, True, None]
    assert verdicts(make_bench({})) == [None, None, None, None]


def test_the_page_has_all_scores_beside_accuracy(make_bench):
    page = checks_page(make_bench(all_rows(GOOD, GOOD_DIRICHLET | {"fedproin": (77.5, 76, 65, 70)})))
    assert page == PAGE
