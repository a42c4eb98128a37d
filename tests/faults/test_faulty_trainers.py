"""A trainer that dies, hangs, is late or forgets costs its site one round, and the model is that of such a run."""

import resource
import shutil
from dataclasses import dataclass
from zipfile import ZipFile

import pytest

from absences import Absence, assert_right
from fedproin.federation.records import SiteRecord
from local_federation import SERVER
from provisioned import Job, Running
from site_faults import SiteOfJob, wait_for_the_end_of
from waiting import wait_for

PREINSTALLED = ("--preinstalled",)
SMALL = ("data.image_size=16", "model.width=4", "federation.rounds=8")
FELT = ("method.lambda_pcl=10", "method.pcl_margin=2")  # with the widest margin PCL is never 0 in a second round
MOMENT = 0.02


@dataclass(frozen=True)
class Killed:
    """A job in which the trainers of two sites died, and when."""

    job: Job
    status: str
    absent: set[Absence]


@pytest.fixture(scope="module")
def killed(running) -> Killed:
    """site-1's trainer gets no memory in the first round; site-2's is killed in the middle of a later one."""
    job = running.submit("killed", *SMALL, packing=PREINSTALLED)
    first, second, third = sites_of(running, job)
    starting = wait_for(first.trainer, 120, "the first trainer", MOMENT)
    size = starting.memory_info().vms
    starting.rlimit(resource.RLIMIT_AS, (size, size))
    wait_for(lambda: job.rounds_done, 120, "the end of the first round")
    round_ = second.freeze()
    wait_for(lambda: second.has_task(round_), 60, "the hand-over of the task")
    wait_for(lambda: first.has_trained(round_) and third.has_trained(round_), 120, "the training of the others")
    second.trainer().kill()
    return Killed(job, running.wait(job), {(0, "site-1"), (round_, "site-2")})


@pytest.fixture(scope="module")
def deadline(killed) -> float:
    """Seconds that are enough for every site that is well, on this machine with its load of now."""
    return max(15.0, round(2 * max(record.seconds for record in killed.job.record.rounds)))


def sites_of(running: Running, job: Job) -> list[SiteOfJob]:
    return [SiteOfJob(running, job, f"site-{number}") for number in (1, 2, 3)]


def record_of(job: Job, absence: Absence) -> SiteRecord:
    return job.record.rounds[absence[0]].sites[absence[1]]


def server_log(running: Running, job: Job) -> str:
    """What the server has said in a job that has ended, as FLARE keeps it."""
    with ZipFile(running.kit(SERVER) / "store" / "jobs" / job.id / "workspace") as kept:
        return kept.read("log.txt").decode()


def test_a_trainer_that_is_killed_or_gets_no_memory(running, killed, tmp_path):
    assert killed.status == "FINISHED:COMPLETED"
    no_memory, murdered = sorted(killed.absent)
    assert record_of(killed.job, no_memory).status == "failed"
    assert "ended with exit code 1" in record_of(killed.job, no_memory).reason
    assert "was killed by signal 9 (out of memory?)" in record_of(killed.job, murdered).reason
    assert_right(killed.job, tmp_path, absent=killed.absent)
    wait_for_the_end_of(running, killed.job)


def test_a_trainer_that_hangs_is_ended_at_the_deadline(running, deadline, tmp_path):
    job = running.submit("hung", *SMALL, f"federation.deadline_seconds={deadline}", packing=PREINSTALLED)
    site = SiteOfJob(running, job, "site-3")
    round_ = site.freeze()
    hung = site.trainer()
    wait_for(lambda: job.rounds_done > round_, 3 * deadline, "the end of the round")
    wait_for(lambda: not hung.is_running(), 60, "the end of the trainer that hangs")
    assert running.wait(job) == "FINISHED:COMPLETED"
    assert record_of(job, (round_, "site-3")).reason == "it was too late for the deadline"
    assert_right(job, tmp_path, absent={(round_, "site-3")})
    wait_for_the_end_of(running, job)


def test_an_update_that_is_ready_after_the_deadline_is_not_used(running, deadline, tmp_path):
    """The machine of site-1 stands still while its update is on the way: it has trained, and remembers that."""
    job = running.submit("late", *SMALL, f"federation.deadline_seconds={deadline}", packing=PREINSTALLED)
    site = SiteOfJob(running, job, "site-1")
    round_ = site.freeze()
    wait_for(lambda: site.has_task(round_), 60, "the hand-over of the task")
    standing = site.job_process()
    standing.suspend()
    site.trainer().resume()
    wait_for(lambda: site.has_trained(round_), 60, "its training")
    wait_for(lambda: job.rounds_done > round_, 3 * deadline, "the end of the round")
    standing.resume()
    assert running.wait(job) == "FINISHED:COMPLETED"
    assert record_of(job, (round_, "site-1")).status == "missing"
    assert site.said("got task assignment") - site.said("task result sent") == 1  # FLARE asks first, and keeps it
    assert_right(job, tmp_path, late={(round_, "site-1")})
    wait_for_the_end_of(running, job)


def test_a_state_that_is_lost_or_of_another_run_costs_a_round_without_pcl(running, killed, tmp_path):
    job = running.submit("forgot", *SMALL, *FELT, packing=PREINSTALLED)
    first, second, _ = sites_of(running, job)

    lost = second.freeze()
    wait_for(lambda: first.has_trained(lost), 60, "the training of site-1")
    shutil.rmtree(first.state(lost).parent)
    second.trainer().resume()
    wait_for(lambda: job.rounds_done > lost, 60, "the end of the round")

    foreign = first.freeze()
    wait_for(lambda: second.has_trained(foreign), 60, "the training of site-2")
    other = sorted(SiteOfJob(running, killed.job, "site-2").state(0).parent.iterdir())[-1]
    shutil.copyfile(other, second.state(foreign))
    first.trainer().resume()

    assert running.wait(job) == "FINISHED:COMPLETED"
    without = {(lost + 1, "site-1"): ["state_lost"], (foreign + 1, "site-2"): ["state_damaged"]}
    for record in job.record.rounds[1:]:
        for name, site in record.sites.items():
            assert site.notes == without.get((record.round, name), [])
            assert ("pcl" in site.losses) == ((record.round, name) not in without)
    log = server_log(running, job)
    assert (log.count("[state lost]"), log.count("[state damaged]")) == (1, 1)
    assert_right(job, tmp_path, forgetful=without)
