import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedproin.errors import UserError
from fedproin.tools.kit import check_certificate, read_certificate, read_kit, require_sound

UNPACK = "unpack the kit that the coordinator made for this machine once more"
RENEW = "ask the coordinator for a new one (provisioning/README.md, renewing a certificate)"


def refusal(path):
    with pytest.raises(UserError) as error:
        require_sound(read_kit(path))
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "kind", "org"),
    [
        ("site-1", "site", "hospital1"),
        ("localhost", "server", "coordinator"),
        ("lead@coordinator.org", "admin", "coordinator"),
    ],
)
def test_reads_what_flare_provisions(provisioned, name, kind, org):
    kit = read_kit(provisioned["mine"] / name)
    assert (kit.kind, kit.name, kit.project, kit.host, kit.scheme) == (kind, name, "mine", "localhost", "grpc")
    assert kit.certificate.is_file()
    assert kit.key.is_file()
    assert kit.root.name == "rootCA.pem"
    certificate = read_certificate(kit)
    assert (certificate.subject, certificate.org, certificate.project) == (name, org, "mine")
    assert certificate.signed_by_root
    assert certificate.matches_key
    assert certificate.key_is_private
    assert certificate.days_left(datetime.now(UTC)) in (359, 360)
    assert [finding.status for finding in check_certificate(kit)] == ["ok"]
    require_sound(kit)


def test_ports_are_those_of_the_kind(provisioned):
    server, site, admin = (
        read_kit(provisioned["mine"] / name) for name in ("localhost", "site-1", "lead@coordinator.org")
    )
    assert site.port == server.port != server.admin_port == admin.port


def test_a_relative_path_will_do(provisioned, monkeypatch):
    monkeypatch.chdir(provisioned["mine"])
    assert read_kit(Path("site-1")).directory == provisioned["mine"] / "site-1"


def test_what_is_no_kit_is_refused(tmp_path, provisioned):
    for path in (tmp_path, tmp_path / "nowhere", provisioned["mine"], provisioned["mine"] / "site-1" / "startup"):
        assert refusal(path) == (
            "This is no FLARE startup kit: name the folder that holds `startup` and `local`, "
            "such as workspace/PROJECT/prod_00/NAME."
        )


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"servers": []}', '{"servers": [{"name": "x"}], "client": 1}']
)
def test_a_damaged_kit_is_refused(make_kit, content):
    kit = make_kit()
    (kit / "startup" / "fed_client.json").write_text(content)
    assert refusal(kit) == f"The kit's startup/fed_client.json is damaged: {UNPACK}."


@pytest.mark.parametrize("name", ["client.crt", "client.key", "rootCA.pem"])
def test_a_damaged_certificate_is_refused(make_kit, name):
    kit = make_kit()
    (kit / "startup" / name).write_text("nonsense")
    assert refusal(kit) == f"The kit's certificate, key or rootCA.pem cannot be read: {UNPACK}."
    (kit / "startup" / name).unlink()
    assert refusal(kit) == f"The kit's certificate, key or rootCA.pem cannot be read: {UNPACK}."


@pytest.mark.parametrize("verb", ["is_file", "read_bytes"])
def test_a_kit_of_another_user_is_refused(make_kit, monkeypatch, verb):
    kit = make_kit()
    original = getattr(Path, verb)

    def guarded(path):
        if path.parent.name == "startup" and path.name in ("fed_client.json", "client.key")[verb == "read_bytes" :]:
            raise PermissionError
        return original(path)

    monkeypatch.setattr(Path, verb, guarded)
    assert refusal(kit) == "The kit cannot be read: run this as the user to whom it belongs."


def test_a_certificate_of_another_root_is_refused(make_kit, write_certificate):
    """The other root has the same name: what counts is its key."""
    kit, other = make_kit(), make_kit("lead@coordinator.org")
    write_certificate(other)
    (kit / "startup" / "rootCA.pem").write_bytes((other / "startup" / "rootCA.pem").read_bytes())
    assert refusal(kit) == f"The certificate was not signed by the rootCA.pem of this kit: {UNPACK}."


def test_a_kit_of_another_project_is_refused(make_kit, provisioned):
    kit = make_kit()
    for name in ("client.crt", "client.key", "rootCA.pem"):
        (kit / "startup" / name).write_bytes((provisioned["other"] / "site-1" / "startup" / name).read_bytes())
    there = "The kit is of the project mine and its rootCA.pem of the project other"
    assert refusal(kit) == f"{there}: {UNPACK}."


def test_a_foreign_key_is_refused(make_kit, provisioned):
    kit = make_kit()
    foreign = provisioned["mine"] / "lead@coordinator.org" / "startup" / "client.key"
    (kit / "startup" / "client.key").write_bytes(foreign.read_bytes())
    assert refusal(kit) == f"The private key does not belong to the certificate: {UNPACK}."


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused(make_kit, mode):
    kit = make_kit()
    (kit / "startup" / "client.key").chmod(mode)
    assert refusal(kit).startswith("Others can read the private key: chmod 600 startup/client.key")


def test_an_expired_certificate_is_refused(make_kit, write_certificate):
    kit = make_kit()
    write_certificate(kit, begin=-370, end=-10)
    (kit / "startup" / "client.key").chmod(0o600)
    expired = read_certificate(read_kit(kit)).not_after
    assert refusal(kit) == f"The certificate expired on {expired:%Y-%m-%d}: {RENEW}."


def test_a_certificate_of_tomorrow_is_a_wrong_clock(make_kit, write_certificate):
    kit = make_kit()
    write_certificate(kit, begin=1)
    (kit / "startup" / "client.key").chmod(0o600)
    assert refusal(kit).endswith("UTC: set this machine's clock.")


@pytest.mark.parametrize(("days", "status"), [(29, "warn"), (30, "ok"), (0, "warn")])
def test_says_in_time_that_it_expires(make_kit, write_certificate, days, status):
    kit = make_kit()
    write_certificate(kit, end=days)
    (kit / "startup" / "client.key").chmod(0o600)
    (finding,) = check_certificate(read_kit(kit))
    assert finding.status == status
    assert f"{days} days" in finding.message
    require_sound(read_kit(kit))


def test_all_that_is_wrong_is_found_at_once(make_kit, write_certificate):
    kit = make_kit()
    write_certificate(kit, begin=-20, end=-10, root_name="other")
    (kit / "startup" / "client.key").chmod(0o644)
    codes = [finding.code for finding in check_certificate(read_kit(kit))]
    assert codes == ["project", "key_rights", "certificate"]


def test_a_server_without_a_port_for_admins_has_one_port(make_kit):
    kit = make_kit("localhost")
    path = kit / "startup" / "fed_server.json"
    values = json.loads(path.read_text())
    del values["servers"][0]["admin_port"]
    path.write_text(json.dumps(values))
    read = read_kit(kit)
    assert read.port == read.admin_port
