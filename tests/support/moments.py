"""The moment at which a fault shall strike, the processes that it strikes, and what must hold afterwards."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from provisioned import Job, Running, assert_same_run, command_line
from site_faults import SiteOfJob
from waiting import wait_for


def wait_for_round(running: Running, job: Job, rounds: int, site: str = "site-1") -> None:
    """Returns in the middle of a round: so many are over, and the site has the task of the next one."""
    log = running.kit(site) / job.id / "log.txt"

    def at_work() -> bool:
        tasks = log.read_text().count("pull_task completed. Task name:round") if log.exists() else 0
        return tasks > job.rounds_done >= rounds

    wait_for(at_work, 180, f"round {rounds + 1} of {job.directory.name}", pause=0.02)


def flare_processes(running: Running, name: str) -> list[psutil.Process]:
    """FLARE's processes of a participant, those of its jobs too; not the loop that restarts it."""
    return [process for process in running.processes_of(name) if "-m" in command_line(process)]


@contextmanager
def held(running: Running, job: Job, site: str) -> Iterator[None]:
    """A site's trainer stands still meanwhile, so that the round stays open."""
    trainer = SiteOfJob(running, job, site).trainer()
    assert trainer is not None
    trainer.suspend()
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            trainer.resume()


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL to all; returns when they are gone."""
    processes = list(processes)
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, timeout=30)


def assert_goes_on(running: Running, job: Job, undisturbed: Path) -> None:
    """Submitted again, the run goes on after its last whole round, which is not run again, and ends undisturbed."""
    before = job.record
    assert before.rounds
    assert before.last is None
    again = running.submit_again(job)
    assert running.wait(again) == "FINISHED:COMPLETED"
    after = again.record
    assert (after.run_id, after.rounds[: len(before.rounds)]) == (before.run_id, before.rounds)
    assert_same_run(again.directory, undisturbed)
    assert not list(again.directory.glob(".*"))  # nothing half-written
