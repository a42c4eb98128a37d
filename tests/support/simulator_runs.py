"""Real runs of `nvflare simulator`, as a user types it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
JOB = ROOT / "jobs" / "fedproin"


@dataclass
class Run:
    """A simulator in its own process group, and what it printed."""

    process: subprocess.Popen[bytes]
    workspace: Path
    log: Path

    def wait(self, seconds: float) -> str:
        """Everything it printed; fails the test when it does not end in time."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the simulator did not end within {seconds} s; it printed\n{self.printed}")
        return self.printed

    @property
    def printed(self) -> str:
        return self.log.read_text()

    @property
    def results(self) -> dict:
        return json.loads((self.workspace / "fedproin" / "results.json").read_text())

    def model(self, name: str) -> bytes:
        """The tensors of a saved model, byte for byte (the header differs: it holds the run id)."""
        content = (self.workspace / "fedproin" / f"{name}_model.safetensors").read_bytes()
        return content[8 + int.from_bytes(content[:8], "little") :]

    def processes(self) -> list[psutil.Process]:
        """Processes of this run that are alive: FLARE's name the workspace, a trainer is a child of one of them."""
        alive = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and str(self.workspace) in " ".join(process.cmdline()):
                    alive += [process, *process.children(recursive=True)]
            except psutil.Error:
                continue
        return alive


@contextmanager
def start(tmp: Path, *flags: str, job: Path | str = JOB, environment: dict[str, str] | None = None) -> Iterator[Run]:
    """`nvflare simulator JOB -w WS FLAGS` from the repository's root."""
    workspace, log = tmp / "ws", tmp / "log.txt"
    command = [str(Path(sys.executable).parent / "nvflare"), "simulator", str(job), "-w", str(workspace), *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PWD": str(ROOT)} | (environment or {}),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    run = Run(process, workspace, log)
    try:
        yield run
    finally:
        for leftover in run.processes():
            leftover.kill()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def whole_run(tmp: Path, *flags: str, seconds: float, **options) -> Iterator[Run]:
    """A run that ended with all its workers: FLARE 2.9 loses one in some starts with many threads, to a port race."""
    for attempt in range(3):
        folder = tmp / f"attempt-{attempt}"
        folder.mkdir()
        with start(folder, *flags, **options) as run:
            run.wait(seconds)
            if "never came up" not in run.printed:
                yield run
                return
    pytest.fail("the simulator lost a worker three times")


def small_job(tmp: Path, original: Path = JOB, **groups: dict[str, object]) -> Path:
    """The quick job, or another one, with some settings changed."""
    job = tmp / "job" / original.name
    shutil.copytree(original, job)
    file = job / "app" / "config" / "settings.json"
    settings = json.loads(file.read_text())
    for group, values in groups.items():
        settings[group] = settings[group] | values if isinstance(values, dict) else values
    file.write_text(json.dumps(settings))
    return job
