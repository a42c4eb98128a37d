"""What a site does with a task: receive the model, score it, train it, remember, answer.

It never logs: what leaves is an `Answer`, whose error is one safe sentence; a traceback goes to a private file here.
"""

import os
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedproin.data.location import Location
from fedproin.data.site_images import SiteImages, open_site, table_classes
from fedproin.errors import SettingsError, UserError
from fedproin.federation.identity import package_identity
from fedproin.federation.messages import Answer, Arrays, Task
from fedproin.methods import create_method
from fedproin.methods.base import Memory, Method, RoundContext, initial_model
from fedproin.models.encoders import input_statistics
from fedproin.settings import Settings
from fedproin.training.batches import Part
from fedproin.training.device import prepare_device
from fedproin.training.evaluation import confusion, log_frequencies
from fedproin.training.loop import train_round
from fedproin.training.site_state import SiteState


class Site:
    """One site of one run; data and model are opened with the first task and kept.

    Args:
        name: of the site.
        settings: of the job.
        location: of its images.
        directory: the site's own; state and error details go below it.
    """

    def __init__(self, name: str, settings: Settings, location: Location, directory: Path) -> None:
        self.name, self.location, self.directory = name, location, directory
        self.settings = settings.with_classes(table_classes(settings, location))
        self.device, self.autocast_dtype = prepare_device(settings.training)
        self.method: Method = create_method(self.settings)
        model = initial_model(self.method, name, pretrained=self.method.scored == "local")
        state, local = model.state_dict(), sorted(self.method.local_names(model))
        self._initial = {name: state[name].clone() for name in local}  # what no message brings in the first round
        self.model: nn.Module = model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._images: SiteImages | None = None

    def run(self, task: Task) -> Answer:
        """Do the task; whatever goes wrong becomes an answer with an error."""
        started = time.monotonic()
        try:
            fields = self._do(task)
        except Exception as error:  # a site that fails costs its own round, whatever the reason
            fields = {"error": describe_failure(error, self.directory)}
        return Answer(
            kind=task.kind,
            run_id=task.run_id,
            round=task.round,
            seconds=time.monotonic() - started,
            synthetic=self.location.synthetic,
            package=package_identity(),
            **fields,
        )

    def _do(self, task: Task) -> dict[str, Any]:
        if task.settings_digest != self.settings.digest():
            raise SettingsError("This site's settings of the job differ from the server's; submit the job again.")
        if self._images is None:
            self._images = open_site(self.settings, self.location, self.name, task.sites)
        state = SiteState(self.directory / "state", task.run_id)
        return self._score(task, state) if task.kind == "score" else self._round(task, state)

    def _round(self, task: Task, state: SiteState) -> dict[str, Any]:
        assert self._images is not None
        ctx = self._receive(task.model, task.round, state)
        if ctx.memory is not None and ctx.memory.table not in ("", self._images.table):
            ctx.notes.append("data_table_differs_from_earlier_rounds")
        counts = {"val": self._confusion("val", ctx)} if task.validate else {}
        train = self._part("train")
        answer: dict[str, Any] = {"confusion": counts, "samples": len(train)}
        if self.name in task.train and len(train):
            if ctx.memory is None and self.name in task.trained_before and "state_damaged" not in ctx.notes:
                ctx.notes.append("state_lost")
            result, report = train_round(self.method, self.model, train, ctx)
            state.save(task.round, result.remember, task.best_version, self._images.table)
            answer |= {
                "trained": True,
                "tensors": _to_arrays(result.shared),
                "extras": _to_arrays(result.extras),
                "steps": report.steps,
                "presentations": report.presentations,
                "losses": report.losses,
            }
        elif self.name in task.train:
            ctx.notes.append("no_training_images")
        return answer | {"notes": tuple(ctx.notes)}

    def _score(self, task: Task, state: SiteState) -> dict[str, Any]:
        ctx = self._receive(task.model, task.round, state)
        counts = {"val": self._confusion("val", ctx), "test_last": self._confusion("test", ctx)}
        if task.best_version is not None:
            best = self._receive(task.best, task.best_version, state)
            counts["test_best"] = self._confusion("test", best)
        return {"confusion": counts, "samples": len(self._part("train"))}

    def _receive(self, arrays: Arrays, round_: int, state: SiteState) -> RoundContext:
        """Take a message into the model, with what the site had kept when that round began."""
        notes: list[str] = []
        memory = _load(state, round_, notes)
        message = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        self.method.receive(self.model, {**self._initial, **message}, memory)
        beside = {name: message[name] for name in message.keys() - self.model.state_dict().keys()}
        return RoundContext(
            self.settings, round_, self.device, self.autocast_dtype, memory, self.name, beside, notes=notes
        )

    def _confusion(self, part: str, ctx: RoundContext) -> NDArray[np.int64]:
        log_prior = None
        if self.settings.federation.prior_correction:
            _, trained = self._rows_of(part, "train")
            log_prior = log_frequencies(trained, len(self.settings.data.classes)).to(self.device)
        counts: NDArray[np.int64] = confusion(self.method, self.model, self._part(part), ctx, log_prior).numpy()
        return counts

    def _part(self, name: str) -> Part:
        assert self._images is not None
        rows, labels = self._rows_of(name, name)
        data = self.settings.data
        mean, std = input_statistics(self.settings.model.backbone)
        return Part(
            self._images.images,
            rows,
            labels,
            data.mean or mean,
            data.std or std,
            self.settings.training.batch_size,
            self.device,
        )

    def _rows_of(self, scope: str, part: str) -> tuple[NDArray[np.int64], Tensor]:
        """Rows and labels of a part, of the sites whose part `scope` counts here: this one, or all."""
        assert self._images is not None
        rows = getattr(self._images.union if self._of_all_sites(scope) else self._images, part)
        return rows, torch.from_numpy(self._images.labels[rows])

    def _of_all_sites(self, part: str) -> bool:
        """Whether a part is that of all sites together, which a simulation alone can give."""
        assert self._images is not None
        if part == "train":
            wanted = required = self.method.trains_on == "union"
        else:
            where = self.settings.federation.local_scores
            wanted = self.method.scored == "local" and where != "slices"
            required = wanted and where == "pooled_full"
        if required and self._images.union is None:
            raise SettingsError(
                "Images of all sites together exist in a simulation only; choose another method, or slices."
            )
        return wanted and self._images.union is not None


def describe_failure(error: Exception, directory: Path) -> str:
    """A sentence that may leave the site; all else goes to `error.log` in the site's directory."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "error.log", "a", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        traceback.print_exception(error, file=file)
    if isinstance(error, UserError):
        return str(error)
    return f"Training failed with {type(error).__name__}; the details are in fedproin/error.log at the site."


def _load(state: SiteState, round_: int, notes: list[str]) -> Memory | None:
    try:
        return state.load(before=round_)
    except UserError:  # lost state is what a first participation has: the terms that need it are skipped
        notes.append("state_damaged")
        return None


def _to_arrays(tensors: dict[str, Tensor]) -> dict[str, NDArray[np.generic]]:
    return {name: np.array(tensor.detach().cpu().numpy(), order="C") for name, tensor in tensors.items()}
