"""Load: ten sites with a full ResNet-18 over mTLS on one machine, and fifty sites with a small model."""

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from local_federation import SERVER
from provisioned import Job, Running
from simulator_runs import small_job, whole_run
from site_faults import SiteOfJob

pytestmark = pytest.mark.timeout(1800)

MIB = 2**20
RESNET18_MIB = 43  # of the 11.2 million parameters and buffers, in float32


@contextmanager
def watched(take, pause: float = 0.5) -> Iterator[dict[str, float]]:
    """The largest of each number that `take` gives, while the block runs."""
    peaks: dict[str, float] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(pause):
            with suppress(psutil.Error):  # a process may end while it is looked at
                for name, value in take().items():
                    peaks[name] = max(peaks.get(name, 0), value)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        over.set()
        thread.join()


def memory(running: Running, job: Job) -> dict[str, float]:
    """MiB of the server's process of the job, and of all processes together (shared pages counted once)."""
    server = SiteOfJob(running, job, SERVER).job_process()
    everything = sum(process.memory_full_info().pss for process in running.processes())
    return {"all": everything / MIB} | ({"server": server.memory_info().rss / MIB} if server else {})


def seconds_of_rounds(record) -> float:
    """Median without the first round, in which trainers start."""
    return statistics.median(round_.seconds for round_ in record.rounds[1:])


def test_ten_sites_with_a_full_resnet18(tmp_path, record_property):
    running = Running(tmp_path)
    try:
        running.begin(sites=10)
        changes = ("model.width=64", "data.image_size=28", "federation.rounds=4", "training.steps_per_epoch=2")
        job = running.submit("load", *changes, packing=("--preinstalled",))
        with watched(lambda: memory(running, job)) as peaks:
            assert running.wait(job, 900) == "FINISHED:COMPLETED"
    finally:
        running.kill()
    record = job.record
    assert {site.status for round_ in record.rounds for site in round_.sites.values()} == {"trained"}
    assert all(len(round_.sites) == 10 for round_ in record.rounds)
    sent = statistics.mean(site.bytes_up for site in record.rounds[-1].sites.values()) / MIB
    assert sent == pytest.approx(RESNET18_MIB, rel=0.05)
    record_property("measured", {"round s": seconds_of_rounds(record), "MiB an update": sent, **peaks})
    assert peaks["all"] < 16 * 1024  # of a machine that holds ten sites
    assert peaks["server"] < 600 + 6 * 10 * RESNET18_MIB  # libraries; updates, and what FLARE holds of them


def test_fifty_sites_with_a_small_model(tmp_path, record_property):
    job = small_job(tmp_path, data={"synthetic_images": 5000}, federation={"rounds": 1, "participation": 1.0})
    with whole_run(tmp_path, "-n", "50", "-t", "4", seconds=600, job=job) as run:
        assert run.process.returncode == 0, run.printed
        [round_] = run.results["rounds"]
    assert [site["status"] for site in round_["sites"].values()] == ["trained"] * 50
    assert len(run.results["last"]["sites"]) == 50
    record_property("measured", {"round s": round_["seconds"], "run s": run.results["seconds"]})
