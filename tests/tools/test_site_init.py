import json
import stat
import sys

import pytest

from fedproin.data.location import locate, read_site_file
from fedproin.errors import SettingsError, UserError
from fedproin.settings import Settings
from fedproin.tools.cli import main
from fedproin.tools.kit import read_kit
from fedproin.tools.site_files import Choices, check_local, promised_gpus, site_files


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("image,label\n")
    return path


@pytest.fixture
def init(capsys):
    """Type `fedproin site init ...`; returns the exit code and what was printed."""

    def run(*words: object):
        capsys.readouterr()
        code = main(["site", "init", *map(str, words)])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out, printed.err

    return run


def local(kit, name):
    return json.loads((kit / "local" / name).read_text())


def snapshot(kit):
    return {path.name: path.read_bytes() for path in (kit / "local").iterdir()}


def test_a_sites_files(make_kit, init, table):
    kit = make_kit()
    code, printed, _ = init(kit, "--data", table, "--gpus", 2, "--gpu-memory", 16, "--minimum-count", 5)
    assert code == 0
    assert "fail" not in printed
    before, now = local(kit, "resources.json.default"), local(kit, "resources.json")
    assert now["class_allow_list"] == [*before["class_allow_list"], "fedproin."]
    assert now["allow_log_streaming"] is False
    assert now["components"][0]["args"] | {"num_of_gpus": 2, "mem_per_gpu_in_GiB": 16.0} == now["components"][0]["args"]
    changed = {"class_allow_list", "allow_log_streaming", "components"}
    assert {key for key in now if now[key] != before[key]} == changed
    assert now["components"][1:-1] == before["components"][1:]
    assert now["components"][-1]["path"] == "fedproin.flare.admission.OneKitPerSite"
    assert local(kit, "fedproin.json") == {"data": str(table), "minimum_count": 5}
    assert promised_gpus(read_kit(kit)) == (2, 16.0)
    assert locate(Settings(), False, kit).source == table
    assert read_site_file(kit).minimum_count == 5


def test_without_flags_the_coordinators_numbers_stay(make_kit, init, table):
    kit = make_kit()
    path = kit / "local" / "resources.json.default"
    path.write_text(path.read_text().replace('"num_of_gpus": 0', '"num_of_gpus": 3'))
    init(kit, "--data", table)
    assert promised_gpus(read_kit(kit)) == (3, 0.0)
    assert local(kit, "fedproin.json") == {"data": str(table)}


def test_flare_takes_the_files(make_kit, init, table):
    from nvflare.apis.workspace import Workspace
    from nvflare.fuel.sec.authz import AuthzContext, Person
    from nvflare.private.fed.app.fl_conf import create_privacy_manager
    from nvflare.security.security import FLAuthorizer

    kit = make_kit()
    init(kit, "--data", table)
    manager = create_privacy_manager(Workspace(str(kit), "site-1"), names_only=False)
    assert manager.get_scope("").name == manager.get_scope("hospital").name == "hospital"
    assert not any(manager.get_scope("").task_result_filters.values())
    authorizer = FLAuthorizer("hospital1", local(kit, "authorization.json"))

    def may(role, org, right):
        person = Person("somebody", org, role)
        return authorizer.policy.evaluate("hospital1", AuthzContext(right, person, person))[0]

    assert not any(may(role, org, "byoc") for role in ("project_admin", "lead") for org in ("hospital1", "x"))
    assert may("lead", "x", "submit_job")
    assert may("project_admin", "x", "restart")
    assert not may("project_admin", "x", "cat")
    assert may("project_admin", "hospital1", "cat")


def test_a_servers_files(make_kit, init, tmp_path):
    kit = make_kit("localhost")
    code, printed, _ = init(kit)
    assert code == 0
    assert "fail" not in printed
    resources, store = json.dumps(local(kit, "resources.json")), kit.parent / "fedproin-store"
    assert "/tmp/nvflare" not in resources
    assert all(f'"{store}/{name}"' in resources for name in ("jobs", "snapshots", "logs"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in (store, *store.iterdir())} == {0o700}
    assert not {"privacy.json", "fedproin.json"} & {path.name for path in (kit / "local").iterdir()}
    init(kit, "--store", tmp_path / "else" / "where", "--yes")
    assert (tmp_path / "else" / "where" / "jobs").is_dir()
    assert f'"{tmp_path}/else/where/jobs"' in json.dumps(local(kit, "resources.json"))


def test_byoc_is_allowed_on_request_only(make_kit, init, table):
    kit = make_kit()
    init(kit, "--data", table, "--allow-byoc")
    roles = local(kit, "authorization.json")["permissions"]
    assert {name: role.get("byoc") for name, role in roles.items()} == {
        "project_admin": "any",
        "org_admin": "none",
        "lead": "any",
        "member": None,
    }
    assert [finding.status for finding in check_local(read_kit(kit))] == ["warn"]


def test_files_that_would_change_are_shown_and_kept(make_kit, init, table):
    kit = make_kit()
    init(kit, "--data", table)
    before = snapshot(kit)
    code, printed, error = init(kit, "--data", table, "--gpus", 4)
    assert code == 2
    assert '-        "num_of_gpus": 0,\n+        "num_of_gpus": 4,\n' in printed
    assert error == ("Nothing was written: resources.json in `local` would change; add --yes to replace them.\n")
    assert snapshot(kit) == before
    assert init(kit, "--data", table, "--gpus", 4, "--yes")[0] == 0
    assert promised_gpus(read_kit(kit))[0] == 4


def test_again_with_the_same_words_writes_nothing(make_kit, init, table):
    kit = make_kit()
    init(kit, "--data", table)
    code, printed, _ = init(kit, "--data", table)
    assert code == 0
    assert "wrote" not in printed


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("site-1", ["--data", "/nowhere"], "There is no data at the given path"),
        ("site-1", [], "Name the site's table, folder or ZIP with --data"),
        ("site-1", ["--data", ".", "--store", "x"], "This is a site's kit, which has no use for --store."),
        (
            "localhost",
            ["--data", ".", "--gpus", "1"],
            "This is the server's kit, which has no use for --data and --gpus.",
        ),
        ("lead@coordinator.org", [], "An admin's kit needs no configuration"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_written(make_kit, init, name, words, sentence):
    kit = make_kit(name)
    before = snapshot(kit)
    code, printed, error = init(kit, *words)
    assert (code, printed) == (2, "")
    assert error.startswith(sentence)
    assert error.count("\n") == 1
    assert snapshot(kit) == before
    assert not (kit.parent / "fedproin-store").exists()


def test_a_full_disk_leaves_nothing_behind(make_kit, init, table, monkeypatch):
    kit = make_kit()
    before = snapshot(kit)

    def full(path, content):
        if path.name == "privacy.json":
            raise OSError(28, "No space left on device")
        path.write_bytes(content)

    monkeypatch.setattr("fedproin.tools.site.write_atomically", full)
    sentence = "The kit cannot be configured (No space left on device): run this as its owner.\n"
    assert init(kit, "--data", table) == (2, "", sentence)
    assert snapshot(kit) == before


@pytest.mark.parametrize("words", [["--gpus", "-1"], ["--gpus", "x"], ["--gpu-memory", "nan"], ["--gpu-memory", "-2"]])
def test_numbers_are_checked(make_kit, words, capsys):
    with pytest.raises(SystemExit):
        main(["site", "init", "KIT", *words])
    assert "is wanted" in capsys.readouterr().err


def test_data_that_is_closed_is_a_sentence(make_kit, init, table, monkeypatch):
    kit = make_kit()

    def closed(path):
        raise PermissionError

    monkeypatch.setattr(type(table), "exists", closed)
    assert init(kit, "--data", table)[2] == (
        "The data cannot be read: give the user who runs this the right to read it.\n"
    )


def test_an_unsound_kit_is_not_configured(make_kit, init, table):
    kit = make_kit()
    (kit / "startup" / "client.key").chmod(0o644)
    before = snapshot(kit)
    assert init(kit, "--data", table)[2].startswith("Others can read the private key")
    assert snapshot(kit) == before


def test_a_kit_of_another_flare_is_refused(make_kit):
    kit = make_kit()
    (kit / "local" / "resources.json.default").write_text('{"components": []}')
    with pytest.raises(UserError, match=r"not those of FLARE 2\.9"):
        site_files(read_kit(kit), Choices())


def test_asks_on_a_terminal(make_kit, init, table, monkeypatch):
    kit = make_kit()
    answers = iter([f"  {table} ", "2"])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    init(kit)
    assert local(kit, "fedproin.json") == {"data": str(table)}
    assert promised_gpus(read_kit(kit))[0] == 2


def test_a_relative_path_becomes_absolute(make_kit, init, table, monkeypatch):
    kit = make_kit()
    monkeypatch.chdir(table.parent)
    init(kit, "--data", table.name)
    assert local(kit, "fedproin.json")["data"] == str(table)


def test_local_files_that_leave_holes_are_found(make_kit, init, table):
    kit = make_kit()

    def found():
        return [(finding.status, finding.message) for finding in check_local(read_kit(kit))]

    assert found()[0][0] == "fail"
    init(kit, "--data", table)
    assert [status for status, _ in found()] == ["ok"]
    for name in ("resources.json", "authorization.json"):
        (kit / "local" / name).write_bytes((kit / "local" / f"{name}.default").read_bytes())
    assert found() == [
        ("fail", "resources.json does not allow the classes of this package"),
        ("warn", "resources.json lets the logs of this site go to the server"),
        ("warn", "authorization.json lets jobs bring their own code"),
    ]
    (kit / "local" / "resources.json").write_text("{")
    assert found() == [("fail", "resources.json or authorization.json in `local` cannot be read")]


def test_a_server_with_its_store_in_tmp_is_found(make_kit):
    kit = make_kit("localhost")
    for name in ("resources.json", "authorization.json"):
        (kit / "local" / name).write_bytes((kit / "local" / f"{name}.default").read_bytes())
    assert "/tmp/nvflare" in " ".join(finding.message for finding in check_local(read_kit(kit)))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"data": "/d", "minimum": 3}, "Unknown setting 'local/fedproin.json.minimum': did you mean 'minimum_count'?"),
        ({"data": "/d", "minimum_count": -1}, "minimum_count': input should be greater than or equal to 0, got -1."),
    ],
)
def test_the_sites_file_is_checked(make_kit, values, sentence):
    kit = make_kit()
    (kit / "local" / "fedproin.json").write_text(json.dumps(values))
    with pytest.raises(SettingsError) as error:
        read_site_file(kit)
    assert str(error.value).endswith(sentence)
