"""The pictures of a bench: validation curves, and Figure 2, weighted F1 against the number of prototypes a class."""

import io
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fedproin.tools.bench.scores import SCORES, Bench
from fedproin.tools.bench.significance import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES = ("f1_weighted", "mcc")
DPI = 150
FIGURE_2 = "f1_weighted"
FORMATS = {"png": {"Software": None}, "pdf": {"CreationDate": None}}  # the same bytes for the same numbers


def curves(bench: Bench) -> "Figure":
    """Pooled validation scores of the global model by round, mean over the finished seeds; a panel a partition."""
    from matplotlib.ticker import MaxNLocator

    def draw(axes: "Axes", partition: str, score: str) -> None:
        for row in bench.spec.ordered_rows():
            rounds, means = _mean_curve(bench, row, partition, score)
            style = "-" if bench.spec.rows[row].group == "method" else "--"
            axes.plot(rounds, means, style, color=_colour(bench, row), linewidth=1.2, label=bench.spec.label(row))
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(f"validation {SCORES[score]} in %")

    return _panels(bench, CURVES, draw)


def sweep(bench: Bench) -> "Figure":
    """Weighted F1 against M: mean and standard deviation over the finished seeds."""

    def draw(axes: "Axes", partition: str, score: str) -> None:
        for row in bench.spec.sweep.rows:
            cells = {m: cell for m in _numbers(bench) if (cell := bench.cell(row, partition, score, m)).values}
            means, spread = [cell.mean for cell in cells.values()], [cell.deviation or 0.0 for cell in cells.values()]
            aside = 0.04 * bench.spec.sweep.rows.index(row)  # bars beside each other, not on each other
            label, colour = bench.spec.label(row), _colour(bench, row)
            axes.errorbar([m + aside for m in cells], means, spread, color=colour, label=label, capsize=3, marker="o")
        axes.set_xticks(_numbers(bench))
        axes.set_xlabel("prototypes a class, M")
        axes.set_ylabel(f"{bench.spec.images} {SCORES[score]} in %")

    return _panels(bench, (FIGURE_2,), draw)


def sweep_table(bench: Bench, comparisons: Sequence[Comparison]) -> list[list[object]]:
    """The numbers of Figure 2, with Mann-Whitney U of each row against the reference at the same M."""
    tests = {(one.row, one.partition, one.score, one.prototypes): one for one in comparisons}
    rows: list[list[object]] = [["row", "partition", "prototypes_per_class", "n", "mean", "sd", "u", "p"]]
    for row in bench.spec.sweep.rows:
        for partition in bench.spec.partitions:
            for m in _numbers(bench):
                cell, test = bench.cell(row, partition, FIGURE_2, m), tests.get((row, partition, FIGURE_2, m))
                numbers = [cell.mean if cell.values else None, cell.deviation]
                rows.append([row, partition, m, len(cell.values), *numbers, *((test.u, test.p) if test else ("", ""))])
    return rows


def rendered(figure: "Figure", form: str) -> bytes:
    """The file of a figure, as `png` or `pdf`."""
    content = io.BytesIO()
    figure.savefig(content, format=form, dpi=DPI, bbox_inches="tight", metadata=FORMATS[form])
    return content.getvalue()


def _panels(bench: Bench, scores: Sequence[str], draw: "Callable[[Axes, str, str], None]") -> "Figure":
    """A grid of a row a score and a column a partition, with one legend beside it."""
    from matplotlib.figure import Figure

    partitions = bench.spec.partitions
    figure = Figure(figsize=(4.2 * len(partitions) + 2, 3.2 * len(scores)), layout="constrained")
    grid = figure.subplots(len(scores), len(partitions), sharey="row", squeeze=False)
    for panels, score in zip(grid, scores, strict=True):
        for axes, (name, partition) in zip(panels, partitions.items(), strict=True):
            draw(axes, name, score)
            axes.set_title(partition.label)
            axes.grid(alpha=0.3)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize="small")
    return figure


def _mean_curve(bench: Bench, row: str, partition: str, score: str) -> tuple[list[int], list[float]]:
    """Rounds that all finished seeds have a score of, and its mean in percent."""
    runs = [result.validation for result in bench.of(row, partition)]
    common = set.intersection(*({int(version) for version in run} for run in runs)) if runs else set()
    rounds = sorted(version for version in common if all(score in run[str(version)] for run in runs))
    return rounds, [100 * statistics.fmean(run[str(version)][score] for run in runs) for version in rounds]


def _colour(bench: Bench, row: str) -> tuple[float, ...]:
    """The same in all figures; twenty differ."""
    from matplotlib import colormaps

    return colormaps["tab20"](bench.spec.ordered_rows().index(row) % 20)


def _numbers(bench: Bench) -> list[int]:
    return sorted(set(bench.spec.sweep.prototypes_per_class))
