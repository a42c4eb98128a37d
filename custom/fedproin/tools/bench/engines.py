"""How a run is made: in this process by the local engine, or by `nvflare simulator`; both end with the same bits."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedproin.errors import UserError
from fedproin.federation.records import RunRecord
from fedproin.federation.results import RESULTS, read_results
from fedproin.settings import Settings
from fedproin.tools.bench.plan import Run
from fedproin.tools.jobs import CONFIG, SETTINGS

GRACE_SECONDS = 10.0
AGGREGATOR = {"id": "aggregator", "path": "fedproin.flare.aggregator.FedProInAggregator", "args": {}}
CONTROLLER = {
    "id": "controller",
    "path": "fedproin.flare.controller.FedProInController",
    "args": {"aggregator_id": "aggregator"},
}
EXECUTOR = {"path": "fedproin.flare.executor.FedProInExecutor", "args": {}}
JOB: dict[str, dict[str, Any]] = {  # as in jobs/, which an installed package does not have
    "config_fed_server.json": {
        "format_version": 2,
        "server": {"task_request_interval": 0.2},
        "workflows": [CONTROLLER],
        "components": [AGGREGATOR],
    },
    "config_fed_client.json": {
        "format_version": 2,
        "executors": [{"tasks": ["round", "score"], "executor": EXECUTOR}],
        "components": [],
    },
}


def local(run: Run, workspace: Path) -> RunRecord:
    """Server and all sites in this process, one after another."""
    from fedproin.federation.local_engine import run_local

    return run_local(run.settings, run.sites, workspace, lambda line: print(line, flush=True))


def simulator(run: Run, workspace: Path) -> RunRecord:
    """FLARE's simulator with a worker process a site; what it prints goes where this process prints."""
    job, results = workspace / "job" / run.row, workspace / "ws"
    write_job(job, run.settings)
    nvflare, sites = Path(sys.executable).with_name("nvflare"), str(run.sites)
    process = subprocess.Popen([nvflare, "simulator", job, "-w", results, "-n", sites, "-t", sites])
    try:
        code = process.wait()
    finally:
        _stop(process)
    if code:
        raise UserError(f"nvflare simulator ended with exit code {code}.")
    return read_results(results / "fedproin" / RESULTS)


ENGINES: dict[str, Callable[[Run, Path], RunRecord]] = {"local": local, "simulator": simulator}


def write_job(job: Path, settings: Settings) -> None:
    """A job folder for the simulator, marked as one that brings code: see jobs/fedproin."""
    (job / CONFIG).mkdir(parents=True)
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "README.md").write_text("This folder marks the job as one that brings its own code.\n")
    meta = {"name": job.name, "min_clients": 2, "resource_spec": {}, "deploy_map": {"app": ["@ALL"]}}
    (job / "meta.json").write_text(json.dumps(meta))
    (job / SETTINGS).write_text(json.dumps(asdict(settings)))
    for name, content in JOB.items():
        (job / CONFIG / name).write_text(json.dumps(content))


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End the simulator if it still runs; its workers notice and end themselves."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
