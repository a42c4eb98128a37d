"""The jobs to compare, under NVIDIA FLARE's simulator with a new process for every task; slow.

By default the two whose state is the oddest: models that stay at the sites, and uploads of any length. All of them run
with FEDPROIN_EVERY_JOB=1.
"""

import os

import pytest

from fedproin.federation.local_engine import run_local
from fedproin.settings import load_settings
from simulator_runs import ROOT, small_job, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUICK = sorted({job.name for job in (ROOT / "jobs").iterdir()} - {"fedproin_ham10000", "fedproin_matek19"})
NAMES = QUICK if os.environ.get("FEDPROIN_EVERY_JOB") else ("fedproto", "fedplvm")
TINY = {
    "data": {"synthetic_images": 300},
    "model": {"width": 4},
    "training": {"local_epochs": 1},
    "federation": {"rounds": 2, "participation": 1.0, "validate_every": 1},
}


@pytest.mark.parametrize("name", NAMES)
def test_the_simulator_and_the_local_engine_give_the_same_bits(tmp_path, name):
    job = small_job(tmp_path, ROOT / "jobs" / name, **TINY)
    with start(tmp_path, "-n", "2", "-t", "1", job=job) as run:
        printed = run.wait(400)
        assert run.process.returncode == 0, printed
        settings = load_settings(job / "app" / "config" / "settings.json")
        record = run_local(settings, 2, tmp_path / "local", lambda line: None)
        for model in ("last", "best"):
            content = (tmp_path / "local" / "fedproin" / f"{model}_model.safetensors").read_bytes()
            assert run.model(model) == content[8 + int.from_bytes(content[:8], "little") :]
        assert run.results["last"]["confusion"] == record.last.confusion
        assert run.results["best"]["confusion"] == record.best.confusion
        losses = [{site: own["losses"] for site, own in past["sites"].items()} for past in run.results["rounds"]]
        assert losses == [{site: own.losses for site, own in past.sites.items()} for past in record.rounds]
