"""Methods whose sites keep their own models: what they are scored on, and what is kept of the best ones."""

import numpy as np
import pytest
import torch
from PIL import Image

from fedproin.data.cache import default_directory
from fedproin.data.location import Location
from fedproin.federation.local_engine import run_local
from fedproin.federation.messages import Task
from fedproin.federation.site import Site
from fedproin.tensor_file import load_tensors

RUN, SITES = "0123456789abcdef", ("site-1", "site-2")


@pytest.fixture
def site(tmp_path, make_settings):
    """A site, newly made in the same directory with each call."""

    def make(method="solo", location=None, name="site-1", **changes):
        location = location or Location(None, default_directory(), simulated=True)
        return Site(name, make_settings(method={"name": method}, **changes), location, tmp_path / name)

    return make


@pytest.fixture
def hospital(tmp_path):
    """Twenty pictures of its own, half of each class."""
    folder = tmp_path / "table"
    folder.mkdir()
    for number in range(20):
        Image.new("RGB", (16, 16), (12 * number, 0, 0)).save(folder / f"{number}.png")
    rows = [f"{number}.png,{'ab'[number % 2]}" for number in range(20)]
    (folder / "manifest.csv").write_text("\n".join(["image,label", *rows]))
    return Location(folder, tmp_path / "cache", simulated=False)


def task(site, kind="round", round_=0, train=SITES, validate=True, best=None):
    return Task(kind, RUN, site.settings.digest(), round_, SITES, train, validate, None, {}, {}, best)


def test_in_a_simulation_every_model_is_scored_on_the_parts_of_all_sites(site):
    one = site()
    answer = one.run(task(one))
    assert answer.error == ""
    assert answer.confusion["val"].sum() == len(one._images.union.val) > len(one._images.val)
    assert answer.samples == len(one._images.train) < len(one._images.union.train)
    final = one.run(task(one, "score", 1, ()))
    assert final.confusion["test_last"].sum() == len(one._images.union.test)
    own = site(federation={"local_scores": "slices"})
    assert own.run(task(own)).confusion["val"].sum() == len(own._images.val)


def test_global_models_are_scored_on_each_sites_own_part(site):
    one = site("fedavg")
    model = {name: value.numpy() for name, value in one.model.state_dict().items()}
    asked = Task("round", RUN, one.settings.digest(), 0, SITES, (), True, None, model)
    assert one.run(asked).confusion["val"].sum() == len(one._images.val)


@pytest.mark.parametrize(
    ("method", "of"), [("fedavg", "own"), ("fedproin", "own"), ("central", "own"), ("solo", "union")]
)
def test_a_prior_correction_uses_the_frequencies_where_it_scores(site, method, of):
    """With a model that knows nothing, the most frequent class is what is left to predict."""
    one = site(method, name="site-2", federation={"prior_correction": True})
    model = {name: 0 * value.numpy() for name, value in one.model.state_dict().items()}
    one._initial = {name: 0 * value for name, value in one._initial.items()}  # of a model that stays at the site
    asked = Task("round", RUN, one.settings.digest(), 0, SITES, (), True, None, {} if method == "solo" else model)
    answer = one.run(asked)
    assert answer.error == ""
    images = one._images
    own, union = (np.bincount(images.labels[part.train]).argmax() for part in (images, images.union))
    assert own != union
    assert answer.confusion["val"].sum() > 0
    frequent = {"own": own, "union": union}[of]
    assert answer.confusion["val"][:, frequent].sum() == answer.confusion["val"].sum()


def test_a_hospital_scores_its_own_part_and_cannot_do_otherwise(site, hospital):
    classes = {"classes": ["a", "b"]}
    one = site(location=hospital, data=classes)
    answer = one.run(task(one))
    assert answer.error == ""
    assert one._images.union is None
    assert answer.confusion["val"].sum() == len(one._images.val)
    other = site(location=hospital, data=classes, federation={"local_scores": "pooled_full"})
    assert other.run(task(other)).error.startswith("Images of all sites together exist in a simulation only")


def test_the_best_model_of_a_site_is_the_one_that_it_had_then(site):
    """Scored after five rounds, with a new process for every task, it gives what it gave after the first one."""
    rate = {"learning_rate": 0.03}
    site(training=rate).run(task(site(training=rate)))
    then = site(training=rate).run(task(site(training=rate), "score", 1, ())).confusion["test_last"]
    for round_ in range(1, 5):
        one = site(training=rate)
        assert one.run(task(one, round_=round_, best=1)).error == ""
    last = site(training=rate)
    answer = last.run(task(last, "score", 5, (), best=1))
    assert np.array_equal(answer.confusion["test_best"], then)
    assert not np.array_equal(answer.confusion["test_last"], then)


def test_degenerate_a_site_that_has_lost_its_model_begins_again(site):
    """A model that this process has trained before is no matter."""
    one = site()
    fresh = one.run(task(one))
    for state in (one.directory / "state").rglob("*.safetensors"):
        state.unlink()
    again = one.run(task(one))
    assert again.losses == fresh.losses
    assert np.array_equal(again.confusion["val"], fresh.confusion["val"])


class Stopped(Exception):
    """The process was killed."""


@pytest.mark.parametrize("name", ["solo", "fedtgp", "fedplvm"])
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(tmp_path, make_settings, name):
    """Private state of the server, models of the sites, and a best model without public tensors."""
    settings = make_settings(federation={"rounds": 3, "participation": 1.0}, method={"name": name})
    whole = run_local(settings, 2, tmp_path / "whole", lambda line: None)

    def stop(line):
        if line.startswith("round 3/3"):
            raise Stopped

    with pytest.raises(Stopped):
        run_local(settings, 2, tmp_path / "run", stop)
    resumed = run_local(settings, 2, tmp_path / "run", lambda line: None)
    tensors = [load_tensors(tmp_path / n / "fedproin" / "last_model.safetensors")[0] for n in ("whole", "run")]
    assert tensors[0].keys() == tensors[1].keys()
    assert all(torch.equal(tensors[0][key], tensors[1][key]) for key in tensors[0])
    assert (whole.last, whole.best) == (resumed.last, resumed.best)


def test_a_best_model_without_public_tensors_survives_a_restart(tmp_path, make_settings):
    from fedproin.federation.checkpoint import BestModel, Checkpoint, load_checkpoint
    from fedproin.federation.opening import new_record
    from fedproin.methods.base import ServerState

    settings = make_settings(data={"classes": ["a", "b"]}, method={"name": "solo"})
    record = new_record(settings, SITES, "", synthetic=True)
    Checkpoint(ServerState({}), BestModel(3, 0.5, {}), record).save(tmp_path)
    assert load_checkpoint(tmp_path, record).best == BestModel(3, 0.5, {})
