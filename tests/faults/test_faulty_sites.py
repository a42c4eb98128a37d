"""A site whose processes die, or that never comes back: what becomes of the job, and that its model is right."""

import json
from collections.abc import Iterator

import pytest

from absences import Absence, assert_right
from fedproin.federation.checkpoint import load_checkpoint
from fedproin.flare.pulse import SILENT_AFTER_SECONDS
from local_federation import SERVER, free_port
from provisioned import JOB, Job, Running
from site_faults import SiteOfJob, wait_for_the_end_of

PREINSTALLED = ("--preinstalled",)
ROUNDS = 4
SMALL = ("data.image_size=16", "model.width=4", f"federation.rounds={ROUNDS}")
SILENT, DEAD = "its process of this job is silent", "FLARE has lost the connection to it"
HEART_BEAT_TIMEOUT, GRACE = 30, 5  # seconds; FLARE's own are 600 and 60


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    """Server and three sites that have registered; a silent site is declared dead in half a minute."""
    running = Running(tmp_path_factory.mktemp("federation"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NVFLARE_DEAD_CLIENT_GRACE_PERIOD", str(GRACE))
            running.provision(3, free_port())
            shorten_heart_beat_timeout(running)
            running.begin_sites(["site-1", "site-2", "site-3"], refusing=())
        yield running
    finally:
        running.kill()


def shorten_heart_beat_timeout(running: Running) -> None:
    defaults = running.kit(SERVER) / "local" / "resources.json.default"
    resources = json.loads(defaults.read_text())
    resources["servers"][0]["heart_beat_timeout"] = HEART_BEAT_TIMEOUT
    defaults.write_text(json.dumps(resources))


def submit_again(running: Running, job: Job) -> Job:
    """The same packed job: the server goes on with the run of this name."""
    submitted = running.ask("job", "submit", "-j", str(running.root / "packed" / job.directory.name / JOB.name))
    return Job(submitted["job_id"], job.settings, job.directory)


def test_a_job_whose_process_died_at_one_site_goes_on_when_it_is_submitted_again(running, tmp_path):
    job = running.submit("resumed", *SMALL, packing=PREINSTALLED)
    site = SiteOfJob(running, job, "site-2")
    round_ = site.freeze()
    trainer = site.trainer()
    site.job_process().kill()
    trainer.resume()
    assert running.wait(job, 60) == "FINISHED:EXECUTION_EXCEPTION"
    wait_for_the_end_of(running, job)

    before = job.record
    assert len(before.rounds) == round_
    assert load_checkpoint(job.directory, before).run == before

    again = submit_again(running, job)
    assert running.wait(again) == "FINISHED:COMPLETED"
    assert again.record.run_id == before.run_id
    assert again.record.rounds[:round_] == before.rounds
    assert_right(again, tmp_path)
    wait_for_the_end_of(running, again)


def test_a_site_whose_daemon_was_killed_is_missed_for_the_rest_of_the_job(running, tmp_path):
    """The loop of start.sh brings the daemon back and FLARE registers it, but not for a job that runs."""
    job = running.submit("crashed", *SMALL, packing=PREINSTALLED)
    site = SiteOfJob(running, job, "site-3")
    round_ = site.freeze()
    site.crash()
    assert running.wait(job, 400) == "FINISHED:ABNORMAL"  # FLARE's word when a site gives no account of its part
    missed = job.record.rounds[round_:]
    assert {record.sites["site-3"].reason for record in missed} == {SILENT}
    assert all(record.seconds < SILENT_AFTER_SECONDS for record in missed[1:])  # it is waited for only once
    assert_right(job, tmp_path, absent=all_from(round_, "site-3"))
    wait_for_the_end_of(running, job)
    running.wait_for_sites({"site-3"})


def test_the_rest_trains_on_when_a_site_is_gone_for_good(running, tmp_path):
    """A power cut at the site that crashed in the job before, and takes part in this one until then."""
    job = running.submit("gone", *SMALL, packing=PREINSTALLED)
    site = SiteOfJob(running, job, "site-3")
    round_ = site.freeze()
    site.cut_power()
    assert running.wait(job, 400) == "FINISHED:COMPLETED"
    missed = job.record.rounds[round_:]
    assert {record.sites["site-3"].reason for record in missed} <= {DEAD, SILENT}  # whoever notices it first
    assert all(record.seconds < HEART_BEAT_TIMEOUT for record in missed[1:])
    assert_right(job, tmp_path, absent=all_from(round_, "site-3"))
    wait_for_the_end_of(running, job)


def all_from(round_: int, site: str) -> set[Absence]:
    """Absent in a round, in all later ones and when the final scores are taken."""
    return {(number, site) for number in range(round_, ROUNDS + 1)}
