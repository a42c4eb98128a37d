"""All files of a report, and Figure 2."""

import csv
import io

import pytest

from fedproin.tools.bench.figure import curves, rendered, sweep, sweep_table
from fedproin.tools.bench.report import write_report
from fedproin.tools.bench.significance import comparisons

SWEEP = '[sweep]\nprototypes_per_class = [2, 1]\nrows = ["fedproin", "no_fdl"]\n'
VALUES = {
    ("fedproin", "iid"): [(1.0, 10, 1, 1), (1.0, 12, 1, 1)],
    ("no_fdl", "iid"): [(1.0, 8, 1, 1), (1.0, 9, 1, 1)],
    ("fedproin", "iid", 2): [(1.0, 20, 1, 1), (1.0, 24, 1, 1)],
    ("fedproin", "dirichlet"): [(1.0, 30, 1, 1)],
}


@pytest.fixture
def bench(make_bench):
    return make_bench(VALUES, more=SWEEP)


def test_all_files_and_no_other(bench, tmp_path):
    out = tmp_path / "out"
    said = write_report(bench.spec, bench.runs, bench.results, out)
    names = ["checks.md", "curves.pdf", "curves.png", "figure2.csv", "figure2.pdf", "figure2.png"]
    names += ["runs.csv", "significance.csv", "table.csv", "table.md", "table.tex"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert said.startswith(f"7 of {len(bench.runs)} runs are done; in {out}: table.md, ")
    runs = list(csv.DictReader(io.StringIO((out / "runs.csv").read_text())))
    assert [(run["row"], run["partition"], run["seed"], run["prototypes"]) for run in runs][4:] == [
        ("fedproin", "iid", "0", "2"),
        ("fedproin", "iid", "1", "2"),
        ("fedproin", "dirichlet", "0", ""),
    ]
    assert (runs[0]["last_f1_weighted"], runs[0]["bytes_up"], runs[0]["version"]) == ("0.1", "2000000", "0.1.0+abc")


def test_settings_are_chosen_without_a_look_at_the_test(make_bench, tmp_path):
    bench = make_bench(VALUES, ("seeds = [0, 1]", 'seeds = [0, 1]\nimages = "validation"'), more=SWEEP)
    write_report(bench.spec, bench.runs, bench.results, tmp_path)
    assert bench.cell("fedproin", "iid", "f1_weighted").values == (5, 6)
    runs = list(csv.DictReader(io.StringIO((tmp_path / "runs.csv").read_text())))
    assert (runs[0]["last_f1_weighted"], runs[0]["best_f1_weighted"]) == ("0.05", "0.05")
    assert "- Validation images of all sites together, last model" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "checks.md").read_text().splitlines()[2].startswith("Validation scores in percent")


def test_a_report_of_nothing(make_bench, tmp_path):
    bench = make_bench({})
    write_report(bench.spec, bench.runs, {}, tmp_path / "out")
    assert "not run" in (tmp_path / "out" / "table.md").read_text()
    assert not (tmp_path / "out" / "figure2.png").exists()


def test_the_numbers_of_figure_2(bench):
    head, *rows = sweep_table(bench, comparisons(bench))
    found = {(row, partition, m): rest for row, partition, m, *rest in rows}
    assert head[3:] == ["n", "mean", "sd", "u", "p"]
    assert found["fedproin", "iid", 1][:3] == [2, pytest.approx(11), pytest.approx(2**0.5)]
    assert found["fedproin", "iid", 2][:2] == [2, pytest.approx(22)]
    assert found["no_fdl", "iid", 1] == [2, pytest.approx(8.5), pytest.approx(0.5**0.5), 0.0, pytest.approx(1 / 3)]
    assert found["no_fdl", "iid", 2] == [0, None, None, "", ""]
    assert found["fedproin", "dirichlet", 1][:3] == [1, pytest.approx(30), None]


def test_figures_show_what_has_run(bench):
    iid, dirichlet = sweep(bench).axes
    assert [axes.get_title() for axes in (iid, dirichlet)] == ["IID", "Dirichlet 0.5"]
    assert [list(line.lines[0].get_ydata()) for line in iid.containers[:2]] == [
        [pytest.approx(11), pytest.approx(22)],
        [pytest.approx(8.5)],
    ]
    top = curves(bench).axes[0]
    assert [list(line.get_xdata()) for line in top.lines] == [[1, 3], [1, 3]]
    assert list(top.lines[0].get_ydata()) == [pytest.approx(5.5), pytest.approx(11)]


@pytest.mark.parametrize(("form", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_same_numbers_give_the_same_file(bench, form, magic):
    one, other = (rendered(curves(bench), form) for _ in range(2))
    assert one == other
    assert one.startswith(magic)
