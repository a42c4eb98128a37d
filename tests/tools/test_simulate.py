import json

import pytest

from fedproin.errors import SettingsError
from fedproin.settings import Settings
from fedproin.tools.cli import main
from fedproin.tools.jobs import with_changes


@pytest.fixture
def job(tmp_path, make_settings):
    from dataclasses import asdict

    path = tmp_path / "job" / "app" / "config" / "settings.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(asdict(make_settings())))
    return tmp_path / "job"


def test_changes_are_json_or_text():
    settings = with_changes(
        Settings(),
        [
            "seed=3",
            "run=second",
            "training.learning_rate=0.5",
            'data.classes=["a", "b"]',
            "data.synthetic=true",
            "data.path=/a=b",
            "method.prototypes_per_class=2",
            "partition.seed=null",
        ],
    )
    assert (settings.seed, settings.run, settings.training.learning_rate) == (3, "second", 0.5)
    assert (settings.data.classes, settings.data.synthetic, settings.data.path) == (("a", "b"), True, "/a=b")
    assert settings.method == {"name": "fedproin", "prototypes_per_class": 2}
    assert settings.partition.seed is None


def test_no_changes_are_none(make_settings):
    assert with_changes(make_settings(), []) == make_settings()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("seed", "--set needs KEY=VALUE, such as training.local_epochs=1; got 'seed'."),
        ("=3", "--set needs KEY=VALUE, such as training.local_epochs=1; got '=3'."),
        ("training.=3", "--set needs KEY=VALUE, such as training.local_epochs=1; got 'training.=3'."),
        ("seed.x=3", "Setting 'seed' in --set seed.x=3 is a value, not a group."),
        ("training.epochs=3", "Unknown setting 'training.epochs': did you mean 'local_epochs'?"),
        ("trainin.local_epochs=3", "Unknown setting 'trainin': did you mean 'training'?"),
        ("training.local_epochs=x", "Setting 'training.local_epochs': input should be a valid integer, got 'x'."),
    ],
)
def test_changes_that_cannot_be(change, sentence):
    with pytest.raises(SettingsError) as error:
        with_changes(Settings(), [change])
    assert str(error.value) == sentence


def test_runs_a_job_and_prints_what_a_person_wants_to_read(job, tmp_path, capsys):
    words = ["simulate", str(job), "-w", str(tmp_path / "out"), "-n", "3", "--set", "seed=1", "--set", "run=mine"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "SYNTHETIC PICTURES" in printed
    assert "run mine" in printed
    assert "3 sites: site-1, site-2, site-3" in printed
    assert "round 2/2  global" in printed
    assert "weighted F1" in printed
    results = json.loads((tmp_path / "out" / "fedproin" / "results.json").read_text())
    assert (results["run"], results["seed"], results["data"]) == ("mine", 1, "synthetic")
    assert len(results["rounds"]) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-n", "1"], "This job needs at least 2 sites and there are 1; start it with more (-n 2).\n"),
        (["--set", "training.foo=1"], None),
        (["-n", "2", "--set", "method.name=fedavgg"], None),
        (["-n", "2", "--set", "data.path=/nowhere"], None),
        (["-n", "150"], None),
    ],
)
def test_a_users_mistake_is_one_sentence(job, tmp_path, capsys, words, sentence):
    assert main(["simulate", str(job), "-w", str(tmp_path / "out"), *words]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "Traceback" not in printed
    assert sentence in (None, printed)


def test_a_folder_without_a_job_is_one_sentence(tmp_path, capsys):
    assert main(["simulate", str(tmp_path), "-w", str(tmp_path / "out")]) == 2
    assert "no config/settings.json" in capsys.readouterr().err
