"""A site that really runs other code sends one hostile answer after another, over mTLS, in one job.

Each must be refused as a whole, with its reason in the server's record, and the others must not notice: the model has
the bits of a run without that site in those rounds.
"""

import pytest

from fedproin.data.location import Location
from fedproin.federation.identity import PACKAGE
from hostile_site import FAULTS, ROUNDS, TRACE, VICTIM, hostile_package
from local_federation import SERVER, free_port
from provisioned import Job, Running, assert_same_run, copy_of_package, replay

SITES = ("site-1", "site-2", HOSTILE := "site-3")
DEADLINE = 60.0  # of a round; FLARE lets one of the answers hang until then
SETTINGS = (
    "data.synthetic_images=200",
    "data.image_size=16",
    "model.width=4",
    "training.steps_per_epoch=2",
    f"federation.rounds={len(ROUNDS)}",
    f"federation.deadline_seconds={DEADLINE}",
)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Three sites, the last of which runs other code."""
    running, package = Running(tmp_path_factory.mktemp("federation")), tmp_path_factory.mktemp("package")
    hostile_package(copy_of_package(package) / "fedproin")
    try:
        running.provision(3, free_port())
        running.begin_sites(["site-1", "site-2"], refusing=())
        running.set_up(HOSTILE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(package))
            running.start(HOSTILE)
        running.wait_for_sites({HOSTILE})
        yield running
    finally:
        running.kill()


@pytest.fixture(scope="module")
def job(federation) -> Job:
    job = federation.submit("hostile", *SETTINGS, packing=("--preinstalled",))
    assert federation.wait(job, 600) == "FINISHED:COMPLETED"
    return job


@pytest.mark.parametrize("fault", FAULTS)
def test_a_hostile_answer_is_refused_and_the_others_count(job, fault):
    reason = FAULTS[fault][1]
    round_ = job.record.rounds[ROUNDS.index(fault)]
    hostile = round_.sites[HOSTILE]
    assert hostile.reason == reason
    assert hostile.status == ("missing" if "deadline" in reason else "refused")
    assert (hostile.samples, hostile.influence, hostile.losses, hostile.validation) == (0, [], {}, {})
    assert round_.counted
    assert {round_.sites[site].status for site in ("site-1", "site-2")} == {"trained"}


def test_of_two_answers_the_first_counts(job):
    answered = job.record.rounds[ROUNDS.index("two answers")].sites
    assert answered[HOSTILE].status == "trained"
    assert answered[HOSTILE].samples < 200


def test_a_site_that_behaves_again_counts_again(job):
    assert job.record.rounds[ROUNDS.index("none")].sites[HOSTILE].status == "trained"
    assert HOSTILE in job.record.last.sites


def test_only_the_answer_that_flare_cannot_read_costs_time(job):
    seconds = {fault: job.record.rounds[number].seconds for number, fault in enumerate(ROUNDS)}
    slow = {fault for fault, spent in seconds.items() if spent >= DEADLINE}
    assert slow == {fault for fault, (_, reason) in FAULTS.items() if "deadline" in reason}


def test_the_model_has_the_bits_of_a_run_without_that_site_in_those_rounds(job, tmp_path):
    """Its bad answers do not arrive there; that it trained, and remembers it, is the same."""

    def arriving(name, task, run):
        answer = run(task)
        bad = name == HOSTILE and task.kind == "round" and ROUNDS[task.round] in FAULTS
        return None if bad else answer

    location = Location(source=None, cache=tmp_path / "cache", simulated=False)
    assert_same_run(job.directory, replay(job, dict.fromkeys(SITES, location), tmp_path, arriving))


def test_nothing_was_executed_and_the_server_logged_no_exception_of_ours(federation, job):
    assert not list(federation.root.rglob(TRACE))
    log = (federation.kit(SERVER) / "console.log").read_text()
    told = [reason for _, reason in FAULTS.values() if "deadline" not in reason]
    assert [reason for reason in told if f"Refused the answer of {HOSTILE}: {reason}." not in log] == []
    assert log.count(f"Refused the answer of {HOSTILE}") == len(told)
    assert f"Refused the answer of {VICTIM}" not in log
    assert f'File "{PACKAGE}' not in log
