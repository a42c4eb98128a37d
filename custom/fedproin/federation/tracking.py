"""TensorBoard of one run, written by the server alone from its records: one TensorBoard run a site, and `global`.

C classes, M prototypes a class, D feature size.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproin.federation.records import Confusion, FinalRecord, RoundRecord, RunRecord, Scores, SiteRecord

LOSS = "loss/"  # the only tags that count local epochs; all others count rounds
UNUSED = "#f4c7a1"
LONGEST_NAME = 18
FRAME = 16  # bytes of length and checksums around each record of an event file


class Tracker:
    """Curves, pictures and prototypes of one run.

    Args:
        directory: gets one folder a site and `global`; `tensorboard --logdir` takes it.
        classes: names in the order of the model's outputs.
        resume_from: the first round to come; what an earlier process wrote of it, or of a later one, is removed.
    """

    def __init__(self, directory: Path, classes: Sequence[str], resume_from: int = 0) -> None:
        self._directory = directory
        self._classes = list(classes)
        self._writers: dict[str, Any] = {}
        self._cells: dict[str, Cells] = {}
        self._projected = 0
        for folder in directory.glob("*/"):
            _cut(folder, resume_from)

    def round(self, record: RoundRecord, prototypes: NDArray[Any] | None = None) -> None:
        """Write one round; `prototypes` [C, M, D] are those after it."""
        for name, site in sorted(record.sites.items()):
            self._site(name, site, record.round)
        self._scores("global", "validation", record.validation, record.round)
        self._federation(record)
        self._pooled_influence(record)
        self._confusion("validation", record.confusion, record.round)
        version = record.round + 1
        if prototypes is not None and version & record.round == 0:  # versions 1, 2, 4, 8: few, and the early moves
            self._project(prototypes, version)
        self._flush()

    def final(self, run: RunRecord, prototypes: NDArray[Any] | None = None) -> None:
        """Write the test scores of the last and the best model; `prototypes` [C, M, D] are the last model's."""
        ended = run.rounds[-1].round + 1 if run.rounds else 0
        if run.last is not None:
            self._scores("global", "validation", run.last.validation, ended)
            self._test("test_last", run.last)
        if run.best is not None:
            self._test("test_best", run.best)
        if prototypes is not None and self._projected != ended:
            self._project(prototypes, ended)
        self._flush()

    def close(self) -> None:
        """Write what is left and close the files."""
        with ExitStack() as stack:  # one that fails keeps none of the others open
            while self._writers:
                stack.callback(self._writers.popitem()[1].close)

    def _site(self, name: str, site: SiteRecord, step: int) -> None:
        self._scores(name, "validation", site.validation, step)
        if site.status != "trained":  # numbers of a refused update need not make sense
            return
        self._scalar(name, "site/seconds", site.seconds, step)
        self._scalar(name, "site/steps", site.steps, step)
        self._influence(name, np.array(site.influence), step)
        for term, means in site.losses.items():
            for epoch, mean in enumerate(means):
                self._scalar(name, LOSS + term, mean, step * len(means) + epoch)

    def _federation(self, record: RoundRecord) -> None:
        states = [site.status for site in record.sites.values()]
        values = {
            "participants": len(record.participants),
            "trained": states.count("trained"),
            "refused": states.count("refused"),
            "bytes_up": sum(site.bytes_up for site in record.sites.values()),
            "seconds": record.seconds,
        }
        for name, value in values.items():
            self._scalar("global", f"federation/{name}", value, record.round)

    def _pooled_influence(self, record: RoundRecord) -> None:
        counts = [s.influence for s in record.sites.values() if s.status == "trained" and s.influence]
        if counts:
            unused_CM = np.array(record.unused) if record.unused else np.array(False)
            self._influence("global", np.where(unused_CM, 0, np.sum(counts, axis=0)), record.round)

    def _influence(self, run: str, counts_CM: NDArray[Any], step: int) -> None:
        if counts_CM.size == 0:
            return
        self._scalar(run, "prototypes/used", (counts_CM > 0).mean(), step)
        if "influence" not in self._cells:
            columns = [str(index) for index in range(counts_CM.shape[1])]
            self._cells["influence"] = Cells(self._classes, columns, "prototype", "class")
        shade_CM = np.sqrt(counts_CM / max(counts_CM.max(), 1))  # the root keeps rare classes visible
        pixels = self._cells["influence"].draw(counts_CM, np.where(counts_CM > 0, shade_CM, np.nan))
        self._image(run, "influence", pixels, step)

    def _confusion(self, name: str, confusion: Confusion, step: int) -> None:
        if not confusion:
            return
        if "confusion" not in self._cells:
            self._cells["confusion"] = Cells(self._classes, self._classes, "predicted class", "true class")
        counts_CC = np.array(confusion)
        shade_CC = counts_CC / counts_CC.sum(axis=1, keepdims=True).clip(1)
        self._image("global", f"confusion/{name}", self._cells["confusion"].draw(counts_CC, shade_CC), step)

    def _test(self, name: str, model: FinalRecord) -> None:
        for run, scores in {"global": model.test, **model.sites}.items():
            self._scores(run, name, scores, model.version)
        self._confusion(name, model.confusion, model.version)

    def _project(self, prototypes: NDArray[Any], version: int) -> None:
        C, M, D = prototypes.shape
        rmtree(self._directory / "global" / f"{version:05d}", ignore_errors=True)  # left by a process that was stopped
        points = np.asarray(prototypes, dtype=np.float32).reshape(C * M, D)
        labels = [[f"{name} {index}", name] for name in self._classes for index in range(M)]
        header = ["prototype", "class"]
        self._writer("global").add_embedding(points, labels, None, version, "prototypes", metadata_header=header)
        self._projected = version

    def _scores(self, run: str, group: str, scores: Scores, step: int) -> None:
        for name, value in scores.items():
            self._scalar(run, f"{group}/{name}", value, step)

    def _scalar(self, run: str, tag: str, value: float, step: int) -> None:
        self._writer(run).add_scalar(tag, float(value), step)

    def _image(self, run: str, tag: str, pixels: NDArray[np.uint8], step: int) -> None:
        self._writer(run).add_image(tag, pixels, step, dataformats="HWC")

    def _flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def _writer(self, run: str) -> Any:
        if run not in self._writers:
            from torch.utils.tensorboard import SummaryWriter

            self._writers[run] = SummaryWriter(str(self._directory / run))
        return self._writers[run]


class Cells:
    """A matrix as coloured cells with a count in each; what surrounds the cells is slow to draw and so drawn once."""

    def __init__(self, rows: Sequence[str], columns: Sequence[str], x_label: str, y_label: str) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self._side = min(0.36, 9 / len(rows))  # inches
        size = (max(len(columns) * self._side, 1.2) + _space(rows), len(rows) * self._side + _space(columns))
        figure = Figure(size, dpi=100, layout="constrained")
        self._canvas = FigureCanvasAgg(figure)
        self._axes = figure.add_subplot()
        self._colours = self._axes.imshow(np.zeros((len(rows), len(columns))), "Blues", vmin=0, vmax=1, aspect="auto")
        self._colours.set(animated=True, cmap=self._colours.get_cmap().with_extremes(bad=UNUSED))
        self._number = self._axes.text(0, 0, "", fontsize=7, ha="center", va="center", animated=True)
        self._name(rows, columns, x_label, y_label)
        self._canvas.draw()
        self._frame = self._canvas.copy_from_bbox(figure.bbox)

    def draw(self, counts: NDArray[Any], shade: NDArray[Any]) -> NDArray[np.uint8]:
        """Pixels [height, width, 3]; `shade` is the depth of colour in [0, 1], nan for what was not used."""
        self._canvas.restore_region(self._frame)
        self._colours.set_data(shade)
        self._axes.draw_artist(self._colours)
        if self._side > 0.25:  # smaller cells have no room for a number
            for (row, column), count in np.ndenumerate(counts):
                if count or np.isnan(shade[row, column]):
                    ink = "white" if shade[row, column] > 0.6 else "black"
                    self._number.set(x=column, y=row, text=str(count) if count else "unused", color=ink)
                    self._axes.draw_artist(self._number)
        return np.asarray(self._canvas.buffer_rgba())[..., :3].copy()

    def _name(self, rows: Sequence[str], columns: Sequence[str], x_label: str, y_label: str) -> None:
        upright = 90 if max(map(len, columns)) > 2 else 0
        self._axes.set_xticks(range(len(columns)), _shortened(columns), fontsize=8, rotation=upright)
        self._axes.set_yticks(range(len(rows)), _shortened(rows), fontsize=8)
        self._axes.set_xlabel(x_label, fontsize=8)
        self._axes.set_ylabel(y_label, fontsize=8)
        self._axes.tick_params(length=0)
        self._axes.spines[:].set_visible(False)


def _shortened(names: Sequence[str]) -> list[str]:
    return [name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…" for name in names]


def _space(names: Sequence[str]) -> float:
    return 0.5 + 0.075 * max(map(len, _shortened(names)))


def _cut(folder: Path, first: int) -> None:
    """Remove what the event files of one TensorBoard run hold of round `first` and later ones, and a torn last record.

    TensorBoard's own way, `purge_step`, knows one step for a whole run; here losses count epochs and the rest rounds.
    Each round begins with a point that counts rounds, so all from the first such point on goes.
    """
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

    cut = False
    for path in sorted(folder.glob("events.out.tfevents.*")):
        if cut:
            path.unlink()
            continue
        size = 0
        for record in RawEventFileLoader(str(path)).Load():
            cut = _belongs_to_round(record) >= first
            if cut:
                break
            size += len(record) + FRAME
        os.truncate(path, size)


def _belongs_to_round(record: bytes) -> int:
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event.FromString(record)
    counts_rounds = any(not value.tag.startswith(LOSS) for value in event.summary.value)
    return int(event.step) if counts_rounds else -1
