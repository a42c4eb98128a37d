"""The server is killed, its disk full, its machine down: the run, submitted again, ends as if nothing had been."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedproin.tensor_file import load_tensors
from local_federation import SERVER
from moments import assert_goes_on, flare_processes, kill, wait_for_round
from provisioned import SMALL, Job, Running, simulate
from waiting import wait_for

ROUNDS = 4
SETTINGS = (f"federation.rounds={ROUNDS}", "training.local_epochs=4")
SITES = ("site-1", "site-2")
PREINSTALLED = ("--preinstalled",)


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    """Server and two sites that have registered."""
    running = Running(tmp_path_factory.mktemp("federation"))
    try:
        running.begin(sites=len(SITES))
        yield running
    finally:
        running.kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """The results of the same run without a fault; its best model is an early one, which must outlive the fault."""
    directory = simulate((*SMALL, *SETTINGS), len(SITES), tmp_path_factory.mktemp("undisturbed"))
    assert load_tensors(directory / "best_model.safetensors")[1]["version"] < ROUNDS
    return directory


def test_a_server_killed_in_the_middle_of_a_round(running, undisturbed):
    job = running.submit("killed", *SETTINGS, packing=PREINSTALLED)
    wait_for_round(running, job, 1)
    kill(flare_processes(running, SERVER))
    running.wait_for_sites(set(SITES))  # with the server that its loop has started again
    assert_goes_on(running, job, undisturbed)
    assert running.status(job) == "RUNNING"  # FLARE's word for a job that it has lost


def test_a_server_killed_while_it_saves(running, undisturbed):
    job = running.submit("killed_saving", *SETTINGS, packing=PREINSTALLED)
    wait_for(lambda: job.rounds_done, 180, "the first round")
    freeze_saving(job)
    whole = load_tensors(job.directory / "checkpoint.safetensors")[1]["run"]["rounds"]
    kill(flare_processes(running, SERVER))
    assert list(job.directory.glob(".checkpoint.safetensors.*.tmp"))  # it was hit while it wrote
    assert len(whole) == job.rounds_done
    running.wait_for_sites(set(SITES))
    assert_goes_on(running, job, undisturbed)


def freeze_saving(job: Job) -> None:
    """Stop the server's process while the temporary file of a checkpoint, whose name tells the process, is there."""

    def frozen() -> bool:
        for temporary in job.directory.glob(".checkpoint.safetensors.*.tmp"):
            writer = int(temporary.name.split(".")[-2])
            os.kill(writer, signal.SIGSTOP)
            if temporary.exists():
                return True
            os.kill(writer, signal.SIGCONT)
        return False

    wait_for(frozen, 120, "a checkpoint that is being written", pause=0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_servers_disk_is_full(running, undisturbed):
    directory = running.kit(SERVER) / "fedproin" / "full"
    with small_disk(directory, megabytes=40):
        job = running.submit("full", *SETTINGS, packing=PREINSTALLED)
        wait_for_round(running, job, 1)
        fill(directory / "ballast")
        assert running.wait(job) == "FINISHED:EXECUTION_EXCEPTION"
        assert load_tensors(directory / "checkpoint.safetensors")[1]["run"]["rounds"]
        assert "The server's disk cannot be written to (No space left on device)" in running.log(job)
        (directory / "ballast").unlink()
        assert_goes_on(running, job, undisturbed)


@contextmanager
def small_disk(directory: Path, megabytes: int) -> Iterator[None]:
    """A file system of its own at the directory."""
    directory.mkdir(parents=True, mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "none", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(ballast: Path) -> None:
    """Leave nothing free on the disk of a new file."""
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(ballast.parent).free)


def test_a_machine_that_is_rebooted(running, undisturbed):
    job = running.submit("rebooted", *SETTINGS, packing=PREINSTALLED)
    wait_for_round(running, job, 1)
    kill(running.processes())
    for name in (SERVER, *SITES):
        running.start(name)
    running.wait_for_sites(set(SITES))
    assert_goes_on(running, job, undisturbed)
