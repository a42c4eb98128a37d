"""What people do: abort, press Ctrl-C, start a kit twice, change the data, set a clock or a name wrong."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from fedproin.data.location import Location
from fedproin.data.synthetic import CLASSES
from fedproin.federation.opening import open_server
from fedproin.federation.site import Site
from fedproin.tensor_file import load_tensors
from fedproin.tools.jobs import load_job
from local_federation import SERVER, free_port
from moments import assert_goes_on, held, wait_for_round
from pictures import draw_pictures
from provisioned import JOB, SMALL, Job, Running, assert_same_run, simulate
from simulator_runs import small_job, start
from site_faults import SiteOfJob, wait_for_the_end_of
from waiting import wait_for

ROUNDS = 4
SETTINGS = (f"federation.rounds={ROUNDS}", "training.local_epochs=4")
SITES = ("site-1", "site-2", "site-3")
AHEAD, BEHIND, BEFORE_THE_KIT, OTHER_NAME = "site-4", "site-5", "site-6", "site-7"
SECOND_NAME = "127.0.0.1"
PREINSTALLED = ("--preinstalled",)
HOUR = 3600


@pytest.fixture(scope="module")
def clock(tmp_path_factory) -> Path | None:
    """A library that shifts the clock of a process; none without a C compiler."""
    library, compiler = tmp_path_factory.mktemp("clock") / "clock.so", shutil.which("cc")
    if compiler is None:
        return None
    source = Path(__file__).parents[1] / "support" / "shifted_clock.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@contextmanager
def shifted(clock: Path | None, seconds: int) -> Iterator[None]:
    """Processes that start meanwhile have a clock that is so far ahead, for ever."""
    with pytest.MonkeyPatch.context() as patch:
        if clock is not None:
            patch.setenv("LD_PRELOAD", str(clock))
            patch.setenv("CLOCK_SHIFT", str(seconds))
        yield


@pytest.fixture(scope="module")
def running(tmp_path_factory, clock) -> Iterator[Running]:
    """Server and three sites, and kits for four more; all of them are two hours old."""
    running = Running(tmp_path_factory.mktemp("federation"))
    try:
        with shifted(clock, -2 * HOUR):
            running.provision(7, free_port())
        running.begin_sites(SITES, ())
        yield running
    finally:
        running.kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """The results of the same run without a fault."""
    return simulate((*SMALL, *SETTINGS), len(SITES), tmp_path_factory.mktemp("undisturbed"))


def doctor(running: Running, site: str) -> dict[str, str]:
    """What `fedproin doctor` says of the connection to the server."""
    command = ["fedproin", "doctor", str(running.kit(site)), "--json"]
    done = subprocess.run(command, cwd=running.root, env=running.environment, capture_output=True, text=True)
    [finding] = [one for one in json.loads(done.stdout) if one["code"] == "server"]
    return finding


def test_a_lead_aborts_in_the_middle_of_a_round(running, undisturbed):
    job = running.submit("aborted", *SETTINGS, packing=PREINSTALLED)
    wait_for_round(running, job, 1)
    assert all(SiteOfJob(running, job, site).trainer() for site in SITES)
    with held(running, job, "site-2"):
        running.ask("job", "abort", job.id, "--force")
    assert running.wait(job) == "FINISHED:ABORTED"
    wait_for_the_end_of(running, job)
    assert_goes_on(running, job, undisturbed)


def test_ctrl_c_in_the_simulator(tmp_path):
    settings = {"data": {"synthetic_images": 400}, "federation": {"rounds": 3, "participation": 1.0}}
    job = small_job(tmp_path, **settings)
    with start(tmp_path, "-n", "2", "-t", "2", job=job) as run:
        wait_for(lambda: "round 1/3  global" in run.printed, 200, "the first round")
        os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
        run.wait(60)
        wait_for(lambda: not run.processes(), 60, "the end of all processes of the simulation")
        results = run.workspace / "fedproin"
        assert load_tensors(results / "checkpoint.safetensors")[1]["run"]["rounds"]
        assert not list(results.glob(".*"))
        assert run.results["last"] is None
    with start(tmp_path, "-n", "2", "-t", "2", job=job) as run:  # in the same workspace, which FLARE empties first
        assert "round 3/3  global" in run.wait(300)
        assert run.process.returncode == 0
    flags = ["data.synthetic_images=400", "federation.rounds=3", "federation.participation=1.0"]
    assert_same_run(results, simulate(flags, 2, tmp_path / "undisturbed"))


def test_a_second_machine_with_the_kit_of_a_site_is_refused(running, undisturbed):
    job = running.submit("twice", *SETTINGS, packing=PREINSTALLED)
    wait_for_round(running, job, 1)
    with held(running, job, "site-2"), another_machine(running, "site-1") as other:
        console = other.kit("site-1") / "console.log"
        wait_for(lambda: "registration rejected" in console.read_text(), 120, "the refusal of the second site-1")
    log = (running.kit(SERVER) / "log.txt").read_text()
    assert "A second site-1 asks to join from another place while the first is connected" in log
    assert running.wait(job) == "FINISHED:COMPLETED"
    assert {record.sites["site-1"].status for record in job.record.rounds} == {"trained"}
    assert_same_run(job.directory, undisturbed)


@contextmanager
def another_machine(running: Running, site: str) -> Iterator[Running]:
    """Another machine on which a copy of a site's kit has been started."""
    other = Running(running.root / "another_machine")
    kit = other.root / running.kit(site).relative_to(running.root)
    for name in ("startup", "local"):
        shutil.copytree(running.kit(site) / name, kit / name)
    try:
        other.start(site)
        yield other
    finally:
        other.kill()


def test_a_site_that_has_another_table_now_says_so(running, tmp_path):
    tables = {name: tmp_path / name / "table.csv" for name in (*SITES, "other")}
    for seed, table in enumerate(tables.values()):
        draw_pictures(table.parent, 300, seed)
    for site in SITES:
        running.set_up(site, data=tables[site])
    classes = f"data.classes={json.dumps(CLASSES)}"
    job = running.submit("table", *SETTINGS, "data.synthetic=false", classes, packing=PREINSTALLED)
    wait_for_round(running, job, 1)
    with held(running, job, "site-2"):
        running.ask("job", "abort", job.id, "--force")
    assert running.wait(job) == "FINISHED:ABORTED"
    changed = job.rounds_done
    running.set_up("site-1", data=tables["other"])
    again = running.submit_again(job)
    assert running.wait(again) == "FINISHED:COMPLETED"
    note = "data_table_differs_from_earlier_rounds"
    noted = [
        (past.round, site) for past in again.record.rounds for site, own in past.sites.items() if note in own.notes
    ]
    assert noted == [(changed, "site-1")]
    assert note.replace("_", " ") in running.log(again)

    def table_of(site: str, round_: int) -> Path:
        return tables["other" if site == "site-1" and round_ >= changed else site]

    assert_same_run(again.directory, by_hand(running, again, table_of, tmp_path / "by_hand"))


def by_hand(running: Running, job: Job, table_of: Callable[[str, int], Path], directory: Path) -> Path:
    """The results of a job whose sites have these tables in these rounds, in this process and without FLARE."""
    settings = load_job(running.root / "packed" / job.directory.name / JOB.name)
    server = open_server(settings, SITES, None, directory, lambda line: None)

    def exchange(task, targets):
        for name in targets:
            location = Location(table_of(name, task.round), directory / "cache", simulated=False)
            server.accept(name, Site(name, settings, location, directory / name).run(task))
        return {}

    server.run(exchange)
    return directory


def test_sites_whose_clocks_are_an_hour_off_take_part(running, clock, tmp_path):
    if clock is None:
        pytest.skip("no C compiler to shift a clock")
    for site, seconds in ((AHEAD, HOUR), (BEHIND, -HOUR)):
        running.set_up(site)
        with shifted(clock, seconds):
            running.start(site)
    running.wait_for_sites({AHEAD, BEHIND})
    for site, seconds in ((AHEAD, HOUR), (BEHIND, -HOUR)):
        log = running.kit(site) / "log.txt"
        written = datetime.fromisoformat(log.read_text()[:19]).timestamp()
        assert written - log.stat().st_mtime == pytest.approx(seconds, abs=HOUR / 4)
    job = running.submit("clocks", *SETTINGS, packing=PREINSTALLED)
    assert running.wait(job) == "FINISHED:COMPLETED"
    assert job.record.site_names == [*SITES, AHEAD, BEHIND]
    assert_same_run(job.directory, simulate(job.settings, 5, tmp_path))


def test_a_clock_before_the_servers_certificate_keeps_a_site_out_and_the_doctor_says_why(running, clock):
    if clock is None:
        pytest.skip("no C compiler to shift a clock")
    running.set_up(BEFORE_THE_KIT)
    with shifted(clock, -3 * HOUR):
        running.start(BEFORE_THE_KIT)
        console = running.kit(BEFORE_THE_KIT) / "console.log"
        last = "registered aux handler for topic ObjectStreamer.Abort"  # FLARE's last word, with an expired one too
        wait_for(lambda: last in console.read_text(), 120, "the start of the site")
        finding = doctor(running, BEFORE_THE_KIT)
    assert finding["status"] == "fail"
    assert "is not valid yet" in finding["message"]
    assert "clock" in finding["advice"]
    assert BEFORE_THE_KIT not in running.registered()
    assert console.read_text().rstrip().endswith(last)


def test_a_second_name_of_the_server_is_refused_until_its_certificate_has_it(running, clock):
    running.set_up(OTHER_NAME)
    file = running.kit(OTHER_NAME) / "startup" / "fed_client.json"
    file.write_text(file.read_text().replace(f'"{SERVER}:', f'"{SECOND_NAME}:'))
    running.start(OTHER_NAME)
    console = running.kit(OTHER_NAME) / "console.log"
    retrying = "conn_manager - INFO - Retrying"  # all that FLARE says, and not why
    wait_for(lambda: console.read_text().count(retrying) > 1, 120, "the refusal")
    assert OTHER_NAME not in running.registered()
    finding = doctor(running, OTHER_NAME)
    assert finding["status"] == "fail"
    assert f"is for another name than {SECOND_NAME}" in finding["message"]
    with shifted(clock, -2 * HOUR):  # not younger than the other certificates
        renewed = kits_with_the_second_name(running)
    assert (renewed / OTHER_NAME / "startup" / "fed_client.json").read_text() == file.read_text()
    for name in ("server.crt", "server.key"):
        shutil.copy(renewed / SERVER / "startup" / name, running.kit(SERVER) / "startup" / name)
    for name in (SERVER, *SITES):  # sites that run do not come back to a server with another key by themselves
        (running.kit(name) / "restart.fl").touch()
    running.wait_for_sites({*SITES, OTHER_NAME})
    assert doctor(running, OTHER_NAME)["status"] == "ok"
    job = running.submit("second_name", "federation.rounds=1", packing=PREINSTALLED)
    assert running.wait(job) == "FINISHED:COMPLETED"
    assert job.record.rounds[0].sites[OTHER_NAME].status == "trained"


def kits_with_the_second_name(running: Running) -> Path:
    """The recipe of provisioning/README.md for the central way; the server's old certificate is forgotten first."""
    project = running.root / "project.yml"
    values = yaml.safe_load(project.read_text())
    participants = {one["name"]: one for one in values["participants"]}
    participants[SERVER]["host_names"] = [SECOND_NAME]
    participants[OTHER_NAME]["connect_to"] = {"host": SECOND_NAME}
    project.write_text(yaml.safe_dump(values, sort_keys=False))
    [state] = running.root.glob("workspace/*/state/cert.json")
    certificates = json.loads(state.read_text())
    del certificates[SERVER]
    state.write_text(json.dumps(certificates))
    running.run("nvflare", "provision", "-p", "project.yml", "-w", "workspace", "--force")
    return max(running.root.glob("workspace/*/prod_*"))
