"""Runs side by side, each in its own process; however this ends, none of them is left.

The processes come from a fork server that has imported what they need and done nothing else: a run starts at once, with
no more state than a new interpreter has.
"""

import multiprocessing
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from fedproin.tools.bench.plan import Run
from fedproin.tools.bench.progress import Progress
from fedproin.tools.bench.worker import LOG, REFUSED, Work, work

GRACE_SECONDS = 15.0
PRELOAD = [
    "fedproin.tools.cli",
    "fedproin.tools.bench.worker",
    "fedproin.federation.local_engine",
    "torch._dynamo",  # an optimizer imports it, for seconds
    "matplotlib.figure",
]
LOG_LINES = 12


@dataclass(frozen=True, eq=False)
class _Active:
    run: Run
    process: ForkServerProcess
    workspace: Path
    started: float


def make_runs(runs: Sequence[Run], shared: Work, workers: int, progress: Progress) -> None:
    """Make all runs, `workers` at a time; one that fails is reported and the others go on.

    Raises:
        KeyboardInterrupt: on Ctrl-C or SIGTERM, when all processes have ended.
    """
    waiting, active = deque(runs), list[_Active]()
    with TemporaryDirectory(prefix="fedproin_bench_", ignore_cleanup_errors=True) as temporary, _interruptible():
        try:
            while waiting or active:
                while waiting and len(active) < workers:
                    active.append(_start(waiting.popleft(), shared, Path(temporary)))
                wait([one.process.sentinel for one in active])
                for one in [one for one in active if not one.process.is_alive()]:
                    active.remove(one)
                    _finish(one, progress)
        finally:
            _stop(active)


def _start(run: Run, shared: Work, temporary: Path) -> _Active:
    workspace = temporary / "_".join(run.file.with_suffix("").parts[1:])
    workspace.mkdir()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    process = context.Process(target=work, args=(shared, run, workspace), daemon=True)
    with _one_thread():
        process.start()
    return _Active(run, process, workspace, time.monotonic())


def _finish(one: _Active, progress: Progress) -> None:
    code = one.process.exitcode
    if code:
        _signal_group(one.process, signal.SIGKILL)  # what a worker that was killed may have left
    progress.ended(one.run, time.monotonic() - one.started, _why_failed(code, one.workspace / LOG) if code else "")
    one.process.close()
    shutil.rmtree(one.workspace, ignore_errors=True)


def _why_failed(code: int, log: Path) -> str:
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-1 if code == REFUSED else -LOG_LINES :]) or f"its process ended with exit code {code}"


def _stop(active: Sequence[_Active]) -> None:
    """Ask all workers to end, and kill those that do not, with their groups."""
    for one in active:
        one.process.terminate()
    until = time.monotonic() + GRACE_SECONDS
    for one in active:
        one.process.join(max(0.0, until - time.monotonic()))
        _signal_group(one.process, signal.SIGKILL)
        one.process.kill()
        one.process.join()
        one.process.close()


def _signal_group(process: ForkServerProcess, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it had no group of its own yet, or nobody is left in it
        assert process.pid is not None
        os.killpg(process.pid, number)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Libraries that the fork server imports make no threads of their own; torch gets the job's `threads` later."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
