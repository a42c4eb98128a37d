"""Lines for people, made from the records: pure functions, no logging.

Rounds count from 1 here and from 0 in the records; scores of a round are those of the model that it began with.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedproin.federation.records import FinalRecord, RoundRecord, RunRecord, Scores, SiteRecord
from fedproin.federation.results import BEST_MODEL, LAST_MODEL, RESULTS, TENSORBOARD

COLUMNS = {"accuracy": "accuracy", "f1_weighted": "weighted F1", "mcc": "MCC", "balanced_accuracy": "balanced accuracy"}
NAME = 7  # width of a site's name: site-10
SYNTHETIC = "SYNTHETIC PICTURES, drawn by this package: no score here says anything about real images."


def opening_lines(run: RunRecord) -> list[str]:
    """Who runs what on which data."""
    own, *others = [f"{package} {version}" for package, version in run.versions.items()]
    lines = [
        f"{own} with {', '.join(others)}",
        f"run {run.run} ({run.run_id}), method {run.method}, seed {run.seed}, settings {run.settings_digest[:12]}",
        f"{len(run.site_names)} sites: {', '.join(run.site_names)}",
        f"{len(run.classes)} classes: {', '.join(run.classes)}",
        f"data: {run.data}" + (f", dealt out over the sites: {run.partition}" if run.partition else ""),
    ]
    if run.rounds:
        lines.append(f"goes on after round {run.rounds[-1].round + 1} of an earlier job")
    return lines + (_banner(SYNTHETIC) if run.data == "synthetic" else [])


def site_line(round_: int, total: int, site: str, record: SiteRecord, width: int = NAME) -> str:
    """What one site did in a round: losses of its last epoch, validation of the model it received."""
    head = _head(round_, total, site, width)
    if record.status not in ("trained", "validated"):
        return f"{head}  {record.status}: {record.reason}".removesuffix(": ")
    parts = [head, f"{duration(record.seconds):>6}"]
    if record.losses:
        parts.append(_losses(record.losses))
    if "mcc" in record.validation:
        parts.append(f"val mcc {record.validation['mcc']:.3f}")
    if record.influence:
        parts.append(f"prototypes {np.count_nonzero(record.influence)}/{np.size(record.influence)}")
    if record.notes:
        parts.append(f"[{', '.join(record.notes).replace('_', ' ')}]")
    return "  ".join(parts)


def round_line(record: RoundRecord, total: int, eta_seconds: float, width: int = NAME) -> str:
    """What a round brought: pooled validation of the model it began with, who took part, the time that is left."""
    states = [site.status for site in record.sites.values()]
    parts = [_head(record.round, total, "global", width), f"{duration(record.seconds):>6}"]
    if record.validation:
        parts.append(_validation(record.validation))
    parts.append(f"trained {states.count('trained')}/{len(record.participants)}")
    parts += [f"{state} {states.count(state)}" for state in ("failed", "refused", "missing") if state in states]
    if record.unused:
        parts.append(f"unused prototypes {np.count_nonzero(record.unused)}/{np.size(record.unused)}")
    if not record.counted:
        parts.append("NOT COUNTED: too few updates, the model stays as it was")
    if record.round + 1 < total:
        parts.append(f"left {duration(eta_seconds)}")
    return "  ".join(parts)


def final_table(run: RunRecord, directory: Path) -> str:
    """Pooled test scores and recall of the last and the best model, and where to find what the run left."""
    models = {name: model for name, model in (("last", run.last), ("best", run.best)) if model is not None}
    lines = [*_scores(models), "", *_recall(run.classes, models)] if models else ["The run has no test scores."]
    lines += ["", *_places(directory), f"time         {duration(run.seconds)}"]
    return "\n".join(lines + ([SYNTHETIC] if run.data == "synthetic" else []))


def _head(round_: int, total: int, name: str, width: int) -> str:
    return f"round {round_ + 1:>{len(str(total))}}/{total}  {name:<{width}}"


def duration(seconds: float, decimals: int = 1) -> str:
    """Such as `42.0 s`, `2:13` (minutes) or `1:02:13`."""
    if seconds < 100:
        return f"{seconds:.{decimals}f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _losses(losses: dict[str, list[float]]) -> str:
    last = {term: means[-1] for term, means in losses.items() if means}
    terms = " ".join(f"{term} {mean:.3f}" for term, mean in last.items() if term != "total")
    total = f"loss {last['total']:.3f}" if "total" in last else "loss"
    return f"{total} ({terms})" if terms else total


def _validation(scores: Scores) -> str:
    others = " ".join(f"{name} {scores[name]:.3f}" for name in COLUMNS if name != "mcc")
    return f"val mcc {scores['mcc']:.3f} ({others})"


def _banner(text: str) -> list[str]:
    edge = "*" * (len(text) + 6)
    return [edge, f"** {text} **", edge]


def _scores(models: dict[str, FinalRecord]) -> list[str]:
    model = next(iter(models.values()))
    title = f"test scores in percent, {np.sum(model.confusion)} images of {len(model.sites)} sites together"
    rows = [["model", *COLUMNS.values()]]
    for name, model in models.items():
        rows.append([f"{name} (after round {model.version})", *(_percent(model.test.get(score)) for score in COLUMNS)])
    return [title, *_aligned(rows)]


def _recall(classes: Sequence[str], models: dict[str, FinalRecord]) -> list[str]:
    images = np.sum(next(iter(models.values())).confusion, axis=1)
    rows = [["recall of class", "test images", *models]]
    for index, name in enumerate(classes):
        rows.append([name, str(images[index]), *(_percent(model.recall[index]) for model in models.values())])
    return _aligned(rows)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([f"{first:<{widths[0]}}", *cells]))
    return lines


def _places(directory: Path) -> list[str]:
    return [
        f"last model   {directory / LAST_MODEL}",
        f"best model   {directory / BEST_MODEL}",
        f"results      {directory / RESULTS}",
        f"TensorBoard  tensorboard --logdir {shlex.quote(str(directory / TENSORBOARD))}",
    ]
