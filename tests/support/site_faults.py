"""One site of a job that runs, for those who break it: its processes, and the moments at which to strike."""

from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from provisioned import Job, Running, command_line
from waiting import wait_for

TRAINER = "multiprocessing.spawn"  # in the command line of a child that Python has spawned
DAEMON = "nvflare.private.fed.app.client.client_train"
PAUSE = 0.02


def left_of(running: Running, job: Job) -> list[psutil.Process]:
    """Processes of a job that are alive: FLARE's own with its id, and what Python started for trainers."""
    return [process for process in running.processes() if is_of_a_job(process, job)]


def wait_for_the_end_of(running: Running, job: Job) -> None:
    """Nothing of a job is left alive, not even a process that was stopped."""
    wait_for(lambda: not left_of(running, job), 60, "the end of all processes of the job")


def is_of_a_job(process: psutil.Process, job: Job) -> bool:
    words = " ".join(command_line(process))
    return job.id in words or "multiprocessing." in words


@dataclass(frozen=True)
class SiteOfJob:
    """A site in a job that runs."""

    running: Running
    job: Job
    name: str

    @property
    def kit(self) -> Path:
        return self.running.kit(self.name)

    def job_process(self) -> psutil.Process | None:
        """FLARE's process of this site and job."""
        mine = (process for process in self.running.processes_of(self.name) if self.job.id in command_line(process))
        return next(mine, None)

    def daemon(self) -> psutil.Process:
        """FLARE's parent process of this site, which a loop restarts when it dies."""
        return next(one for one in self.running.processes_of(self.name) if DAEMON in command_line(one))

    def crash(self) -> None:
        """Kill FLARE's processes of this site, as a crash does: daemon and job; their trainer is to notice."""
        trainer = self.trainer()
        self.daemon().kill()
        self.job_process().kill()
        trainer.resume()

    def cut_power(self) -> None:
        """Kill all of this site at once, the loop that would restart it too."""
        for process in [*self.running.processes_of(self.name), self.trainer()]:
            process.kill()

    def trainer(self) -> psutil.Process | None:
        """The trainer process, when there is one."""
        parent = self.job_process()
        children = parent.children() if parent else []
        return next((child for child in children if TRAINER in " ".join(command_line(child))), None)

    def has_trained(self, round_: int) -> bool:
        """Whether the trainer has written its state of a round, which it does before it answers."""
        return self.state(round_).exists()

    def has_task(self, round_: int) -> bool:
        """Whether FLARE has handed the task of a round to the site's executor."""
        return self.said("got task assignment") > round_

    def said(self, words: str) -> int:
        """How often FLARE has said that in the site's log of this job."""
        return (self.kit / self.job.id / "log.txt").read_text().count(words)

    def state(self, round_: int) -> Path:
        """Where the site keeps what it remembers of a round."""
        return self.kit / "fedproin" / "state" / self.job.record.run_id / f"round-{round_:06d}.safetensors"

    def freeze(self, seconds: float = 240) -> int:
        """SIGSTOP the trainer while a round after the first is open that it has not finished; the round."""
        return wait_for(self._freeze, seconds, f"a round in which {self.name} trains", PAUSE)

    def _freeze(self) -> int | None:
        trainer = self.trainer() if self.job.rounds_done else None
        if trainer is None:
            return None
        trainer.suspend()
        round_ = self.job.rounds_done
        if round_ == self.job.record.settings["federation"]["rounds"]:
            pytest.fail("the job was over before the fault")
        if self.has_trained(round_):
            trainer.resume()
            return None
        return round_
