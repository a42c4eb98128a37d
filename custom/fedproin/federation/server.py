"""What the server does: draw the sites, check their answers, merge, keep the best model, score it at the end.

It does not know how messages travel: an `exchange` does that, FLARE's or the local engine's.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedproin.errors import UserError
from fedproin.federation import console
from fedproin.federation.checkpoint import BestModel, Checkpoint, finish, load_checkpoint, save_model
from fedproin.federation.messages import Answer, Arrays, Task
from fedproin.federation.open_round import Expected, OpenRound
from fedproin.federation.participation import draw
from fedproin.federation.records import RoundRecord, RunRecord, Scores
from fedproin.federation.results import BEST_MODEL, LAST_MODEL, RESULTS, TENSORBOARD, write_results
from fedproin.federation.tracking import Tracker
from fedproin.maths.scores import scores
from fedproin.methods import create_method
from fedproin.methods.base import Method, Tensors, Update, initial_model
from fedproin.settings import Settings

Exchange = Callable[[Task, Sequence[str]], Mapping[str, str]]
"""Send a task to sites, hand each answer to `Server.accept`; return why the sites that gave none did not."""


class Server:
    """The server's side of one run.

    Args:
        settings: of the job, with its classes.
        directory: where checkpoint, models, results and TensorBoard files go; it outlives the job.
        fresh: the record of a run that has not begun; an earlier run of this name goes on with its own.
        deadline_seconds: when a round closes without the sites that are late; none in a simulation.
        log: takes one line at a time.

    Raises:
        UserError: an earlier run of this name cannot go on, or the directory cannot be made.
    """

    def __init__(
        self,
        settings: Settings,
        directory: Path,
        fresh: RunRecord,
        deadline_seconds: float | None,
        log: Callable[[str], None],
    ) -> None:
        self.settings, self.directory, self.log = settings, directory, log
        self.sites, self._deadline_seconds = tuple(fresh.site_names), deadline_seconds
        self.method: Method = create_method(settings)
        torch.set_num_threads(settings.training.threads)  # a method may train in `merge`: the same bits on any machine
        with _writing():
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        earlier = load_checkpoint(directory, fresh)
        model = initial_model(self.method, pretrained=earlier is None and self.method.scored == "global")
        self._checkpoint = earlier or Checkpoint(self.method.initial(model), None, fresh)
        shared, extras = frozenset(self.method.shared_names(model)), self.method.extras(model)
        self._expected = Expected(settings, shared, extras, self.run_record.data == "synthetic")
        self._lock = threading.Lock()
        self._open: OpenRound | None = None

    @property
    def run_record(self) -> RunRecord:
        """All that is known of the run so far."""
        return self._checkpoint.run

    def run(self, exchange: Exchange) -> RunRecord:
        """All rounds that are left, then the final scores.

        Raises:
            UserError: the run cannot go on; the checkpoint of its last whole round stands.
        """
        started = time.monotonic() - self.run_record.seconds
        for line in console.opening_lines(self.run_record):
            self.log(line)
        rounds = range(len(self.run_record.rounds), self.settings.federation.rounds)
        with _writing():
            tracker = Tracker(self.directory / TENSORBOARD, self.settings.data.classes, resume_from=rounds.start)
        try:
            for round_ in rounds:
                record = self._train_round(round_, exchange)
                self.run_record.seconds = time.monotonic() - started
                with _writing():
                    self._save_round(record, tracker)
                self._report(record)
            self._final_scores(exchange)
            self.run_record.seconds = time.monotonic() - started
            with _writing():
                self._save_end(tracker)
        except BaseException:
            with suppress(OSError):  # what went wrong first is what counts
                tracker.close()
            raise
        with _writing():
            tracker.close()
        self.log(console.final_table(self.run_record, self.directory))
        return self.run_record

    def accept(self, site: str, answer: Answer) -> str:
        """Take an answer of a site; the reason if it is refused. Never raises: one bad answer must not end a round."""
        with self._lock:
            if self._open is None:
                return "no round is open"
            return self._open.accept(site, answer)

    def refuse(self, site: str, reason: str) -> str:
        """Record that a message of a site could not even be read; returns the reason."""
        with self._lock:
            return self._open.refuse(site, reason) if self._open else reason

    def global_model(self) -> Arrays:
        """The public tensors of the global model, as of the last closed round."""
        return _to_arrays(self._checkpoint.state.public)

    def _train_round(self, round_: int, exchange: Exchange) -> RoundRecord:
        federation = self.settings.federation
        participants = self._participants(round_)
        validate = round_ > 0 and round_ % federation.validate_every == 0
        task = self._task("round", round_, participants, validate)
        opened, seconds = self._exchange(task, self.sites if validate else participants, exchange)
        record = RoundRecord(round_, list(participants), opened.records(), seconds=seconds)
        if validate:
            self._validate(round_, opened, record)
        updates = opened.updates()
        record.counted = len(updates) >= federation.quorum
        if record.counted:
            self._checkpoint = replace(self._checkpoint, state=self.method.merge(self._checkpoint.state, updates))
            record.unused = _unused(updates)
        if round_ == 0:
            _require_a_start(record)
        self.run_record.rounds.append(record)
        return record

    def _participants(self, round_: int) -> tuple[str, ...]:
        if self.method.trains_on == "union":  # one site has all there is
            return self.sites[:1]
        return draw(self.settings.seed, round_, self.sites, self.settings.federation.participation)

    def _exchange(self, task: Task, targets: Sequence[str], exchange: Exchange) -> "tuple[OpenRound, float]":
        started = time.monotonic()
        opened = OpenRound(task, targets, self._expected)
        with self._lock:
            self._open = opened
        try:
            opened.missing = exchange(task, targets)
        finally:
            with self._lock:
                self._open = None
        return opened, time.monotonic() - started

    def _task(self, kind: str, round_: int, train: Sequence[str], validate: bool) -> Task:
        best = self._checkpoint.best
        return Task(
            kind="score" if kind == "score" else "round",
            run_id=self.run_record.run_id,
            settings_digest=self.settings.digest(),
            round=round_,
            sites=self.sites,
            train=tuple(train),
            validate=validate,
            deadline_seconds=self._deadline_seconds,
            model=self.global_model(),
            best=_to_arrays(best.public) if best and kind == "score" else {},
            best_version=best.version if best else None,
            trained_before=self._trained_before(),
        )

    def _trained_before(self) -> tuple[str, ...]:
        records = [item for past in self.run_record.rounds for item in past.sites.items()]
        trained = {site for site, own in records if own.status == "trained"}
        return tuple(site for site in self.sites if site in trained)

    def _validate(self, version: int, opened: "OpenRound", record: RoundRecord) -> None:
        counts = opened.pooled("val")
        if counts.any():  # else nobody answered, or nobody has validation images
            record.confusion, record.validation = counts.tolist(), scores(torch.from_numpy(counts))
            self._keep_best(version, record.validation)

    def _keep_best(self, version: int, validation: Scores) -> None:
        score, best = validation[self.settings.federation.best_score], self._checkpoint.best
        if best is None or score >= best.score:  # of equals the longer trained one
            self._checkpoint = replace(self._checkpoint, best=BestModel(version, score, self._checkpoint.state.public))

    def _final_scores(self, exchange: Exchange) -> None:
        rounds, best = self.settings.federation.rounds, self._checkpoint.best
        task = self._task("score", rounds, (), True)
        opened, _ = self._exchange(task, self.sites, exchange)
        self._report_unscored(opened)
        counts = opened.pooled("val")
        validation = scores(torch.from_numpy(counts))
        self.run_record.last = opened.final(rounds, validation, "test_last")
        if counts.any() or best is None:
            self._keep_best(rounds, validation)
        best = self._checkpoint.best
        assert best is not None
        if best.version == rounds:
            self.run_record.best = self.run_record.last
        else:
            earlier = self.run_record.rounds[best.version].validation
            self.run_record.best = opened.final(best.version, earlier, "test_best")

    def _report_unscored(self, opened: OpenRound) -> None:
        unscored = {site: own for site, own in opened.records().items() if own.status != "validated"}
        for site, own in unscored.items():
            self.log(f"final scores  {site}  {own.status}: {own.reason}")
        if len(unscored) == len(self.sites):
            raise UserError("No site scored the final model, which is saved: submit the job again to score it.")

    def _save_round(self, record: RoundRecord, tracker: Tracker) -> None:
        tracker.round(record, self._prototypes())  # before the checkpoint: a round run again replaces it
        self._checkpoint.save(self.directory)
        write_results(self.run_record, self.directory / RESULTS)

    def _save_end(self, tracker: Tracker) -> None:
        self._checkpoint = finish(self._checkpoint, self.run_record)
        best = self._checkpoint.best
        assert best is not None
        rounds = self.settings.federation.rounds
        save_model(self.directory / LAST_MODEL, self._checkpoint.state.public, self.run_record, rounds)
        save_model(self.directory / BEST_MODEL, best.public, self.run_record, best.version)
        write_results(self.run_record, self.directory / RESULTS)
        tracker.final(self.run_record, self._prototypes())  # before the checkpoint, as in a round
        self._checkpoint.save(self.directory)

    def _report(self, record: RoundRecord) -> None:
        total = self.settings.federation.rounds
        width = max(len("global"), *map(len, self.sites))
        for site, own in record.sites.items():
            self.log(console.site_line(record.round, total, site, own, width))
        recent = [past.seconds for past in self.run_record.rounds[-5:]]
        self.log(console.round_line(record, total, sum(recent) / len(recent) * (total - record.round - 1), width))

    def _prototypes(self) -> NDArray[np.float32] | None:
        prototypes = self._checkpoint.state.public.get("prototypes")
        return None if prototypes is None else prototypes.numpy()


@contextmanager
def _writing() -> Iterator[None]:
    """Files of the run are written here: a disk that does not take them is one sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"The server's disk cannot be written to ({error.strerror or error}): make room, then submit "
            "the job again; it goes on after its last whole round."
        ) from error


def _require_a_start(first: RoundRecord) -> None:
    """A run in whose first round no site can do anything will not get better by itself."""
    failures = [
        (site, own.reason) for site, own in first.sites.items() if own.status in ("failed", "refused", "missing")
    ]
    if len(failures) == len(first.sites):
        site, reason = failures[0]
        raise UserError(f"No site could take part in the first round, so the run has stopped; {site} said: {reason}")


def _unused(updates: Sequence[Update]) -> list[list[bool]]:
    """[C][M] true where no participant used a prototype; empty for a method without prototypes."""
    counts = [update.extras["influence"] for update in updates if "influence" in update.extras]
    unused: list[list[bool]] = (torch.stack(counts).sum(dim=0) == 0).tolist() if counts else []
    return unused


def _to_arrays(tensors: Tensors) -> dict[str, NDArray[np.generic]]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}
