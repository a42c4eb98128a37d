"""The three forms of the table, from results written by hand."""

import csv
import io

import pytest

from fedproin.tools.bench.significance import comparisons
from fedproin.tools.bench.table import csv_table, latex, markdown, marks

VALUES = {
    ("fedproin", "iid"): [(70.0, 60, 50, 40), (72.0, 62, 52, 42)],
    ("fedavg", "iid"): [(71.04, 50, 50, 30), (71.0, 55, 52, 35)],  # prints as 71.0 does
    ("fed_odd", "iid"): [(60.0, 50, -2, 30), (60.0, 50, 2, 30)],
    ("no_fdl", "iid"): [(90.0, 90, 90, 90), (90.0, 90, 90, 90)],
    ("fedproin", "dirichlet"): [(70.0, 60, 50, 40)],
    ("fedavg", "dirichlet"): [(60.0, 50, 50, 30), (60.0, 50, 50, 30)],
}
PAGE = """# tiny

| row | steps | IID Acc | IID W-F1 | IID MCC | IID Bal. acc | Dirichlet 0.5 Acc | Dirichlet 0.5 W-F1 | Dirichlet 0.5 MCC | Dirichlet 0.5 Bal. acc |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| FedProIn | 1,000 | **71.0 ± 1.4** | **61.0 ± 1.4** | **51.0 ± 1.4** | **41.0 ± 1.4** | 70.0 (1 of 2) | 60.0 (1 of 2) | 50.0 (1 of 2) | 40.0 (1 of 2) |
| FedAvg | 1,000 | **71.0 ± 0.0** | <u>52.5 ± 3.5</u> | **51.0 ± 1.4** | <u>32.5 ± 3.5</u> | **60.0 ± 0.0** | **50.0 ± 0.0** | **50.0 ± 0.0** | **30.0 ± 0.0** |
| Fed_Odd & Co | 1,000 | <u>60.0 ± 0.0</u> | 50.0 ± 0.0 | <u>0.0 ± 2.8</u> | 30.0 ± 0.0 | not run | not run | not run | not run |
| *ablations* |  |  |  |  |  |  |  |  |  |
| no_fdl | 1,000 | 90.0 ± 0.0 | 90.0 ± 0.0 | 90.0 ± 0.0 | 90.0 ± 0.0 | not run | not run | not run | not run |

- Test images of all sites together, last model, in percent: mean ± standard deviation (n - 1) over 2 seeds, which change split, partition, initial model and draws. Best of the methods bold, second underlined; other groups are not ranked. A method without a global model is scored by each site's own model. Steps: of the optimizers of all sites in a run, mean over its runs.
- 11 of 16 runs are done, 2 sites.
- p: two-sided Mann-Whitney U, n = 2 against 2 runs; the smallest p that 2 seeds can give is 0.33, so no difference here can be significant at 0.05.

## p against FedProIn

| row | IID Acc | IID W-F1 | IID MCC | IID Bal. acc | Dirichlet 0.5 Acc | Dirichlet 0.5 W-F1 | Dirichlet 0.5 MCC | Dirichlet 0.5 Bal. acc |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| FedAvg | 1 | 0.33 | 1 | 0.33 | - | - | - | - |
| Fed_Odd & Co | 0.22 | 0.22 | 0.33 | 0.22 | - | - | - | - |
| no_fdl | 0.22 | 0.22 | 0.22 | 0.22 | - | - | - | - |

## Cost of a run

| row | steps | seconds | MB to sites | MB to server |
| --- | ---: | ---: | ---: | ---: |
| FedProIn | 1,000 | 12 | 1.5 | 2.0 |
| FedAvg | 1,000 | 12 | 1.5 | 2.0 |
| Fed_Odd & Co | 1,000 | 12 | 1.5 | 2.0 |
| no_fdl | 1,000 | 12 | 1.5 | 2.0 |
"""  # noqa: E501
TABULAR = r"""\begin{tabular}{lr*{8}{c}}
\toprule
 &  & \multicolumn{4}{c}{IID} & \multicolumn{4}{c}{Dirichlet 0.5} \\
\cmidrule(lr){3-6} \cmidrule(lr){7-10}
Method & Steps & Acc & W-F1 & MCC & Bal. acc & Acc & W-F1 & MCC & Bal. acc \\
\midrule
FedProIn & 1,000 & \textbf{71.0 $\pm$ 1.4} & \textbf{61.0 $\pm$ 1.4} & \textbf{51.0 $\pm$ 1.4} & \textbf{41.0 $\pm$ 1.4} & 70.0 (1 of 2) & 60.0 (1 of 2) & 50.0 (1 of 2) & 40.0 (1 of 2) \\
FedAvg & 1,000 & \textbf{71.0 $\pm$ 0.0} & \underline{52.5 $\pm$ 3.5} & \textbf{51.0 $\pm$ 1.4} & \underline{32.5 $\pm$ 3.5} & \textbf{60.0 $\pm$ 0.0} & \textbf{50.0 $\pm$ 0.0} & \textbf{50.0 $\pm$ 0.0} & \textbf{30.0 $\pm$ 0.0} \\
Fed\_Odd \& Co & 1,000 & \underline{60.0 $\pm$ 0.0} & 50.0 $\pm$ 0.0 & \underline{0.0 $\pm$ 2.8} & 30.0 $\pm$ 0.0 & not run & not run & not run & not run \\
\midrule
no\_fdl & 1,000 & 90.0 $\pm$ 0.0 & 90.0 $\pm$ 0.0 & 90.0 $\pm$ 0.0 & 90.0 $\pm$ 0.0 & not run & not run & not run & not run \\
\bottomrule
\end{tabular}
"""  # noqa: E501


@pytest.fixture
def bench(make_bench):
    return make_bench(VALUES, steps=1000)


def test_markdown(bench):
    assert markdown(bench, comparisons(bench)) == PAGE


def test_latex(bench):
    lines = latex(bench).splitlines(keepends=True)
    assert "".join(line for line in lines if not line.startswith("%")) == TABULAR
    assert sum(line.startswith("% ") for line in lines) == 3
    assert latex(bench).isascii()


def test_csv_is_not_rounded_and_empty_where_nothing_has_run(bench):
    rows = {row["row"]: row for row in csv.DictReader(io.StringIO(csv_table(bench)))}
    assert list(rows) == ["fedproin", "fedavg", "fed_odd", "no_fdl"]
    fedavg, odd = rows["fedavg"], rows["fed_odd"]
    assert float(fedavg["iid_accuracy_mean"]) == pytest.approx(71.02)
    assert float(fedavg["iid_f1_weighted_sd"]) == pytest.approx(5 / 2**0.5)
    assert (fedavg["label"], fedavg["group"], fedavg["steps"]) == ("FedAvg", "method", "1000.0")
    assert (odd["dirichlet_mcc_mean"], odd["dirichlet_mcc_sd"], odd["dirichlet_n"]) == ("", "", "0")
    assert (rows["fedproin"]["dirichlet_mcc_sd"], rows["fedproin"]["dirichlet_n"]) == ("", "1")


def test_only_methods_with_all_seeds_are_ranked(bench):
    found = marks(bench)
    assert ("no_fdl", "iid", "accuracy") not in found
    assert ("fedproin", "dirichlet", "accuracy") not in found
    assert found["fedavg", "dirichlet", "accuracy"] == "best"


def test_the_table_of_the_best_model(make_bench):
    bench = make_bench(VALUES, ("seeds = [0, 1]", 'seeds = [0, 1]\nmodel = "best"'))
    assert "best model" in markdown(bench, [])


def test_nothing_has_run(make_bench):
    page = markdown(make_bench({}), [])
    assert page.count("not run") == 4 * 8
    assert "- 0 of 16 runs are done, 2 sites." in page
    assert "## p against" not in page


def test_what_a_reader_must_know(make_bench):
    bench = make_bench(VALUES, data="synthetic")
    other = make_bench(VALUES, versions={"fedproin": "0.2.0+x"}).results
    first = next(iter(other))
    bench.results[first] = other[first]
    page = markdown(bench, [])
    assert "SYNTHETIC PICTURES" in page
    assert "- The runs are of 2 versions of the code: 0.1.0+abc, 0.2.0+x." in page


def test_a_single_seed_has_neither_deviation_nor_p(make_bench):
    values = {key: by_seed[:1] for key, by_seed in VALUES.items()}
    page = markdown(make_bench(values, ("seeds = [0, 1]", "seeds = [5]")), [])
    assert "| **71.0** | <u>50.0</u> |" in page
    assert "Mann-Whitney" not in page
