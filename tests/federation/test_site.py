"""A site on synthetic pictures, without a server: what it answers, keeps and hides."""

import stat
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedproin.data.cache import default_directory
from fedproin.data.location import Location, locate
from fedproin.data.synthetic import CLASSES
from fedproin.errors import DataError
from fedproin.federation.messages import Task
from fedproin.federation.site import Site, describe_failure
from fedproin.methods import create_method

SITES = ("site-1", "site-2")
RUN = "0123456789abcdef"


@pytest.fixture
def site(tmp_path, make_settings):
    """A site, newly made in the same directory with each call, as after a restart."""

    def make(name="site-1", location=None, **changes):
        location = location or Location(None, default_directory(), simulated=True)
        return Site(name, make_settings(**changes), location, tmp_path / name)

    return make


def task(site, kind="round", round_=0, train=SITES, validate=True, model=None, best=None, digest=None):
    if model is None:
        torch.manual_seed(0)
        model = create_method(site.settings).build().state_dict()
    arrays = {name: np.asarray(value) for name, value in model.items()}
    digest = digest or site.settings.digest()
    return Task(
        kind, RUN, digest, round_, SITES, train, validate, None, arrays, arrays if best is not None else {}, best
    )


def test_validates_and_trains(site):
    one = site()
    answer = one.run(task(one))
    assert answer.error == ""
    assert answer.trained
    assert (answer.kind, answer.run_id, answer.round, answer.synthetic) == ("round", RUN, 0, True)
    assert answer.tensors.keys() == task(one).model.keys()
    assert {name: (a.shape, a.dtype) for name, a in answer.tensors.items()} == {
        name: (a.shape, a.dtype) for name, a in task(one).model.items()
    }
    assert answer.confusion["val"].sum() == len(one._images.val) > 0
    assert answer.samples == len(one._images.train)
    assert answer.presentations >= answer.extras["influence"].sum() > 0
    assert answer.losses.keys() == {"total", "task", "fdl"}
    assert answer.package.startswith("0.")
    assert isinstance(answer.seconds, float)


def test_validation_is_of_the_model_that_came(site):
    one = site()
    first = one.run(task(one)).confusion["val"]
    assert np.array_equal(one.run(task(one, train=())).confusion["val"], first)


def test_who_is_not_drawn_only_validates(site):
    one = site()
    answer = one.run(task(one, train=("site-2",)))
    assert (answer.error, answer.trained, answer.tensors, answer.extras) == ("", False, {}, {})
    assert answer.confusion.keys() == {"val"}
    assert not (one.directory / "state").exists()


def test_scores_the_last_and_the_best_model(site):
    one = site()
    without = one.run(task(one, "score", 2, ()))
    assert without.confusion.keys() == {"val", "test_last"}
    both = one.run(task(one, "score", 2, (), best=2))
    assert both.confusion.keys() == {"val", "test_last", "test_best"}
    assert np.array_equal(both.confusion["test_best"], both.confusion["test_last"])
    assert both.confusion["test_last"].sum() == len(one._images.test)


def test_remembers_over_a_restart(site):
    first = site()
    first.run(task(first))
    second = site()
    answer = second.run(task(second, round_=1))
    assert answer.losses.keys() == {"total", "task", "fdl", "pcl"}
    assert answer.notes == ()


def test_another_table_than_in_the_last_round_is_noted(site):
    first = site()
    first.run(task(first))
    moved = site(partition={"seed": 1})  # other pictures
    notes = [moved.run(task(moved, round_=round_)).notes for round_ in (1, 1, 2)]
    assert notes == [("data_table_differs_from_earlier_rounds",)] * 2 + [()]


def test_a_restart_changes_no_bit(site, tmp_path):
    one = site()
    one.run(task(one))
    warm = one.run(task(one, round_=1))
    again = site()
    fresh = again.run(task(again, round_=1))
    assert all(np.array_equal(warm.tensors[name], fresh.tensors[name]) for name in warm.tensors)


def test_a_round_that_is_run_again_gives_the_same_bits(site):
    one = site()
    one.run(task(one))
    first, again = (one.run(task(one, round_=1)) for _ in range(2))
    assert all(np.array_equal(first.tensors[name], again.tensors[name]) for name in first.tensors)


def test_local_batchnorm_stays_at_the_site(site):
    one = site(training={"bn_mode": "local"})
    answer = one.run(task(one))
    assert answer.error == ""
    assert not any(".bn" in name or "running" in name for name in answer.tensors)
    other = site(training={"bn_mode": "local"})
    again = other.run(task(other, round_=1))
    memory = other.model.state_dict()["encoder.bn1.num_batches_tracked"]
    assert again.error == ""
    assert memory == answer.steps + again.steps


def test_degenerate_damaged_state_is_as_no_state(site):
    one = site()
    one.run(task(one))
    (path,) = (one.directory / "state" / RUN).iterdir()
    path.write_bytes(b"\0" * 40)
    answer = one.run(task(one, round_=1))
    assert answer.trained
    assert answer.notes == ("state_damaged",)
    assert "pcl" not in answer.losses
    path.unlink()
    lost = one.run(replace(task(one, round_=1), trained_before=SITES))
    assert lost.notes == ("state_lost",)
    assert all(np.array_equal(answer.tensors[name], lost.tensors[name]) for name in lost.tensors)


def test_degenerate_a_first_participation_in_a_later_round_has_lost_nothing(site):
    one = site()
    answer = one.run(replace(task(one, round_=3), trained_before=SITES[1:]))
    assert answer.trained
    assert answer.notes == ()


def test_degenerate_empty_site_does_not_train(site):
    one = site()
    one.run(task(one, train=()))
    nothing = np.array([], dtype=np.int64)
    one._images = replace(one._images, train=nothing, val=nothing)
    answer = one.run(task(one))
    assert (answer.error, answer.trained, answer.samples, answer.steps) == ("", False, 0, 0)
    assert answer.notes == ("no_training_images",)
    assert answer.confusion["val"].sum() == 0


def test_degenerate_single_image_site_trains(site):
    one = site()
    one.run(task(one, train=()))
    one._images = replace(one._images, train=one._images.train[:1])
    answer = one.run(task(one))
    assert (answer.trained, answer.samples, answer.steps) == (True, 1, 1)
    assert answer.notes == ("single_image_batch",)


# what goes wrong


def test_other_settings_are_refused(site):
    one = site()
    answer = one.run(task(one, digest="0" * 64))
    assert answer.error == "This site's settings of the job differ from the server's; submit the job again."
    assert not answer.trained


def test_degenerate_another_number_of_prototypes_fails_the_task_only(site):
    one, two = site(), site(method={"name": "fedproin", "prototypes_per_class": 2})
    wrong = replace(task(two), settings_digest=one.settings.digest())
    assert (
        one.run(wrong).error == "Training failed with RuntimeError; the details are in fedproin/error.log at the site."
    )
    assert one.run(task(one)).error == ""


def test_a_run_id_that_is_a_path_is_refused(site, tmp_path):
    one = site()
    answer = one.run(replace(task(one), run_id="../../elsewhere"))
    assert "ValueError" in answer.error
    assert not (tmp_path.parent / "elsewhere").exists()


def test_what_goes_wrong_stays_in_a_private_file(site, monkeypatch):
    one = site()

    def receive(model, message, memory):
        raise RuntimeError("cannot read /data/patient-0815/smith.png")

    monkeypatch.setattr(one.method, "receive", receive)
    answer = one.run(task(one))
    assert answer.error == "Training failed with RuntimeError; the details are in fedproin/error.log at the site."
    log = one.directory / "error.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert "patient-0815/smith.png" in log.read_text()
    assert "Traceback" in log.read_text()
    one.run(task(one))
    assert log.read_text().count("RuntimeError: cannot read /data/patient-0815/smith.png") == 2


def test_a_missing_picture_is_counted_not_named(site, tmp_path, make_settings):
    (tmp_path / "secret-folder").mkdir()
    (tmp_path / "secret-folder" / "manifest.csv").write_text(
        "image,label\n" + "".join(f"patient-{number}.png,{'ab'[number % 2]}\n" for number in range(40))
    )
    location = Location(tmp_path / "secret-folder", tmp_path / "cache", simulated=False)
    one = site(location=location, data={"classes": ["a", "b"]})
    answer = one.run(task(one))
    assert "40 of 40 images cannot be read" in answer.error
    for word in ("patient", "secret", str(tmp_path)):
        assert word not in answer.error


def test_failures_are_appended_and_private_from_the_start(tmp_path):
    directory = tmp_path / "new"
    assert describe_failure(DataError("12 images are missing."), directory) == "12 images are missing."
    assert stat.S_IMODE((directory / "error.log").stat().st_mode) == 0o600


def test_synthetic_pictures_at_a_hospital_only_when_the_job_says_so(site, tmp_path, make_settings):
    with pytest.raises(DataError, match="no data configured"):
        locate(make_settings(data={"classes": list(CLASSES)}), simulated=False, site_root=tmp_path)
    rehearsal = {"classes": list(CLASSES), "synthetic": True}
    location = locate(make_settings(data=rehearsal), simulated=False, site_root=tmp_path)
    one = site(location=location, data=rehearsal)
    answer = one.run(task(one))
    assert (answer.error, answer.synthetic, answer.trained) == ("", True, True)
    assert 0 < len(one._images.train) < 140  # its share
