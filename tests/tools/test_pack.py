"""What `fedproin pack` writes: complete, verifiable, the same twice, and all or nothing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from fedproin.errors import SettingsError, UserError
from fedproin.federation import identity
from fedproin.federation.identity import PACKAGE, code_hash, running_identity
from fedproin.settings import load_settings
from fedproin.tools import pack as module
from fedproin.tools.cli import main
from fedproin.tools.pack import pack

JOB = Path(__file__).parents[2] / "jobs" / "fedproin_ham10000"


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def config(out, name="settings"):
    return out / JOB.name / "app" / "config" / f"{name}.json"


@pytest.fixture(scope="module")
def preinstalled(tmp_path_factory):
    """Packed twice, with different rights for new files and long after: building a wheel takes seconds."""
    outs = [tmp_path_factory.mktemp("pack") / "out" for _ in range(2)]
    for out, umask in zip(outs, (0o022, 0o077), strict=True):
        before = os.umask(umask)
        pack(JOB, out, preinstalled=True)
        os.umask(before)
    return outs


@pytest.fixture
def job(tmp_path):
    return shutil.copytree(JOB, tmp_path / "job")


# with its code


def test_a_self_contained_job_is_the_job_and_the_code(tmp_path, capsys):
    out = tmp_path / "deep" / "out"
    assert main(["pack", str(JOB), "--out", str(out)]) == 0
    packed, job = files(out), files(JOB)
    code = {name: content for name, content in packed.items() if "/app/custom/" in name}
    assert {Path(name).suffix for name in code} == {".py", ".typed"}
    assert code_hash(out / JOB.name / "app" / "custom" / "fedproin") == code_hash(PACKAGE)
    rest = {name.removeprefix(f"{JOB.name}/"): content for name, content in packed.items() if name not in code}
    own = {name: content for name, content in job.items() if not name.startswith("app/custom/")}
    assert own.items() <= rest.items()
    assert rest.keys() - own.keys() == {"app/config/package.json", "MANIFEST.sha256", "REVIEW.md"}
    assert json.loads(config(out, "package").read_text()) == vars(running_identity())
    assert str(running_identity()) in capsys.readouterr().out


def test_its_code_runs_where_nothing_is_installed(tmp_path):
    pack(JOB, tmp_path / "out", preinstalled=False)
    custom = tmp_path / "out" / JOB.name / "app" / "custom"
    code = "import fedproin.federation.identity as i; print(i.PACKAGE, i.running_identity().hash)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(custom), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(custom / "fedproin"), running_identity().hash]


def test_every_file_is_in_the_manifest(tmp_path):
    out = tmp_path / "out"
    pack(JOB, out, preinstalled=False)
    listed = [line.split("  ")[1] for line in (out / "MANIFEST.sha256").read_text().splitlines()]
    assert listed == sorted(files(out).keys() - {"MANIFEST.sha256"})
    check = ["sha256sum", "--check", "--strict", "--quiet", "MANIFEST.sha256"]
    assert subprocess.run(check, cwd=out).returncode == 0
    config(out).write_text("{}")
    assert subprocess.run(check, cwd=out, capture_output=True).returncode != 0


def test_packing_twice_gives_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        pack(JOB, tmp_path / name, preinstalled=False, changes=["seed=1"])
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_hidden_files_stay_at_home(job, tmp_path):
    (job / ".DS_Store").write_text("")
    (job / "app" / "config" / ".settings.json.swp").write_text("")
    pack(job, tmp_path / "out", preinstalled=False)
    assert not any("/." in name for name in files(tmp_path / "out"))


# with a wheel


def test_a_preinstalled_job_has_no_custom_folder_and_the_wheel_has_the_code(preinstalled, tmp_path):
    out = preinstalled[0]
    assert not (out / JOB.name / "app" / "custom").exists()
    [wheel] = (out / "wheel").iterdir()
    ZipFile(wheel).extractall(tmp_path)
    assert code_hash(tmp_path / "fedproin") == code_hash(PACKAGE)
    assert (tmp_path / "fedproin" / "py.typed").exists()
    assert json.loads(config(out, "package").read_text()) == vars(running_identity())
    assert json.loads((out / "class_allow_list.json").read_text()) == {"class_allow_list": ["fedproin."]}
    assert f"pip install --no-deps wheel/{wheel.name}" in (out / "REVIEW.md").read_text()


def test_wheels_too_are_the_same_bytes(preinstalled):
    one, two = map(files, preinstalled)
    assert one == two


def test_without_the_source_tree_there_is_no_wheel(monkeypatch, tmp_path):
    installed = shutil.copytree(PACKAGE, tmp_path / "site-packages" / "fedproin")
    monkeypatch.setattr(module, "PACKAGE", installed)
    with pytest.raises(UserError, match="run `fedproin pack` in the environment that `make setup` makes in a clone"):
        pack(JOB, tmp_path / "out", preinstalled=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["site-packages"]


def test_a_wheel_that_lacks_code_is_refused(monkeypatch, tmp_path):
    package = shutil.copytree(PACKAGE, tmp_path / "clone" / "custom" / "fedproin")
    for name in module.BUILD_FILES:
        shutil.copy(PACKAGE.parents[1] / name, tmp_path / "clone" / name)
    project = tmp_path / "clone" / "pyproject.toml"
    project.write_text(project.read_text().replace('where = ["custom"]', 'where = ["custom"]\nexclude = ["*.maths"]'))
    monkeypatch.setattr(module, "PACKAGE", package)
    with pytest.raises(UserError, match="would not hold the code that runs here"):
        pack(JOB, tmp_path / "out", preinstalled=True)
    assert not (tmp_path / "out").exists()


def test_a_build_that_fails_says_why(monkeypatch, tmp_path):
    failed = subprocess.CompletedProcess([], 1, "", "warning\nERROR: no backend\n")
    monkeypatch.setattr(module.subprocess, "run", lambda *words, **options: failed)
    with pytest.raises(UserError, match=r"not built \(ERROR: no backend\): `pip install 'setuptools>=77'`"):
        pack(JOB, tmp_path / "out", preinstalled=True)
    assert not any(tmp_path.iterdir())


# settings


def test_changes_go_into_the_settings_and_the_page(tmp_path):
    pack(JOB, tmp_path / "out", preinstalled=False, changes=["federation.rounds=3", "method.task_loss=mcl", "run=x"])
    before, after = load_settings(JOB / "app" / "config" / "settings.json"), load_settings(config(tmp_path / "out"))
    assert (after.run, after.federation.rounds, after.method["task_loss"]) == ("x", 3, "mcl")
    assert (after.data, after.training, after.model) == (before.data, before.training, before.model)
    page = (tmp_path / "out" / "REVIEW.md").read_text()
    assert '| `run` | "x" | "fedproin" |' in page
    assert "| `federation.rounds` | 3 | 50 |" in page
    assert '| `method.task_loss` | "mcl" | "mce" |' in page
    assert "`federation.participation`" not in page  # is the default


@pytest.mark.parametrize(
    ("values", "note"),
    [
        ({"federation": {"deadline_seconds": 60.0}}, "names no data.classes"),
        ({"data": {"classes": ["a|b", "c"]}}, "sets no federation.deadline_seconds"),
        ({"data": {"synthetic": True}}, "draw its own pictures"),
        ({"data": {"classes": ["a|b", "c"]}, "federation": {"deadline_seconds": 60.0}}, None),
    ],
)
def test_what_the_coordinator_should_know(job, tmp_path, capsys, values, note):
    (job / "app" / "config" / "settings.json").write_text(json.dumps(values))
    assert main(["pack", str(job), "--out", str(tmp_path / "out")]) == 0
    page, printed = (tmp_path / "out" / "REVIEW.md").read_text(), capsys.readouterr().out
    for text in (page, printed):
        assert ("note" in text.lower()) == (note is not None)
        assert note is None or note in text
    assert note is not None or r'["a\|b", "c"]' in page


def test_all_defaults_are_no_table(job, tmp_path):
    (job / "app" / "config" / "settings.json").write_text("{}")
    pack(job, tmp_path / "out", preinstalled=False)
    assert "defaults\n\nNone.\n" in (tmp_path / "out" / "REVIEW.md").read_text()


# mistakes


@pytest.mark.parametrize(
    "change", ["seed", "federation.round=3", "federation.rounds=0", "method.name=fedavgg", "method.slop=1"]
)
def test_settings_that_cannot_be_leave_nothing(tmp_path, change):
    with pytest.raises(SettingsError):
        pack(JOB, tmp_path / "out", preinstalled=False, changes=[change])
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("missing", ["meta.json", "app/config/settings.json", "app", "."])
def test_a_folder_without_a_job(job, tmp_path, capsys, missing):
    gone = job / missing
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    assert main(["pack", str(job), "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("There is no job in this folder")
    assert printed.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_job_with_code_of_its_own(job, tmp_path):
    (job / "app" / "custom" / "mine.py").write_text("")
    with pytest.raises(UserError, match="a job is settings, so pack one that has none"):
        pack(job, tmp_path / "out", preinstalled=False)


def test_what_is_there_stays(job, tmp_path):
    out = tmp_path / "out"
    (out / "job").mkdir(parents=True)
    (out / "job" / "meta.json").write_text("mine")
    with pytest.raises(UserError, match="not empty: name a new one"):
        pack(job, out, preinstalled=False)
    assert files(out) == {"job/meta.json": b"mine"}
    with pytest.raises(UserError, match="not empty: name a new one"):
        pack(job, out / "job" / "meta.json", preinstalled=False)
    with pytest.raises(UserError, match="lies in the job folder"):
        pack(job, job / "out", preinstalled=False)


def test_an_empty_folder_is_filled(job, tmp_path):
    (tmp_path / "out").mkdir()
    pack(job, tmp_path / "out", preinstalled=False)
    assert (tmp_path / "out" / "REVIEW.md").exists()


def test_no_place_to_write(job):
    with pytest.raises(UserError, match="cannot be written"):
        pack(job, Path("/proc/here/out"), preinstalled=False)


def test_a_packed_job_is_refused_by_another_package(job, tmp_path, monkeypatch):
    pack(job, tmp_path / "out", preinstalled=False)
    packed = tmp_path / "out" / "job" / "app" / "config"
    identity.require_same_package(packed)
    monkeypatch.setattr(identity, "running_identity", lambda: identity.Identity("0.1.0", "cd" * 32))
    with pytest.raises(UserError, match=r"fedproin 0\.1\.0\+cdcdcdcdcdcd, is not the one the job was packed with"):
        identity.require_same_package(packed)
