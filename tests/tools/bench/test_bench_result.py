"""Result files: what is kept, when it is used again, and which runs give none."""

import dataclasses
import json

import pytest
from handmade import make_result

from fedproin.errors import UserError
from fedproin.federation.records import FinalRecord, RoundRecord, RunRecord, SiteRecord
from fedproin.tools.bench.plan import plan
from fedproin.tools.bench.result import (
    Provenance,
    discard_others,
    finished,
    read_result,
    result_of,
    write_result,
)
from fedproin.tools.bench.spec import load_spec

SCORES = (50.0, 40.0, 30.0, 20.0)
DATA = "d" * 16


@pytest.fixture
def runs(write_spec):
    return plan(load_spec(write_spec()))


def test_what_is_written_is_read(runs, tmp_path):
    result = make_result(runs[0], SCORES)
    write_result(result, tmp_path / runs[0].file)
    assert read_result(tmp_path / runs[0].file) == result
    assert finished(runs, tmp_path) == finished(runs, tmp_path, DATA) == {runs[0].file: result}
    assert len((tmp_path / runs[0].file).read_text().splitlines()) == len(dataclasses.fields(result)) + 2
    assert [path.name for path in (tmp_path / runs[0].file).parent.iterdir()] == ["seed0.json"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sites": 3}, "sites was 3 and is 2"),
        ({"training": {"local_epochs": 9}}, "training.local_epochs was 9 and is 1"),
        ({"training": {"of_another_version": 1}}, "training.of_another_version was 1 and is null"),
        ({"training": {"local_epochs": None}}, "training.local_epochs was null and is 1"),  # not there; default 5
        ({"data_hash": "e" * 16}, "it is of another table of images"),
    ],
)
def test_results_of_another_spec_are_refused_and_discarded_on_request(runs, tmp_path, change, sentence):
    result = make_result(runs[0], SCORES, **{key: value for key, value in change.items() if key != "training"})
    for name, value in change.get("training", {}).items():
        result.settings["training"][name] = value
        if value is None:
            del result.settings["training"][name]
    write_result(result, tmp_path / runs[0].file)
    write_result(make_result(runs[1], SCORES), tmp_path / runs[1].file)
    with pytest.raises(UserError) as error:
        finished(runs, tmp_path, DATA)
    assert str(error.value) == (
        f"1 of 2 results in the folder are not of this spec (runs/fedproin/iid/seed0.json: {sentence}): "
        "give --redo to make them again, or another folder as --out."
    )
    assert discard_others(runs, tmp_path, DATA) == 1
    assert list(finished(runs, tmp_path, DATA)) == [runs[1].file]


def test_a_setting_that_is_new_to_the_package_keeps_old_results(runs, tmp_path):
    result = make_result(runs[0], SCORES)
    assert result.settings["training"].pop("bn_mode") == "average"
    assert result.settings["method"].pop("slope") == 1.0
    write_result(result, tmp_path / runs[0].file)
    assert list(finished(runs, tmp_path, DATA)) == [runs[0].file]


def test_a_report_without_data_refuses_results_of_two_tables(runs, tmp_path):
    for run, data in zip(runs[:2], ("d", "e"), strict=True):
        write_result(make_result(run, SCORES, data_hash=data), tmp_path / run.file)
    with pytest.raises(UserError, match="another table of images"):
        finished(runs, tmp_path)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"row": 3}'])
def test_a_damaged_file_is_one_sentence(runs, tmp_path, damage):
    path = tmp_path / runs[0].file
    path.parent.mkdir(parents=True)
    path.write_text(damage)
    with pytest.raises(UserError, match=r"The result fedproin/iid/seed0\.json is damaged or of another version"):
        finished(runs, tmp_path)


def record_of(**changes) -> RunRecord:
    """Two rounds of two sites."""
    trained = SiteRecord("trained", steps=5, bytes_down=100, bytes_up=10)
    validated = SiteRecord("validated", bytes_down=100)
    final = FinalRecord(2, {"mcc": 0.3}, {"mcc": 0.4}, [[2, 1], [0, 0]], [2 / 3, None], {"site-1": {}, "site-2": {}})
    rounds = [
        RoundRecord(0, ["site-1"], {"site-1": trained}, counted=True),
        RoundRecord(1, ["site-1"], {"site-1": trained, "site-2": validated}, True, {"mcc": 0.1}),
    ]
    fields = {
        "run": "r",
        "run_id": "i",
        "method": "fedproin",
        "seed": 0,
        "settings_digest": "s",
        "settings": {},
        "versions": {"fedproin": "0"},
        "classes": ["a", "b"],
        "site_names": ["site-1", "site-2"],
        "data": "table",
        "partition": "IID",
        "rounds": rounds,
        "last": final,
        "best": dataclasses.replace(final, version=1),
        "seconds": 12.34,
    }
    return RunRecord(**fields | changes)


def test_what_is_kept_of_a_run(runs):
    result = result_of(runs[0], record_of(), Provenance("typed", "local", DATA))
    assert (result.steps, result.seconds, result.bytes_down, result.bytes_up) == (10, 12.3, 300, 20)
    assert result.validation == {"1": {"mcc": 0.1}, "2": {"mcc": 0.3}}
    assert (result.last.test, result.last.confusion) == ({"mcc": 0.4}, [[2, 1], [0, 0]])
    assert result.last.recall == {"a": 2 / 3, "b": None}
    assert (result.last.version, result.best.version) == (2, 1)
    assert result.settings == runs[0].resolved
    assert "run" not in result.settings
    assert json.loads(json.dumps(dataclasses.asdict(result)))["command"] == "typed"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"last": None}, "The run ended without test scores."),
        ({"site_names": ["site-1", "site-2", "site-3"]}, "gave no test scores"),
        ({"rounds": [RoundRecord(0, ["site-1"], {}, counted=False)]}, "A round was not counted"),
        ({"rounds": [RoundRecord(0, ["site-1"], {"site-1": SiteRecord("failed", "It hurts.")}, counted=True)]},
         "1 answers of sites are missing or were not used, so the run does not count: failed, It hurts."),
    ],
)  # fmt: skip
def test_a_run_in_which_something_failed_gives_no_result(runs, changes, sentence):
    with pytest.raises(UserError, match=sentence.replace(".", r"\.")):
        result_of(runs[0], record_of(**changes), Provenance("typed", "local", DATA))
