import errno
import json
import math
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

import fedproin
from fedproin.errors import UserError
from fedproin.federation.identity import code_hash, package_identity
from fedproin.federation.records import FinalRecord, RoundRecord, RunRecord, SiteRecord
from fedproin.federation.results import read_results, run_from_dict, versions, write_results


def a_run(loss=0.5):
    site = SiteRecord("trained", "", 4.1, 10, 20, 30, 4, {"total": [loss, 0.4]}, [[1, 0]] * 7, {"mcc": 0.5}, ["note"])
    lost = SiteRecord("missing", "no answer before the deadline")
    confusion = [[row * 100 + column for column in range(7)] for row in range(7)]
    rounds = [
        RoundRecord(n, ["a", "b"], {"a": site, "b": lost}, True, {"mcc": 0.5}, confusion, [[True, False]] * 7, 3.0)
        for n in range(2)
    ]
    final = FinalRecord(2, {"mcc": 0.5}, {"accuracy": 1.0}, confusion, [0.5, None], {"a": {"accuracy": 1.0}})
    settings = {"seed": 0, "data": {"mean": None, "split": [0.7, 0.1, 0.2]}}
    return RunRecord(
        "r", "id", "fedavg", 0, "d", settings, versions(), ["é", "b"], ["a", "b"], "table", "iid", rounds, final
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.json"


def test_round_trip(path):
    write_results(a_run(), path)
    assert read_results(path) == a_run()


def test_strict_json_without_nan_or_infinity(path):
    write_results(a_run(loss=math.nan), path)
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert math.isnan(read_results(path).rounds[0].sites["a"].losses["total"][0])
    write_results(a_run(loss=math.inf), path)
    assert '"total": [null, 0.4]' in path.read_text()


def test_a_matrix_is_one_line(path):
    write_results(a_run(), path)
    lines = path.read_text().splitlines()
    assert next(line.strip() for line in lines if '"confusion"' in line).startswith('"confusion": [[0, 1, 2,')
    assert max(map(len, lines)) < 300
    assert len(lines) < 150


def test_a_disk_that_fills_up_leaves_the_old_file_and_nothing_else(path):
    write_results(a_run(), path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            write_results(a_run(loss=0.1), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_results(path) == a_run()
    assert list(path.parent.iterdir()) == [path]


def test_a_value_that_is_no_json_does_not_touch_the_file(path):
    write_results(a_run(), path)
    broken = a_run()
    broken.settings["odd"] = object()
    with pytest.raises(TypeError):
        write_results(broken, path)
    assert read_results(path) == a_run()


def changed(**values):
    return asdict(a_run()) | values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param(changed(extra=1), "extra is unknown or missing", id="unknown key"),
        pytest.param({"run": "r"}, "classes is unknown or missing", id="missing key"),
        pytest.param(changed(seed="0"), "seed is no int", id="wrong type"),
        pytest.param(changed(seed=True), "seed is no int", id="a bool is no int"),
        pytest.param(changed(rounds=[3]), r"rounds\[0\] is no object", id="no round"),
        pytest.param(
            changed(last={**asdict(a_run())["last"], "recall": ["x"]}), r"last.recall\[0\] is no float", id="deep"
        ),
        pytest.param([], "the record is no object", id="no object"),
    ],
)
def test_refuses_what_is_no_record(values, message):
    with pytest.raises(UserError, match=message):
        run_from_dict(values)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_refuses_a_damaged_file(path, content):
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"results.json is damaged"):
        read_results(path)


def test_says_that_there_is_no_file(path):
    with pytest.raises(UserError, match=r"There is no results.json"):
        read_results(path)


def test_a_whole_number_where_a_float_belongs_is_fine():
    assert run_from_dict(changed(seconds=3)).seconds == 3.0


def test_versions_names_what_the_numbers_depend_on():
    assert list(versions()) == ["fedproin", "python", "nvflare", "torch", "torchvision", "monai", "numpy"]
    assert versions()["fedproin"] == package_identity()


def test_identity_tells_two_copies_apart(tmp_path):
    package = Path(fedproin.__file__).parent
    for name in ("one", "two"):
        shutil.copytree(package, tmp_path / name)
    assert code_hash(tmp_path / "one") == code_hash(tmp_path / "two")
    (tmp_path / "one" / "README.txt").write_text("no code")
    assert code_hash(tmp_path / "one") == code_hash(tmp_path / "two")
    (tmp_path / "two" / "seeds.py").rename(tmp_path / "two" / "other.py")
    assert code_hash(tmp_path / "one") != code_hash(tmp_path / "two")


def test_nothing_imports_torch():
    code = "import sys; from fedproin.federation import results; results.versions(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
