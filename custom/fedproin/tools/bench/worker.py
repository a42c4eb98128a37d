"""One run in a process of its own: it starts with nothing, leaves a result file or none, and ends with its parent."""

import multiprocessing
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from fedproin.errors import UserError
from fedproin.tools.bench.engines import ENGINES
from fedproin.tools.bench.plan import Run
from fedproin.tools.bench.result import Provenance, result_of, write_result

LOG = "log.txt"
REFUSED = 2  # exit code: the last line of the log is one sentence for the user


@dataclass(frozen=True)
class Work:
    """What all workers of a bench share: where results go, and what is written into each."""

    directory: Path
    provenance: Provenance


def work(work: Work, run: Run, workspace: Path) -> None:
    """Make a run in `workspace` and write its result; the target of a process."""
    os.setsid()  # a Ctrl-C in the terminal is for the parent alone, which then stops this whole group
    _print_to(workspace / LOG)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        record = ENGINES[work.provenance.engine](run, workspace)
        write_result(result_of(run, record, work.provenance), work.directory / run.file)
    except UserError as error:
        print(error, flush=True)
        sys.exit(REFUSED)


def _print_to(log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _end_with_parent() -> None:
    """The bench was killed: nobody is left to stop this process and what it has started."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.killpg(0, signal.SIGKILL)
