"""The federation under NVIDIA FLARE's simulator, by its real command line; slow."""

import json
import re
import time

import numpy as np
import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedproin.federation.local_engine import run_local
from fedproin.settings import load_settings
from simulator_runs import SHARED, small_job, start, whole_run
from waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TINY = {
    "data": {"synthetic_images": 400},
    "training": {"local_epochs": 1},
    "federation": {"rounds": 3, "participation": 1.0},
}


def test_the_quick_job_prints_what_a_person_wants_to_read(ten_threads):
    printed = ten_threads.printed
    assert ten_threads.process.returncode == 0, printed
    assert "SYNTHETIC PICTURES" in printed
    for round_ in range(1, 7):
        assert re.search(rf"^round {round_}/6  global .* trained 5/5", printed, re.M)
        assert len(re.findall(rf"^round {round_}/6  site-\d+ +[\d.]+ s  loss", printed, re.M)) == 5
    assert re.search(r"^last \(after round 6\) +[\d.]+ +[\d.]+ +-?[\d.]+ +[\d.]+$", printed, re.M)
    assert f"tensorboard --logdir {ten_threads.workspace}/fedproin/tensorboard" in printed
    ours = re.compile(
        r"^(round|fedproin|run|\d+ (sites|classes)|data|\*\*|test scores|model|last|best|recall|results|Tens|time|SYN)"
    )
    classes = ten_threads.results["classes"]
    other = [line for line in printed.splitlines() if line and not ours.match(line) and line.split()[0] not in classes]
    assert len(other) <= 3, other  # FLARE's own warnings


def test_results_hold_the_whole_run(ten_threads):
    results = ten_threads.results
    assert len(results["rounds"]) == 6
    assert {"fedproin", "nvflare", "torch", "monai"} <= set(results["versions"])
    for record in results["rounds"]:
        trained = [site for site in record["sites"].values() if site["status"] == "trained"]
        assert len(trained) == 5
        assert all(site["seconds"] > 0 and site["bytes_up"] > 0 and site["bytes_down"] > 0 for site in trained)
        assert bool(record["validation"]) == (record["round"] in (2, 4))
    for model in ("last", "best"):
        confusion = np.array(results[model]["confusion"])
        assert results[model]["test"]["accuracy"] == pytest.approx(np.trace(confusion) / confusion.sum())


def test_tensorboard_reads_back(ten_threads):
    directory = ten_threads.workspace / "fedproin" / "tensorboard"
    assert {path.name for path in directory.iterdir()} == {"global", *(f"site-{n}" for n in range(1, 11))}
    for run in sorted(directory.iterdir()):
        events = EventAccumulator(str(run), size_guidance={"scalars": 0, "images": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            steps = [event.step for event in events.Scalars(tag)]
            assert steps == sorted(set(steps)), (run.name, tag)
    events = EventAccumulator(str(directory / "global")).Reload()
    assert [event.step for event in events.Scalars("validation/mcc")] == [2, 4, 6]
    assert [event.step for event in events.Scalars("federation/seconds")] == list(range(6))
    assert {"influence", "confusion/test_last", "confusion/test_best"} <= set(events.Tags()["images"])
    assert (directory / "global" / "projector_config.pbtxt").exists()


def test_nothing_is_alive_after_a_run(ten_threads):
    assert ten_threads.processes() == []


def test_a_killed_trainer_costs_its_site_one_round(tmp_path):
    job = small_job(tmp_path, **TINY)
    with start(tmp_path, "-n", "2", "-t", "1", job=job) as run:

        def trainer_at_work():
            for worker in run.processes():
                try:
                    if "site-2" in worker.cmdline():
                        return [c for c in worker.children() if "spawn_main" in " ".join(c.cmdline()) and busy(c)]
                except psutil.Error:
                    continue
            return []

        wait_for(lambda: "round 1/3  global" in run.printed, 120, "the first round")
        wait_for(trainer_at_work, 60, "training of site-2", pause=0.02)[0].kill()
        printed = run.wait(300)
        assert run.process.returncode == 0, printed
        assert run.processes() == []
    statuses = [record["sites"]["site-2"]["status"] for record in run.results["rounds"]]
    failed = statuses.index("failed")
    assert "killed by signal 9" in run.results["rounds"][failed]["sites"]["site-2"]["reason"]
    others = [s["status"] for r in run.results["rounds"] for name, s in r["sites"].items() if name != "site-2"]
    assert set(others) == {"trained"}
    assert statuses.count("failed") == 1
    assert run.results["last"]["sites"].keys() == {"site-1", "site-2"}  # it takes part again


def busy(process: psutil.Process) -> bool:
    """Whether it computes right now."""
    return process.cpu_percent(interval=0.05) > 30


def test_a_worker_that_never_comes_up_does_not_stop_the_run(tmp_path):
    startup = tmp_path / "startup"
    startup.mkdir()
    (startup / "sitecustomize.py").write_text(
        "import sys\nif 'nvflare.private.fed.app.simulator.simulator_worker' in ' '.join(sys.orig_argv)"
        " and 'site-2' in sys.orig_argv:\n    sys.exit('lost to a port race')\n"
    )
    job = small_job(tmp_path, **TINY)
    with start(tmp_path, "-n", "3", "-t", "3", job=job, environment={"PYTHONPATH": str(startup)}) as run:
        printed = run.wait(300)
        assert run.process.returncode == 0, printed
    for record in run.results["rounds"]:
        assert record["counted"]
        assert record["sites"]["site-2"]["status"] == "missing"
    assert "never came up" in printed


@pytest.mark.parametrize(
    ("flags", "environment", "settings", "sentence"),
    [
        pytest.param(["-n", "3"], {"FEDPROIN_DATA": "no/such/data.zip"}, {}, "no data at the given path", id="no data"),
        pytest.param(
            ["-n", "3"], {}, {"training": {"lerning_rate": 1}}, "did you mean 'learning_rate'?", id="unknown key"
        ),
        pytest.param(["-n", "1"], {}, {}, "needs at least 2 sites", id="too few sites"),
    ],
)
def test_a_mistake_ends_the_run_with_one_sentence(tmp_path, flags, environment, settings, sentence):
    job = small_job(tmp_path, **settings)
    with start(tmp_path, *flags, "-t", "1", job=job, environment=environment) as run:
        printed = run.wait(120)
    assert run.process.returncode != 0
    assert sentence in printed
    assert "Traceback" not in printed
    assert str(tmp_path / "no") not in printed
    assert not (run.workspace / "fedproin" / "results.json").exists()


@pytest.mark.parametrize(
    ("archive", "sites", "dealt", "images"),
    [("ham10000_28px.zip", 10, "Dirichlet 0.5", 10015), ("wbc_4sites_160px.zip", 4, "by the column 'site'", 3242)],
)
def test_real_pictures_by_a_path_relative_to_the_users_directory(tmp_path, archive, sites, dealt, images):
    if not (SHARED / archive).exists():
        pytest.skip("the shared pictures are not here")
    job = small_job(tmp_path, training={"local_epochs": 1}, federation={"rounds": 1, "participation": 0.3})
    environment = {"FEDPROIN_DATA": f"../shared/data/{archive}"}
    flags = ("-n", str(sites), "-t", str(sites))
    with whole_run(tmp_path, *flags, seconds=300, job=job, environment=environment) as run:
        printed = run.printed
    assert run.process.returncode == 0, printed
    assert dealt in printed
    assert "SYNTHETIC" not in printed
    tested = np.array(run.results["last"]["confusion"]).sum()
    assert 0.15 * images < tested < 0.25 * images


def test_one_thread_ten_threads_and_the_local_engine_give_the_same_bits(one_thread, ten_threads, tmp_path):
    run_local(
        load_settings(small_job(tmp_path) / "app" / "config" / "settings.json"), 10, tmp_path / "ws", lambda line: None
    )
    local = type(ten_threads)(ten_threads.process, tmp_path / "ws", ten_threads.log)
    pcl = [site["losses"].get("pcl", [0.0]) for r in local.results["rounds"] for site in r["sites"].values()]
    assert max(max(values) for values in pcl) > 0  # so that what sites remember between processes matters
    for name in ("last", "best"):
        assert ten_threads.model(name) == local.model(name)
    started = time.monotonic()
    printed = one_thread.wait(600)
    assert one_thread.process.returncode == 0, printed
    assert time.monotonic() - started < 600
    for name in ("last", "best"):
        assert one_thread.model(name) == local.model(name)
    assert json.dumps(one_thread.results["last"]["test"]) == json.dumps(local.results["last"]["test"])
