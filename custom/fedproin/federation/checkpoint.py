"""The server's whole state after a round in one file, and the models that a run leaves behind."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedproin.errors import UserError
from fedproin.federation.records import RunRecord
from fedproin.federation.results import run_from_dict
from fedproin.methods.base import ServerState, Tensors
from fedproin.tensor_file import load_tensors, save_tensors

FILE = "checkpoint.safetensors"


@dataclass(frozen=True)
class BestModel:
    """The best validated model so far.

    Attributes:
        version: rounds of training that it has seen.
        score: its pooled validation score.
    """

    version: int
    score: float
    public: Tensors


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on.

    Attributes:
        state: the global model after the last recorded round.
        best: none before the first validation.
        run: the record so far; the next round is the number of recorded ones.
        finished: the final scores are in the record.
    """

    state: ServerState
    best: BestModel | None
    run: RunRecord
    finished: bool = False

    def save(self, directory: Path) -> None:
        """Replace the directory's checkpoint atomically."""
        tensors: dict[str, Tensor] = {}
        best = self.best.public if self.best else {}
        for part, named in (("public", self.state.public), ("private", self.state.private), ("best", best)):
            tensors |= {f"{part}/{name}": tensor for name, tensor in named.items()}
        header: dict[str, Any] = {"run": asdict(self.run), "finished": self.finished}
        if self.best:
            header |= {"best_version": self.best.version, "best_score": self.best.score}
        save_tensors(directory / FILE, tensors, header)


def load_checkpoint(directory: Path, fresh: RunRecord) -> Checkpoint | None:
    """The state of an earlier job under the same run name; none when there was none.

    Raises:
        UserError: that run is finished, had other settings or sites, or its file is damaged.
    """
    if not (directory / FILE).exists():
        return None
    tensors, header = load_tensors(directory / FILE)
    run = run_from_dict(header.get("run"))
    if run.settings_digest != fresh.settings_digest:
        raise UserError(
            f"Run '{run.run}' was started with other settings; choose another name for 'run' in settings.json."
        )
    if run.site_names != fresh.site_names:
        raise UserError(
            f"Run '{run.run}' was started with other sites; bring them back, or choose another name for 'run'."
        )
    if header.get("finished"):
        raise UserError(
            f"Run '{run.run}' is finished; choose another name for 'run' in settings.json to start a new one."
        )
    public, private, best = (_part(tensors, name) for name in ("public", "private", "best"))
    try:
        scored = "best_version" in header  # a best model may have no public tensors: it is at the sites
        best_model = BestModel(int(header["best_version"]), float(header["best_score"]), best) if scored else None
    except (KeyError, ValueError, TypeError, OverflowError):
        raise UserError(f"{FILE} is damaged or of another version; remove it or restore a copy.") from None
    return Checkpoint(ServerState(public, private), best_model, run)


def _part(tensors: Tensors, name: str) -> Tensors:
    return {key.removeprefix(f"{name}/"): tensor for key, tensor in tensors.items() if key.startswith(f"{name}/")}


def finish(checkpoint: Checkpoint, run: RunRecord) -> Checkpoint:
    """The checkpoint of a run that has its final scores."""
    return replace(checkpoint, run=run, finished=True)


def save_model(path: Path, public: Tensors, run: RunRecord, version: int) -> None:
    """A model for later use, with what is needed to build it: settings, classes and how long it was trained."""
    header = {
        "settings": run.settings,
        "classes": run.classes,
        "method": run.method,
        "version": version,
        "run_id": run.run_id,
    }
    save_tensors(path, public, header)
