"""Everything that is written from the results of a bench; what has not run is called so."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

from fedproin.tensor_file import write_atomically
from fedproin.tools.bench.checks import checks_page
from fedproin.tools.bench.figure import FORMATS, curves, rendered, sweep, sweep_table
from fedproin.tools.bench.plan import Run
from fedproin.tools.bench.result import RunResult
from fedproin.tools.bench.scores import SCORES, Bench
from fedproin.tools.bench.significance import Comparison, comparisons
from fedproin.tools.bench.spec import Spec
from fedproin.tools.bench.table import csv_table, latex, markdown, to_csv

RUN_COLUMNS = ("row", "partition", "seed", "prototypes", "settings_hash", "data_hash", "engine")
COST_COLUMNS = ("steps", "seconds", "bytes_down", "bytes_up")


def write_report(spec: Spec, runs: Sequence[Run], results: Mapping[Path, RunResult], directory: Path) -> str:
    """Write all files into the bench's folder; a sentence that says which.

    Args:
        results: those that are there, by file.
    """
    bench = Bench(spec, runs, results)
    directory.mkdir(parents=True, exist_ok=True)
    names = []
    for name, content in _files(bench):
        write_atomically(directory / name, content)
        names.append(name)
    return f"{len(results)} of {len(runs)} runs are done; in {directory}: {', '.join(names)}"


def _files(bench: Bench) -> Iterator[tuple[str, bytes]]:
    tests = comparisons(bench)
    yield "table.md", markdown(bench, tests).encode()
    yield "table.csv", csv_table(bench).encode()
    yield "table.tex", latex(bench).encode()
    yield "checks.md", checks_page(bench).encode()
    yield "runs.csv", to_csv(_run_rows(bench)).encode()
    yield "significance.csv", to_csv(_test_rows(tests)).encode()
    figures = {"curves": curves(bench)}
    if bench.spec.sweep.rows:
        figures["figure2"] = sweep(bench)
        yield "figure2.csv", to_csv(sweep_table(bench, tests)).encode()
    for name, figure in figures.items():
        for form in FORMATS:
            yield f"{name}.{form}", rendered(figure, form)


def _run_rows(bench: Bench) -> list[list[object]]:
    """One line a finished run, with the scores of both models."""
    scores = [f"{model}_{score}" for model in ("last", "best") for score in SCORES]
    rows: list[list[object]] = [[*RUN_COLUMNS, "version", *COST_COLUMNS, "best_round", *scores]]
    for run in bench.runs:
        result = bench.results.get(run.file)
        if result is not None:
            shown = [getattr(model, bench.spec.images) for model in (result.last, result.best)]
            values = [of_model[score] for of_model in shown for score in SCORES]
            about = [getattr(result, name) for name in RUN_COLUMNS]
            cost = [getattr(result, name) for name in COST_COLUMNS]
            rows.append([*about, result.versions["fedproin"], *cost, result.best.version, *values])
    return rows


def _test_rows(tests: Sequence[Comparison]) -> list[list[object]]:
    head = ["row", "partition", "score", "prototypes_per_class", "n", "n_reference", "u", "p"]
    return [list(head), *(list(astuple(test)) for test in tests)]
