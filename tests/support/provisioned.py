"""A provisioned federation that tests start, submit to, and look at."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fedproin.data.location import Location
from fedproin.federation.messages import Answer, Task
from fedproin.federation.opening import open_server
from fedproin.federation.records import RunRecord
from fedproin.federation.results import read_results
from fedproin.federation.site import Site
from fedproin.settings import Settings, parse
from fedproin.tensor_file import load_tensors
from fedproin.tools.jobs import apply_changes
from local_federation import EXECUTABLES, LEAD, SERVER, LocalFederation, free_port
from waiting import wait_for

ROOT = Path(__file__).parents[2]
JOB = ROOT / "jobs" / "fedproin"
SMALL = (
    "data.synthetic=true",
    "data.synthetic_images=400",
    "training.local_epochs=1",
    "federation.rounds=2",
    "federation.participation=1.0",
    "federation.validate_every=1",
)


@dataclass(frozen=True)
class Job:
    """A job that was submitted, and where the server keeps what it leaves."""

    id: str
    settings: tuple[str, ...]
    directory: Path

    @property
    def record(self) -> RunRecord:
        return read_results(self.directory / "results.json")

    @property
    def rounds_done(self) -> int:
        """How many rounds the server has recorded; none before the first is over."""
        return len(self.record.rounds) if (self.directory / "results.json").exists() else 0


class Running(LocalFederation):
    """Adds to a local federation what a lead does."""

    def begin(self, sites: int, refusing: Sequence[str] = ()) -> None:
        self.provision(sites, free_port())
        self.begin_sites([f"site-{number}" for number in range(1, sites + 1)], refusing)

    def begin_sites(self, names: Sequence[str], refusing: Sequence[str]) -> None:
        """Set up and start the server and these sites; returns when all of them have registered."""
        self.set_up(SERVER, allow_byoc=True)
        for name in names:
            self.set_up(name, allow_byoc=name not in refusing)
        for name in (SERVER, *names):
            self.start(name)
        self.wait_for_sites(set(names))

    def ask(self, *command: str) -> Any:
        """The `data` of an `nvflare` command that the lead types."""
        kit = ("--startup-kit", str(self.kit(LEAD)))
        printed = self.run("nvflare", "--format", "json", *command, *kit)
        return json.loads(printed[printed.index("{") :])["data"]

    def registered(self) -> set[str]:
        """The sites that the server has."""
        return {client["client_name"] for client in self.ask("system", "status").get("clients", [])}

    def wait_for_sites(self, names: set[str]) -> None:
        def all_there() -> bool:
            try:
                return names <= self.registered()
            except Exception:  # the server is still coming up
                return False

        wait_for(all_there, 120, f"the registration of {sorted(names)}")

    def stop(self, name: str) -> None:
        """Stop a participant as its IT department does; returns when its processes have ended."""
        kit = self.kit(name)
        (kit / "shutdown.fl").touch()
        mine = self.processes_of(name)
        wait_for(lambda: not any(process.is_running() for process in mine), 60, f"the end of {name}")

    def processes_of(self, name: str) -> list[psutil.Process]:
        """All that FLARE runs for a participant: the restart loop, the daemon, the processes of jobs."""
        kit = str(self.kit(name))  # and not the one of site-10 for that of site-1
        return [
            process
            for process in self.processes()
            if any(word == kit or word.startswith(f"{kit}/") for word in command_line(process))
        ]

    def submit(self, run: str, *changes: str, packing: Sequence[str] = (), min_clients: int | None = None) -> Job:
        """Pack the quick job, made small, and submit it."""
        settings = (f"run={run}", *SMALL, *changes)
        flags = [word for change in settings for word in ("--set", change)]
        out = self.root / "packed" / run
        self.run("fedproin", "pack", str(JOB), "--out", str(out), *packing, *flags)
        if min_clients is not None:
            file = out / JOB.name / "meta.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | {"min_clients": min_clients}))
        return self._submit(run, settings)

    def submit_again(self, job: Job) -> Job:
        """Submit what was packed for an earlier job once more: its run goes on."""
        return self._submit(job.directory.name, job.settings)

    def _submit(self, run: str, settings: tuple[str, ...]) -> Job:
        submitted = self.ask("job", "submit", "-j", str(self.root / "packed" / run / JOB.name))
        return Job(submitted["job_id"], settings, self.kit(SERVER) / "fedproin" / run)

    def meta(self, job: Job) -> dict[str, Any]:
        """What FLARE knows of the job."""
        meta: dict[str, Any] = self.ask("job", "meta", job.id)
        return meta

    def status(self, job: Job) -> str:
        """FLARE's status of the job."""
        return str(self.meta(job).get("status"))

    def wait(self, job: Job, seconds: float = 240) -> str:
        """The status in which the job ended."""
        wait_for(lambda: self.status(job).startswith("FINISHED"), seconds, f"the end of {job.directory.name}")
        return self.status(job)

    def log(self, job: Job) -> str:
        """The server's log of a job that has ended, as the lead downloads it."""
        downloaded = self.root / "downloaded"
        self.ask("job", "download", job.id, "-o", str(downloaded))
        return (downloaded / job.id / "workspace" / "log.txt").read_text()


def command_line(process: psutil.Process) -> list[str]:
    """Empty for a process that has just ended."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def daemons(federation: LocalFederation) -> set[int]:
    """The process ids of server and sites, without those of a job and of the loops that restart them."""
    ours = ("nvflare.private.fed.app.server.server_train", "nvflare.private.fed.app.client.client_train")
    return {process.pid for process in federation.processes() if set(ours) & set(process.cmdline())}


def simulate(settings: Sequence[str], sites: int, workspace: Path, **variables: str) -> Path:
    """`fedproin simulate` with the same settings; the directory with its results."""
    flags = [word for change in settings for word in ("--set", change)]
    command = [str(EXECUTABLES / "fedproin"), "simulate", str(JOB), "-n", str(sites), "-w", str(workspace), *flags]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return workspace / "fedproin"


def replay(
    job: Job,
    locations: Mapping[str, Location],
    directory: Path,
    arriving: Callable[[str, Task, Callable[[Task], Answer]], Answer | None],
) -> Path:
    """The job again, its server and sites in this process; the directory with its results.

    Args:
        locations: of every site's images.
        arriving: the answer of a site that reaches the server, from its name, the task and what does it.
    """
    values = json.loads((JOB / "app" / "config" / "settings.json").read_bytes())
    apply_changes(values, job.settings)
    settings = parse(Settings, values)
    shared = next(iter(locations.values()))
    server = open_server(
        settings, list(locations), shared if shared.synthetic else None, directory / "server", lambda line: None
    )
    members = {name: Site(name, settings, location, directory / name) for name, location in locations.items()}

    def exchange(task: Task, targets: Sequence[str]) -> Mapping[str, str]:
        for name in targets:
            answer = arriving(name, task, members[name].run)
            if answer is not None:
                assert server.accept(name, answer) == ""
        return {}

    server.run(exchange)
    return directory / "server"


def assert_same_run(one: Path, other: Path) -> None:
    """Two runs ended with the same bits: models, scores of every round and site."""
    for model in ("last", "best"):
        (mine, _), (theirs, _) = (load_tensors(where / f"{model}_model.safetensors") for where in (one, other))
        assert mine.keys() == theirs.keys()
        for name, tensor in mine.items():
            assert np.array_equal(tensor.numpy(), theirs[name].numpy()), name
    mine, theirs = (read_results(where / "results.json") for where in (one, other))
    assert mine.last is not None
    assert (mine.last, mine.best) == (theirs.last, theirs.best)
    assert [round_.confusion for round_ in mine.rounds] == [round_.confusion for round_ in theirs.rounds]


def copy_of_package(target: Path) -> Path:
    """The folder of a changed copy of the package, for PYTHONPATH."""
    shutil.copytree(ROOT / "custom" / "fedproin", target / "fedproin", ignore=shutil.ignore_patterns("__pycache__"))
    with (target / "fedproin" / "seeds.py").open("a") as file:
        file.write("\n# changed\n")
    return target
