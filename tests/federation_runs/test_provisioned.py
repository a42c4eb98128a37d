"""Server and sites from `nvflare provision`, over mTLS: jobs of both kinds, refusals, a site that comes later."""

import stat

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from local_federation import SERVER
from provisioned import Running, assert_same_run, copy_of_package, daemons, simulate
from waiting import wait_for

PREINSTALLED = ("--preinstalled",)


@pytest.fixture(scope="module")
def preinstalled(running):
    """A job without code, which all three sites accept."""
    job = running.submit("preinstalled", packing=PREINSTALLED)
    tensorboard = job.directory / "tensorboard" / "global"
    wait_for(lambda: list(tensorboard.glob("events*")), 180, "a TensorBoard file while the job runs")
    assert running.wait(job) == "FINISHED:COMPLETED"
    return job


def test_a_preinstalled_job_runs_where_byoc_is_refused_and_ends_as_its_simulation(preinstalled, tmp_path):
    assert preinstalled.record.site_names == ["site-1", "site-2", "site-3"]
    assert_same_run(preinstalled.directory, simulate(preinstalled.settings, 3, tmp_path))


def test_results_and_tensorboard_stay_at_the_server_when_flare_has_removed_the_job(running, preinstalled):
    server = running.kit(SERVER)
    wait_for(lambda: not (server / preinstalled.id).exists(), 60, "the removal of FLARE's run directory")
    runs = {path.name for path in (preinstalled.directory / "tensorboard").iterdir()}
    assert runs == {"global", "site-1", "site-2", "site-3"}
    events = EventAccumulator(str(preinstalled.directory / "tensorboard" / "global"))
    events.Reload()
    assert events.Tags()["scalars"]
    assert stat.S_IMODE(preinstalled.directory.stat().st_mode) == 0o700


def test_a_self_contained_job_is_refused_by_one_site_and_goes_on_with_the_others(running, tmp_path):
    job = running.submit("self_contained", min_clients=2)
    assert running.wait(job) == "FINISHED:COMPLETED"
    details = running.meta(job)["job_deploy_detail"]
    [refusal] = [line for line in details if line.startswith("site-3:")]
    assert "BYOC not permitted" in refusal
    assert job.record.site_names == ["site-1", "site-2"]
    assert_same_run(job.directory, simulate(job.settings, 2, tmp_path))


def test_a_job_for_more_sites_than_there_are_never_starts_and_flare_says_so(running):
    job = running.submit("too_many", packing=PREINSTALLED, min_clients=5)
    wait_for(lambda: running.meta(job).get("schedule_count", 0), 60, "a try to schedule the job")
    assert "connected sites (3) < min_sites (5)" in running.meta(job)["schedule_history"][0]
    running.ask("job", "abort", job.id, "--force")
    assert not job.directory.exists()


def test_a_site_joins_the_running_federation_and_nobody_restarts(running, preinstalled, tmp_path):
    before = daemons(running)
    add_site_4(running)
    running.set_up("site-4")
    running.start("site-4")
    running.wait_for_sites({"site-4"})
    job = running.submit("four", packing=PREINSTALLED)
    assert running.wait(job) == "FINISHED:COMPLETED"
    assert before <= daemons(running)
    assert_same_run(job.directory, simulate(job.settings, 4, tmp_path))


def test_a_site_whose_package_differs_refuses_the_job_and_says_why(running, tmp_path, monkeypatch):
    running.stop("site-4")
    monkeypatch.setenv("PYTHONPATH", str(copy_of_package(tmp_path)))
    running.start("site-4")
    monkeypatch.undo()
    running.wait_for_sites({"site-4"})
    job = running.submit("other_package", packing=PREINSTALLED)
    assert running.wait(job) == "FINISHED:COMPLETED"
    sites = job.record.rounds[-1].sites
    assert [sites[f"site-{number}"].status for number in (1, 2, 3, 4)] == ["trained", "trained", "trained", "failed"]
    assert "is not the one the job was packed with" in sites["site-4"].reason


def add_site_4(running: Running) -> None:
    """A new kit, by the command of the README; those of the others are the same as before."""
    (running.root / "site-4.yml").write_text(yaml.safe_dump({"name": "site-4", "org": "hospital4"}))
    flags = ("-p", "project.yml", "-w", "workspace", "--add-client", "site-4.yml", "--force")
    running.run("nvflare", "provision", *flags)
    first, second = sorted(running.root.glob("workspace/*/prod_*/site-1/startup/client.crt"))[:2]
    assert first.read_bytes() == second.read_bytes()
