import shutil

import pytest

from fedproin.flare.delivery import deliver


@pytest.fixture
def run(tmp_path):
    """The directory of a run that has ended."""
    run = tmp_path / "run"
    (run / "tensorboard" / "global").mkdir(parents=True)
    for name in ("results.json", "last_model.safetensors", "best_model.safetensors", "checkpoint.safetensors"):
        (run / name).write_text(name)
        (run / name).chmod(0o600)
    (run / "tensorboard" / "global" / "events").write_text("curves")
    return run


def delivered(job):
    return {str(path.relative_to(job)): path.read_text() for path in job.rglob("*") if path.is_file()}


def test_the_lead_gets_results_models_and_curves_and_no_checkpoint(run, tmp_path):
    (job := tmp_path / "job").mkdir()
    deliver(run, job)
    assert delivered(job) == {
        "fedproin/results.json": "results.json",
        "fedproin/last_model.safetensors": "last_model.safetensors",
        "fedproin/best_model.safetensors": "best_model.safetensors",
        "fedproin/tensorboard/global/events": "curves",
    }
    assert not [path for path in job.rglob("*.safetensors") if path.stat().st_mode & 0o077]
    assert len(list(run.iterdir())) == 5  # the server keeps its own


def test_a_run_that_was_stopped_early_gives_what_it_has(run, tmp_path):
    (job := tmp_path / "job").mkdir()
    for name in ("last_model.safetensors", "best_model.safetensors"):
        (run / name).unlink()
    deliver(run, job)
    assert delivered(job).keys() == {"fedproin/results.json", "fedproin/tensorboard/global/events"}


def test_a_run_without_a_round_gives_nothing(tmp_path):
    (run := tmp_path / "run").mkdir()
    (job := tmp_path / "job").mkdir()
    deliver(run, job)
    assert delivered(job) == {}


def test_a_full_disk_leaves_nothing_half_copied(run, tmp_path, monkeypatch):
    (job := tmp_path / "job").mkdir()
    copy, copied = shutil.copy2, []

    def until_full(source, target):
        if len(copied) == 2:
            raise OSError(28, "No space left on device")
        copied.append(copy(source, target))

    monkeypatch.setattr(shutil, "copy2", until_full)
    with pytest.raises(OSError, match="No space left"):
        deliver(run, job)
    assert len(copied) == 2
    assert list(job.iterdir()) == []
