"""Many rounds with ten sites: nothing grows with the rounds, and nothing is left when the job has ended."""

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from local_federation import SERVER
from provisioned import Job, Running
from site_faults import SiteOfJob, wait_for_the_end_of
from waiting import wait_for

MIB = 2**20
ROUNDS = 300
WARM_SECONDS = 360  # FLARE keeps what it knows of every message for 300 s after sending it: processes grow until then
FEWEST_WARM = 50  # rounds
SITES = [f"site-{number}" for number in range(1, 11)]


pytestmark = pytest.mark.timeout(1800)


@dataclass
class Usage:
    """What each process of a job used at the end of each warm round: (round, MiB of memory, open files and sockets)."""

    warm_at: float = field(default_factory=lambda: time.monotonic() + WARM_SECONDS)
    processes: dict[str, psutil.Process | None] = field(default_factory=dict)
    samples: dict[str, list[tuple[int, float, int]]] = field(default_factory=lambda: defaultdict(list))

    def take(self, round_: int, name: str, find: Callable[[], psutil.Process | None]) -> None:
        if time.monotonic() < self.warm_at:
            return
        process = self.processes[name] = self.processes.get(name) or find()  # to find it takes a while
        if process is not None:
            self.samples[name].append((round_, process.memory_info().rss / MIB, process.num_fds()))

    def growth(self, name: str) -> tuple[float, float]:
        """MiB and open files a round: slopes of a line through all samples."""
        samples = self.samples[name]
        assert len(samples) >= FEWEST_WARM, f"only {len(samples)} rounds of {name} were warm: set more ROUNDS"
        rounds, memory, files = zip(*samples, strict=True)
        return statistics.linear_regression(rounds, memory).slope, statistics.linear_regression(rounds, files).slope


@dataclass(frozen=True)
class Endured:
    """A job of many rounds, what its processes used, and which files the federation had before and after."""

    root: Path
    job: Job
    usage: Usage
    before: set[str]
    after: set[str]


@pytest.fixture(scope="module")
def endured(tmp_path_factory) -> Endured:
    running = Running(tmp_path_factory.mktemp("ten"))
    try:
        running.begin(sites=len(SITES))
        before, usage = files(running), Usage()
        changes = (f"federation.rounds={ROUNDS}", "federation.participation=0.5", "model.width=4", "data.image_size=16")
        job = running.submit("endurance", *changes, packing=("--preinstalled",))
        for round_ in range(1, ROUNDS - 1):
            wait_for(lambda round_=round_: job.rounds_done >= round_, 180, f"round {round_}")
            for name in (SERVER, *SITES):
                mine = SiteOfJob(running, job, name)
                usage.take(job.rounds_done, name, mine.job_process)
                usage.take(job.rounds_done, f"{name} trainer", mine.trainer)
        assert running.wait(job) == "FINISHED:COMPLETED"
        wait_for_the_end_of(running, job)
        return Endured(running.root, job, usage, before, files(running))
    finally:
        running.kill()


def files(running: Running) -> set[str]:
    """All files of the federation, of its private HOME and TMPDIR, and shared memory of anybody."""
    places = [running.root, Path("/dev/shm")]
    return {str(path) for place in places for path in place.rglob("*") if not path.is_dir()}


def test_every_round_counted_with_every_site_that_was_drawn(endured):
    record = endured.job.record
    assert len(record.rounds) == ROUNDS
    assert all(round_.counted and len(round_.participants) == len(SITES) // 2 for round_ in record.rounds)
    assert {site.status for round_ in record.rounds for site in round_.sites.values()} == {"trained", "validated"}


def test_memory_and_open_files_are_flat(endured, record_property):
    """A model of this job has 0.2 MiB, and the server gets five of them in a round."""
    trainers = [f"{site} trainer" for site in SITES]
    growth = {name: endured.usage.growth(name) for name in (SERVER, *SITES, *trainers)}
    record_property("MiB and files a round", growth)
    limit = {SERVER: 0.5} | dict.fromkeys([*SITES, *trainers], 0.1)
    assert {name: memory for name, (memory, _) in growth.items() if memory > limit[name]} == {}
    assert {name: count for name, (_, count) in growth.items() if count > 0.05} == {}


def test_nothing_temporary_is_left_and_a_site_keeps_few_states(endured):
    new = [Path(path) for path in endured.after - endured.before]
    assert [path for path in new if path.suffix == ".tmp" or path.is_relative_to("/dev/shm")] == []
    assert [path for path in new if path.is_relative_to(endured.root / "tmp")] == []
    states = Counter(path.parents[3].name for path in new if path.parent.parent.name == "state")
    assert set(states) == set(SITES)
    assert max(states.values()) <= 3  # the last two, and that of the best model
