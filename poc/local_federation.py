"""A provisioned federation on this machine: its kits and processes, all of it below one directory.

Every process of it inherits a HOME of its own, and is found by that: FLARE starts its jobs in sessions of their own,
so neither a process group nor a list of children would find them all.
"""

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from nvflare.lighter.constants import DEFINED_PARTICIPANT_TYPES, DEFINED_ROLES

from fedproin.errors import UserError
from fedproin.tools.kit import read_kit
from fedproin.tools.site import write_site_files
from fedproin.tools.site_files import Choices

SHIPPED = Path(__file__).parents[1] / "provisioning" / "project.yml"
SERVER, LEAD, ADMIN = "localhost", "lead@coordinator.org", "admin@coordinator.org"
EXECUTABLES = Path(sys.executable).parent


@dataclass(frozen=True)
class LocalFederation:
    """Server, sites and people whose kits and private HOME lie below `root`."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        """For every process: this Python first, a private HOME and TMPDIR, and PWD as FLARE needs it."""
        path = f"{EXECUTABLES}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        own = {"PATH": path, "HOME": str(self.root / "home"), "TMPDIR": str(self.root / "tmp")}
        return os.environ | own

    def kit(self, name: str) -> Path:
        """The startup kit of a participant; that of the first provisioning which knew it, as it is the one in use."""
        return sorted(self.root.glob(f"workspace/*/prod_*/{name}"))[0]

    def run(self, *command: str) -> str:
        """Run a command of this environment in `root`; what it printed.

        Raises:
            UserError: it failed; with the last thing it said.
        """
        done = subprocess.run(
            [str(EXECUTABLES / command[0]), *command[1:]],
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            said = [line for line in done.stdout.splitlines() if line.strip()]
            raise UserError(said[-1] if said else f"{' '.join(command[:2])} failed and said nothing.")
        return done.stdout

    def provision(self, sites: int, port: int) -> None:
        """Make the kits of a server, `site-1` to `site-N`, a lead and an admin, from the shipped project file."""
        for name in ("home", "tmp"):
            (self.root / name).mkdir(mode=0o700)
        project = self.root / "project.yml"
        project.write_text(yaml.safe_dump(local_project(sites, port), sort_keys=False))
        check_project(project)
        self.run("nvflare", "provision", "-p", str(project), "-w", "workspace")

    def set_up(self, name: str, data: Path | None = None, allow_byoc: bool = False) -> None:
        """What `fedproin site init` does for a participant; a server's store lies inside its kit."""
        kit = read_kit(self.kit(name))
        store = kit.directory / "store" if kit.kind == "server" else None
        with redirect_stdout(None):
            write_site_files(kit, Choices(data=data, store=store, allow_byoc=allow_byoc), replace_existing=True)

    def start(self, name: str) -> None:
        """Start a participant as its IT department does; it goes on in the background and restarts when it dies."""
        kit = self.kit(name)
        with (kit / "console.log").open("wb") as log:
            subprocess.run(
                ["bash", "startup/start.sh"],
                cwd=kit,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only the rehearsal, which then stops all of them
                check=True,
            )

    def processes(self) -> list[psutil.Process]:
        """All processes of this federation that are alive."""
        home, alive = str(self.root / "home"), []
        for process in psutil.process_iter():
            try:
                if process.environ().get("HOME") == home and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
            except psutil.Error:
                continue
        return alive

    def kill(self, seconds: float = 10) -> None:
        """End what is alive, the restart loops too."""
        until = time.monotonic() + seconds
        while (alive := self.processes()) and time.monotonic() < until:
            for process in alive:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(alive, timeout=1)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def require_free(port: int) -> None:
    """Refuse a port that something listens on already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as FLARE's server does
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            raise UserError(f"Port {port} is in use or not allowed: choose another one, or leave --port out.") from None


def local_project(sites: int, port: int) -> dict[str, Any]:
    """The shipped project file with this machine as server and `site-1` to `site-N`."""
    project: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
    project["participants"] = [
        {"name": SERVER, "type": "server", "org": "coordinator", "fed_learn_port": port},
        *({"name": f"site-{number}", "type": "client", "org": f"hospital{number}"} for number in range(1, sites + 1)),
        {"name": LEAD, "type": "admin", "org": "coordinator", "role": "lead"},
        {"name": ADMIN, "type": "admin", "org": "coordinator", "role": "project_admin"},
    ]
    return project


def check_project(path: Path) -> str:
    """What a project file is for, in one line. FLARE itself only warns of unknown types and roles, and goes on.

    Raises:
        UserError: the first thing that is wrong with it.
    """
    participants = _participants(path)
    for one in participants:
        _require_known(one)
    names = Counter(str(one["name"]) for one in participants)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise UserError(f"The project file names {twice[0]} twice: every participant needs a name of its own.")
    kinds = Counter(one["type"] for one in participants)
    if kinds["server"] != 1 or not kinds["client"]:
        raise UserError(
            f"The project file has {kinds['server']} servers and {kinds['client']} sites: "
            "it needs one participant of type server and at least one of type client."
        )
    return f"1 server, {kinds['client']} sites, {kinds['admin']} people"


def _participants(path: Path) -> Sequence[dict[str, Any]]:
    try:
        participants = yaml.safe_load(path.read_text())["participants"]
    except OSError:
        raise UserError("There is no such project file: name one, such as provisioning/project.yml.") from None
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError):
        participants = None
    if not isinstance(participants, list) or not all(isinstance(one, dict) and one.get("name") for one in participants):
        raise UserError("The project file is not YAML with a list `participants` of names: compare provisioning/.")
    return participants


def _require_known(one: dict[str, Any]) -> None:
    name, kind, role, port = one["name"], one.get("type"), one.get("role"), one.get("fed_learn_port", 8002)
    if kind not in DEFINED_PARTICIPANT_TYPES:
        raise UserError(f"{name} has the unknown type '{kind}': known are {', '.join(DEFINED_PARTICIPANT_TYPES)}.")
    if kind == "admin" and role not in DEFINED_ROLES:
        raise UserError(f"{name} has the unknown role '{role}': known are {', '.join(DEFINED_ROLES)}.")
    if kind == "server" and not (isinstance(port, int) and 0 < port < 65536):
        raise UserError(f"The server's fed_learn_port is '{port}': it must be a number from 1 to 65535.")
