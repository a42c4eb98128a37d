"""The central way of provisioning/README.md, without a start: rights, a later hospital, renewal, expiry, bad input."""

import json
import shutil
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from readme import ROOT, Block, steps, type_in

from fedproin.errors import UserError
from local_federation import EXECUTABLES, SERVER, LocalFederation, check_project

CENTRAL = "The central way"
RENEW = "Renew a certificate"


@pytest.fixture(scope="module")
def central(tmp_path_factory) -> Path:
    """The coordinator's folder after every command of the central way."""
    root = tmp_path_factory.mktemp("central")
    for name in ("home", "tmp"):
        (root / name).mkdir()
    walk(root, CENTRAL)
    return root / "coordinator"


def walk(root: Path, heading: str) -> list[str]:
    environment = LocalFederation(root).environment | {"FEDPROIN": str(ROOT), "SERVER": SERVER, "PORT": "8002"}
    blocks = [step for step in steps(heading) if isinstance(step, Block) and step.role.startswith("central")]
    return [type_in(block.commands, root / "coordinator", environment, root / "transcript.txt") for block in blocks]


def certificate(kit: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((kit / "startup" / "client.crt").read_bytes())


def test_the_file_with_all_private_keys_is_its_owners_alone(central):
    workspace = central / "workspace" / "fedproin"
    for path in (workspace / "state" / "cert.json", *workspace.rglob("*.key")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((central / "site-1.tgz").stat().st_mode) == 0o600


def test_the_readmes_check_finds_a_key_that_others_can_read(central, tmp_path):
    typed = [line for step in steps(CENTRAL) if isinstance(step, Block) for line in step.commands.splitlines()]
    [check] = [line for line in typed if line.startswith("find ")]
    shutil.copytree(central / "workspace", tmp_path / "workspace")
    assert type_in(check, tmp_path, {}, tmp_path / "t") == ""
    (tmp_path / "workspace" / "fedproin" / "state" / "cert.json").chmod(0o644)
    assert "cert.json" in type_in(check, tmp_path, {}, tmp_path / "t")


def test_an_eleventh_hospital_changes_nobody_elses_keys(central):
    first, second = (central / "workspace" / "fedproin" / name for name in ("prod_00", "prod_01"))
    assert not (first / "site-11").exists()
    assert (second / "site-11" / "startup" / "client.key").exists()
    for key in first.rglob("*.key"):
        assert key.read_bytes() == (second / key.relative_to(first)).read_bytes()
    assert (central / "site-11.tgz").exists()


def test_a_certificate_is_renewed_and_the_others_stay(central):
    [printed] = walk(central.parent, RENEW)
    newest = central / printed.splitlines()[-1]
    old = newest.parent / "prod_01"
    assert newest.name == "prod_02"
    assert certificate(newest / "site-1").serial_number != certificate(old / "site-1").serial_number
    assert certificate(newest / "site-2") == certificate(old / "site-2")
    assert stat.S_IMODE((newest.parent / "state" / "cert.json").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("days", "said"),
    [(-5, "fail  certificate  The certificate expired on"), (12, "warn  certificate  The certificate expires in")],
    ids=["expired", "expires soon"],
)
def test_the_doctor_says_what_flare_does_not(central, tmp_path, days, said):
    kit = tmp_path / "site-2"
    shutil.copytree(central / "workspace" / "fedproin" / "prod_00" / "site-2", kit)
    sign_again(kit / "startup" / "client.crt", central / "workspace" / "fedproin" / "state" / "cert.json", days)
    done = subprocess.run([EXECUTABLES / "fedproin", "doctor", kit], capture_output=True, text=True)
    assert done.returncode == 1  # nothing listens either
    assert said in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("role: lead", "role: boss", "unknown role 'boss'"),
        ("name: site-2,", "name: site-1,", "names site-1 twice"),
        ("type: client, org: hospital3", "type: hospital, org: hospital3", "unknown type 'hospital'"),
        ("type: server", "type: client", "has 0 servers and 11 sites"),
        ("fed_learn_port: 8002", "fed_learn_port: 80020", "must be a number from 1 to 65535"),
        ("participants:", "people:", "not YAML with a list `participants`"),
    ],
    ids=["role", "duplicate", "type", "no server", "port", "no participants"],
)
def test_a_project_file_is_refused_with_one_sentence(tmp_path, old, new, said):
    text = (ROOT / "provisioning" / "project.yml").read_text()
    assert old in text
    (tmp_path / "project.yml").write_text(text.replace(old, new))
    with pytest.raises(UserError, match=said):
        check_project(tmp_path / "project.yml")


def test_a_project_file_that_is_not_there_is_refused_with_one_sentence(tmp_path):
    with pytest.raises(UserError, match="no such project file"):
        check_project(tmp_path / "project.yml")


def sign_again(path: Path, state: Path, days: int) -> None:
    """Let a certificate end in so many days."""
    key = serialization.load_pem_private_key(json.loads(state.read_text())["root_pri_key"].encode(), None)
    old, end = x509.load_pem_x509_certificate(path.read_bytes()), datetime.now(UTC) + timedelta(days=days, hours=1)
    begin = end - timedelta(days=360)
    builder = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), old.serial_number, begin, end)
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
