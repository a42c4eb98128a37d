"""provisioning/README.md as a newcomer types it: every command, on loopback, each role in a folder of its own."""

import json
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest
from cryptography import x509
from readme import ROOT, Block, Carry, carry, names, steps, type_in

from fedproin.federation.results import read_results
from local_federation import SERVER, LocalFederation, free_port
from pictures import draw_pictures
from provisioned import daemons
from waiting import wait_for

DISTRIBUTED = "The distributed way"
SET_UP = "Set up, check, start, stop"
RUN = "Run a job"
RENEW = "Renew a certificate"
RUN_ELSEWHERE = {"install": "make setup, which CI does", "names": "the test sets them"}


class Walk:
    """The folders of coordinator, server, lead and hospitals, below one root with one HOME."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port()
        self.federation = LocalFederation(root)
        for name in ("home", "tmp"):
            (root / name).mkdir(mode=0o700)
        self.transcript = root / "transcript.txt"
        self.fingerprint = ""

    def environment(self, site: int) -> dict[str, str]:
        own = {
            "FEDPROIN": str(ROOT),
            "SERVER": SERVER,
            "PORT": str(self.port),
            "SITE": f"site-{site}",
            "ORG": f"hospital{site}",
            "DATA": str(self.root / f"images-{site}" / "table.csv"),
        }
        assert own.keys() == names()
        return self.federation.environment | own | {"FINGERPRINT": self.fingerprint}

    def folder(self, role: str, site: int) -> Path:
        role = role.split("-")[0]
        return self.root / (f"hospital-{site}" if role == "hospital" else role)

    def walk(self, heading: str, sites: list[int], roles: set[str]) -> None:
        """Type the blocks of these roles below a heading; a hospital's once for every site."""
        for step in steps(heading):
            if isinstance(step, Block) and step.role in roles and not self.was_once(step):
                self.type_in(step, sites if step.role.startswith("hospital") else sites[:1])
            elif isinstance(step, Carry) and {step.sender, step.receiver} <= {role.split("-")[0] for role in roles}:
                for site in sites if "hospital" in (step.sender, step.receiver) else sites[:1]:
                    ends = (self.folder(step.sender, site), self.folder(step.receiver, site))
                    carry(step, *ends, self.environment(site))

    def was_once(self, block: Block) -> bool:
        """The root certificate is made once, not again for a hospital that comes later."""
        return "cert init" in block.commands and bool(self.fingerprint)

    def type_in(self, block: Block, sites: list[int]) -> None:
        for site in sites:
            type_in(block.commands, self.folder(block.role, site), self.environment(site), self.transcript)
        authority = self.root / "coordinator" / "ca" / "ca.json"
        if authority.exists():  # the coordinator tells it by telephone
            self.fingerprint = json.loads(authority.read_text())["rootCA_fingerprint"]

    def kit(self, site: int) -> Path:
        return self.folder("hospital", site) / "workspace" / "fedproin" / "prod_00" / f"site-{site}"

    def status(self) -> str:
        """What the lead sees; nothing while FLARE ends with an error because no site has answered yet."""
        [block] = [step for step in steps(SET_UP) if isinstance(step, Block) and step.role == "lead"]
        try:
            return type_in(block.commands, self.root / "lead", self.environment(1), self.transcript)
        except AssertionError:
            return ""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """Two hospitals have joined, the distributed way."""
    walk = Walk(tmp_path_factory.mktemp("readme"))
    for site in (1, 2, 11):
        draw_pictures(walk.root / f"images-{site}", 300, site)
    try:
        walk.walk(DISTRIBUTED, [1, 2], {"coordinator", "server", "hospital", "lead"})
        walk.walk(SET_UP, [1], {"server"})
        wait_for(lambda: listens(walk.port), 60, "the start of the server")
        walk.walk(SET_UP, [1, 2], {"hospital"})
        wait_for(lambda: "Registered clients: 2" in walk.status(), 90, "the registration of two hospitals")
        yield walk
    finally:
        walk.federation.kill()


def test_every_command_is_run():
    roles = {step.role for step in steps() if isinstance(step, Block)}
    here = {"coordinator", "server", "hospital", "lead", "hospital-stop", "hospital-renew", "coordinator-renew"}
    assert roles == here | {"server-tensorboard", "central", "central-renew"} | RUN_ELSEWHERE.keys()


def test_private_keys_stay_where_they_were_made(walk):
    keys = [path.relative_to(walk.root).parts[0] for path in walk.root.rglob("*.key")]
    assert keys.count("coordinator") == 1  # the root's
    assert {keys.count(role) for role in ("server", "lead", "hospital-1", "hospital-2")} == {2}  # request and kit
    assert not [path for path in walk.root.rglob("*.key") if path.stat().st_mode & 0o077]


def test_a_rehearsal_and_a_study_run(walk):
    walk.walk(RUN, [1, 2], {"hospital", "lead"})
    runs = walk.root / "server" / "workspace" / "fedproin" / "prod_00" / SERVER / "fedproin"
    rehearsal, study = (read_results(runs / name / "results.json") for name in ("rehearsal", "study1"))
    assert (rehearsal.data, study.data) == ("synthetic", "table")
    assert study.last is not None
    assert study.last.sites.keys() == {"site-1", "site-2"}
    [downloaded] = (walk.root / "lead" / "downloaded").glob("*/workspace")
    assert (downloaded / "log.txt").exists()
    assert read_results(downloaded / "fedproin" / "results.json") == study
    for model in ("last_model.safetensors", "best_model.safetensors"):
        assert (downloaded / "fedproin" / model).read_bytes() == (runs / "study1" / model).read_bytes()
    assert list((downloaded / "fedproin" / "tensorboard" / "global").iterdir())


def test_tensorboard_shows_a_run_that_has_ended(walk):
    [block] = [step for step in steps(RUN) if isinstance(step, Block) and step.role == "server-tensorboard"]
    port = free_port()
    server = subprocess.Popen(
        ["bash", "-c", "exec " + block.commands.replace("6006", str(port))],
        cwd=walk.root / "server",
        env=walk.environment(1),
    )
    try:

        def runs() -> list[str]:
            try:
                with urllib.request.urlopen(f"http://localhost:{port}/data/runs") as answer:
                    return json.load(answer)
            except OSError:
                return []

        assert set(wait_for(runs, 60, "an answer of TensorBoard")) == {"global", "site-1", "site-2"}
    finally:
        server.kill()
        server.wait()


def test_an_eleventh_hospital_joins_while_all_the_others_go_on(walk):
    before = daemons(walk.federation)
    walk.walk(DISTRIBUTED, [11], {"hospital", "coordinator"})
    walk.walk(SET_UP, [11], {"hospital"})
    wait_for(lambda: "Registered clients: 3" in walk.status(), 90, "the registration of the eleventh hospital")
    assert before <= daemons(walk.federation)


def test_a_certificate_is_renewed(walk):
    certificate = walk.kit(1) / "startup" / "client.crt"
    old = x509.load_pem_x509_certificate(certificate.read_bytes())
    key = certificate.with_suffix(".key").read_bytes()
    settings = (walk.kit(1) / "local" / "fedproin.json").read_bytes()
    walk.walk(RENEW, [1], {"hospital-renew", "coordinator-renew"})
    new = x509.load_pem_x509_certificate(certificate.read_bytes())
    assert new.serial_number != old.serial_number
    assert certificate.with_suffix(".key").read_bytes() != key
    assert (walk.kit(1) / "local" / "fedproin.json").read_bytes() == settings
    log = walk.kit(1) / "log.txt"
    wait_for(lambda: log.read_text().count("Successfully registered client:site-1") == 2, 90, "its return")


def test_a_hospital_stops(walk):
    [block] = [step for step in steps(SET_UP) if isinstance(step, Block) and step.role == "hospital-stop"]
    walk.type_in(block, [2])
    kit = str(walk.kit(2))

    def ended() -> bool:
        return not any(kit in " ".join(process.cmdline()) for process in walk.federation.processes())

    wait_for(ended, 60, "the end of site-2")
