"""A site's trainer in a process of its own: what happens to it costs the site a round, never the job.

FLARE fails a whole federation when the job process of one site exits. So training, which may run out of memory or hang,
runs in a child: it is spawned with the first task, answers over a pipe, ends with its parent, is stopped at a deadline
or an abort, and offers itself first to the kernel's memory killer. This module imports no torch: idle sites stay light.
"""

import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from fedproin.data.location import Location
from fedproin.federation.messages import Answer, Task
from fedproin.settings import Settings

POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0
OOM_SCORE = "1000"  # the highest: the kernel kills this process before FLARE's


@dataclass(frozen=True)
class SiteArguments:
    """What a trainer process needs to make its `Site`."""

    name: str
    settings: Settings
    location: Location
    directory: Path


class TrainerProcess:
    """Runs tasks in a child process, which is started when there is a task and kept until it dies or is stopped."""

    def __init__(self, site: SiteArguments) -> None:
        self._site = site
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None

    def run(self, task: Task, aborted: Callable[[], bool]) -> Answer:
        """The site's answer; an answer with an error when the trainer died, was too late or was aborted."""
        started = time.monotonic()
        answers: list[Answer] = []
        try:
            messenger = threading.Thread(target=_ask, args=(self._start(), task, answers), daemon=True)
            messenger.start()
            error = _wait(messenger, started, task.deadline_seconds, aborted)
        except OSError:
            error = "The trainer process could not be started."
        if answers:
            if answers[0].error:
                self.stop()  # a GPU that has failed once may be lost to this process
            return answers[0]
        error = error or self._death()
        self.stop()
        return Answer(task.kind, task.run_id, task.round, error=error, seconds=time.monotonic() - started)

    def stop(self) -> None:
        """End the child by SIGTERM, then by SIGKILL, and only then close the pipe: a message may be stuck in it."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if process is not None:
            process.terminate()
            process.join(GRACE_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        if pipe is not None:
            pipe.close()

    def _start(self) -> Connection:
        if self._process is None or not self._process.is_alive() or self._pipe is None:
            self.stop()
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(
                target=_serve, args=(theirs, self._site), daemon=True, name="fedproin-trainer"
            )
            self._process.start()
            theirs.close()
        return self._pipe

    def _death(self) -> str:
        if self._process is None:
            return "The trainer process was stopped with the run."
        self._process.join(GRACE_SECONDS)
        code = self._process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        memory = " (out of memory?)" if code == -9 else ""
        return f"The trainer process {how}{memory}; this site takes part again in its next round."


def _ask(pipe: Connection, task: Task, answers: list[Answer]) -> None:
    """Send and receive, in a thread of its own: either blocks as long as the child does not read or write on."""
    with contextlib.suppress(EOFError, OSError, TypeError):  # the child died, or the pipe was closed under our hands
        pipe.send(task)
        answers.append(pipe.recv())


def _wait(messenger: threading.Thread, started: float, deadline: float | None, aborted: Callable[[], bool]) -> str:
    """Wait for the answer or the child's death; empty when one of them is there, else what came instead."""
    while messenger.is_alive():
        messenger.join(POLL_SECONDS)
        if aborted():
            return "The server stopped this task."
        if deadline is not None and time.monotonic() > started + deadline:
            return "Training was stopped at the round's deadline."
    return ""


def _serve(pipe: Connection, arguments: SiteArguments) -> None:
    """The child: answer tasks until the pipe closes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    from fedproin.federation.site import Site, describe_failure

    site: Site | None = None
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            task: Task = pipe.recv()
            try:
                site = site or Site(arguments.name, arguments.settings, arguments.location, arguments.directory)
            except Exception as error:
                reason = describe_failure(error, arguments.directory)
                pipe.send(Answer(task.kind, task.run_id, task.round, error=reason))
            else:
                pipe.send(site.run(task))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
