"""The paper's Table 1 as Markdown, CSV and LaTeX: mean and deviation over the seeds, best and second marked."""

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from fedproin.tools.bench.scores import SCORES, Bench, Cell
from fedproin.tools.bench.significance import Comparison, smallest_p
from fedproin.tools.bench.spec import GROUPS

Mark = Literal["best", "second", ""]
Column = tuple[str, str]  # partition and score
LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}
NOT_RUN = "not run"
SYNTHETIC = "**SYNTHETIC PICTURES, drawn by this package: no score here says anything about real images.**"


def marks(bench: Bench) -> dict[tuple[str, str, str], Mark]:
    """Best and second of each column among the methods with all seeds, by what is printed: equal ones share a mark."""
    found: dict[tuple[str, str, str], Mark] = {}
    for partition, score in _columns(bench):
        cells = {row: bench.cell(row, partition, score) for row in bench.ranked_rows()}
        printed = {row: round(cell.mean, 1) for row, cell in cells.items() if cell.complete}
        order = sorted(set(printed.values()), reverse=True)
        for row, value in printed.items():
            place = order.index(value)
            found[row, partition, score] = "best" if place == 0 else "second" if place == 1 else ""
    return found


def markdown(bench: Bench, comparisons: Sequence[Comparison]) -> str:
    """The page: table, notes, p values, cost."""
    titles = [f"{bench.spec.partitions[partition].label} {SCORES[score]}" for partition, score in _columns(bench)]
    lines = [f"# {bench.spec.name}", "", *_markdown_head(["row", "steps", *titles])]
    marked = marks(bench)
    for group, rows in _groups(bench):
        lines += [_markdown_row([f"*{group}*", *[""] * (len(titles) + 1)])] if group else []
        for row in rows:
            texts = [
                _markdown_cell(bench.cell(row, *column), marked.get((row, *column), "")) for column in _columns(bench)
            ]
            lines.append(_markdown_row([_escaped(bench.spec.label(row)), _steps(bench, row), *texts]))
    notes = [f"- {note}" for note in _notes(bench)]
    return "\n".join([*lines, "", *notes, "", *_p_values(bench, comparisons), *_cost(bench)]) + "\n"


def csv_table(bench: Bench) -> str:
    """The same numbers for machines, not rounded; empty where nothing has run."""
    titles = [f"{partition}_{score}_{part}" for partition, score in _columns(bench) for part in ("mean", "sd")]
    counts = [f"{partition}_n" for partition in bench.spec.partitions]
    rows: list[list[object]] = [["row", "label", "group", "steps", *titles, *counts]]
    for row in bench.spec.ordered_rows():
        cells = [bench.cell(row, *column) for column in _columns(bench)]
        numbers = [number for cell in cells for number in (cell.mean if cell.values else None, cell.deviation)]
        runs = [len(bench.of(row, partition)) for partition in bench.spec.partitions]
        about = [row, bench.spec.label(row), bench.spec.rows[row].group, _mean_steps(bench, row)]
        rows.append([*about, *numbers, *runs])
    return to_csv(rows)


def to_csv(rows: Iterable[Iterable[object]]) -> str:
    """Lines that end with a line feed alone; None becomes an empty field."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def latex(bench: Bench) -> str:
    """A tabular for booktabs."""
    spec, width = bench.spec, len(SCORES)
    tops = [rf"\multicolumn{{{width}}}{{c}}{{{_tex(part.label)}}}" for part in spec.partitions.values()]
    rules = [rf"\cmidrule(lr){{{3 + i * width}-{2 + (i + 1) * width}}}" for i in range(len(spec.partitions))]
    lines = [f"% {line}" for line in _plain(_notes(bench))]
    lines += [
        rf"\begin{{tabular}}{{lr*{{{width * len(spec.partitions)}}}{{c}}}}",
        r"\toprule",
        _tex_row(["", "", *tops]),
        " ".join(rules),
    ]
    lines.append(_tex_row(["Method", "Steps", *[_tex(SCORES[score]) for _, score in _columns(bench)]]))
    marked = marks(bench)
    for _, rows in _groups(bench):
        lines.append(r"\midrule")
        for row in rows:
            texts = [_tex_cell(bench.cell(row, *column), marked.get((row, *column), "")) for column in _columns(bench)]
            lines.append(_tex_row([_tex(spec.label(row)), _steps(bench, row), *texts]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _columns(bench: Bench) -> list[Column]:
    return [(partition, score) for partition in bench.spec.partitions for score in SCORES]


def _groups(bench: Bench) -> list[tuple[str, list[str]]]:
    """Titles and rows; the methods, which come first, need no title."""
    spec = bench.spec
    by_group = {group: [row for row in spec.rows if spec.rows[row].group == group] for group in GROUPS}
    return [("" if group == "method" else GROUPS[group], rows) for group, rows in by_group.items() if rows]


def _cell_text(cell: Cell, plus_minus: str, mark: Callable[[str], str]) -> str:
    """Such as `71.2 ± 0.4`, with `(2 of 3)` behind it while seeds are missing."""
    if not cell.values:
        return NOT_RUN
    deviation = "" if cell.deviation is None else f" {plus_minus} {cell.deviation:.1f}"
    missing = "" if cell.complete else f" ({len(cell.values)} of {cell.wanted})"
    return mark(f"{cell.mean:.1f}{deviation}") + missing


def _markdown_cell(cell: Cell, mark: Mark) -> str:
    around = {"best": ("**", "**"), "second": ("<u>", "</u>"), "": ("", "")}[mark]
    return _cell_text(cell, "±", lambda text: text.join(around))


def _tex_cell(cell: Cell, mark: Mark) -> str:
    command = {"best": r"\textbf{", "second": r"\underline{", "": ""}[mark]
    return _cell_text(cell, r"$\pm$", lambda text: f"{command}{text}}}" if command else text)


def _steps(bench: Bench, row: str) -> str:
    mean = _mean_steps(bench, row)
    return "-" if mean is None else f"{mean:,.0f}"


def _mean_steps(bench: Bench, row: str) -> float | None:
    steps = [result.steps for result in bench.all_of(row)]
    return statistics.fmean(steps) if steps else None


def _notes(bench: Bench) -> list[str]:
    spec, results = bench.spec, list(bench.results.values())
    n, wanted = len(spec.seeds), len(bench.runs)
    versions = sorted({result.versions["fedproin"] for result in results})
    notes = [
        f"{spec.images.capitalize()} images of all sites together, {spec.model} model, in percent: "
        f"mean ± standard deviation (n - 1) over {n} seeds, which change split, partition, initial model and draws. "
        "Best of the methods bold, second underlined; other groups are not ranked. A method without a global model is "
        "scored by each site's own model. Steps: of the optimizers of all sites in a run, mean over its runs.",
        f"{len(results)} of {wanted} runs are done, {spec.sites} sites.",
    ]
    if n > 1:
        limit = ", so no difference here can be significant at 0.05" if smallest_p(n) > 0.05 else ""
        notes.append(
            f"p: two-sided Mann-Whitney U, n = {n} against {n} runs; the smallest p that {n} seeds can give is "
            f"{smallest_p(n):.2g}{limit}."
        )
    if any(result.data == "synthetic" for result in results):
        notes.insert(0, SYNTHETIC)
    if len(versions) > 1:
        notes.append(f"The runs are of {len(versions)} versions of the code: {', '.join(versions)}.")
    return notes


def _p_values(bench: Bench, comparisons: Sequence[Comparison]) -> list[str]:
    found = {(one.row, one.partition, one.score): one.p for one in comparisons if one.prototypes is None}
    if not found:
        return []
    titles = [f"{bench.spec.partitions[partition].label} {SCORES[score]}" for partition, score in _columns(bench)]
    lines = [f"## p against {bench.spec.label(bench.spec.reference)}", "", *_markdown_head(["row", *titles])]
    for row in bench.spec.ordered_rows():
        values = [found.get((row, *column)) for column in _columns(bench)]
        if any(value is not None for value in values):
            texts = ["-" if value is None else f"{value:.2g}" for value in values]
            lines.append(_markdown_row([_escaped(bench.spec.label(row)), *texts]))
    return [*lines, ""]


def _cost(bench: Bench) -> list[str]:
    lines = ["## Cost of a run", "", *_markdown_head(["row", "steps", "seconds", "MB to sites", "MB to server"])]
    for row in bench.spec.ordered_rows():
        results = bench.all_of(row)
        if results:
            means = [
                statistics.fmean(getattr(result, name) for result in results)
                for name in ("steps", "seconds", "bytes_down", "bytes_up")
            ]
            texts = [f"{means[0]:,.0f}", f"{means[1]:,.0f}", f"{means[2] / 1e6:,.1f}", f"{means[3] / 1e6:,.1f}"]
            lines.append(_markdown_row([_escaped(bench.spec.label(row)), *texts]))
    return lines


def _markdown_head(titles: Sequence[str]) -> list[str]:
    return [_markdown_row(titles), _markdown_row(["---", *["---:"] * (len(titles) - 1)])]


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")


def _plain(lines: Iterable[str]) -> list[str]:
    return [line.replace("**", "").replace("±", "+-") for line in lines]


def _tex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def _tex_row(cells: Iterable[str]) -> str:
    return rf"{' & '.join(cells)} \\"
