"""Whole federations of two sites in one process."""

import shutil

import numpy as np
import pytest
import torch
from sklearn import metrics

from fedproin.data.cache import default_directory
from fedproin.data.location import Location
from fedproin.data.site_images import open_site
from fedproin.federation.local_engine import run_local
from fedproin.methods import create_method
from fedproin.methods.base import RoundContext
from fedproin.models.encoders import input_statistics
from fedproin.settings import Settings, parse
from fedproin.tensor_file import load_tensors
from fedproin.training.batches import Part


@pytest.fixture
def run(tmp_path, make_settings):
    """Run the tiny job in a directory; the record and the last model's tensors."""

    def make(name, sites=2, log=lambda line: None, **changes):
        record = run_local(make_settings(**changes), sites, tmp_path / name, log)
        return record, load_tensors(tmp_path / name / "fedproin" / "last_model.safetensors")[0]

    return make


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_same_seed_same_bits(run):
    """All that may be random is on: sampling, augmentation, participation."""
    changes = {"training": {"augmentation": "adaptive"}, "federation": {"rounds": 2, "participation": 0.5}}
    (one, model), (other, model_again) = (run(name, **changes) for name in ("one", "other"))
    assert same(model, model_again)
    assert (one.last, one.best) == (other.last, other.best)
    losses = [[[site.losses for site in past.sites.values()] for past in record.rounds] for record in (one, other)]
    assert losses[0] == losses[1]
    assert not same(model, run("seed", seed=1, **changes)[1])


def test_the_sites_state_matters_and_its_loss_is_survived(run, tmp_path):
    """With the widest margin PCL is never 0 in a second round; without their state the sites go without it."""
    changes = {
        "federation": {"rounds": 2, "participation": 1.0},
        "method": {"name": "fedproin", "lambda_pcl": 10.0, "pcl_margin": 2},
        "training": {"local_epochs": 2},
    }

    def lose_the_state(line):
        if "global" in line and "round 1/2" in line:
            for folder in (tmp_path / "lost").glob("site-*/fedproin/state"):
                shutil.rmtree(folder)

    kept, model = run("kept", **changes)
    lost, other = run("lost", log=lose_the_state, **changes)
    assert all("pcl" in site.losses for site in kept.rounds[1].sites.values())
    assert kept.rounds[1].sites["site-1"].losses["pcl"][-1] > 0
    assert not any("pcl" in site.losses for site in lost.rounds[1].sites.values())
    assert not same(model, other)
    assert same(model, run("again", **changes)[1])


def test_pooled_scores_are_scikit_learns_on_all_predictions(run, tmp_path):
    """The models that the run left, on each site's test part: labels and predictions of all sites in one list."""
    record, _ = run("run", sites=3, federation={"rounds": 3, "participation": 1.0}, training={"local_epochs": 3})
    for name, final in (("last", record.last), ("best", record.best)):
        tensors, header = load_tensors(tmp_path / "run" / "fedproin" / f"{name}_model.safetensors")
        settings = parse(Settings, header["settings"])
        true, predicted = predictions(settings, tensors, record.site_names)
        assert final.test["accuracy"] == pytest.approx(metrics.accuracy_score(true, predicted))
        assert final.test["f1_weighted"] == pytest.approx(metrics.f1_score(true, predicted, average="weighted"))
        assert final.test["f1_macro"] == pytest.approx(metrics.f1_score(true, predicted, average="macro"))
        assert final.test["mcc"] == pytest.approx(metrics.matthews_corrcoef(true, predicted))
        assert final.test["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(true, predicted))
        assert np.array_equal(final.confusion, metrics.confusion_matrix(true, predicted, labels=range(7)))
        assert len(true) == np.sum(final.confusion) > 30
        assert len(set(predicted)) > 1


def predictions(settings, tensors, sites):
    method = create_method(settings)
    model = method.build("anywhere")
    model.load_state_dict(tensors)
    model.eval()
    ctx = RoundContext(settings, 0, torch.device("cpu"))
    location = Location(None, default_directory(), simulated=True)
    mean, std = input_statistics("resnet18")
    true, predicted = [], []
    for site in sites:
        images = open_site(settings, location, site, sites)
        labels = torch.from_numpy(images.labels[images.test])
        part = Part(images.images, images.test, labels, mean, std, 16, torch.device("cpu"))
        with torch.no_grad():
            for batch, truth in part.clean_batches():
                true += truth.tolist()
                predicted += method.scores(ctx, model, batch).argmax(dim=1).tolist()
    return true, predicted


def test_degenerate_a_site_that_fails_costs_its_own_rounds(run, monkeypatch):
    """site-2 cannot read its pictures: the federation goes on without it, and says so."""
    from fedproin.federation import site as module

    def broken(settings, location, site, sites):
        if site == "site-2":
            raise OSError("/data/patient-7.png")
        return open_site(settings, location, site, sites)

    monkeypatch.setattr(module, "open_site", broken)
    lines: list[str] = []
    record, _ = run("run", sites=3, log=lines.append, federation={"rounds": 2, "participation": 1.0})
    assert [past.counted for past in record.rounds] == [True, True]
    assert {past.sites["site-2"].status for past in record.rounds} == {"failed"}
    assert sorted(record.last.sites) == ["site-1", "site-3"]
    assert not any("patient" in line for line in lines)
    assert any("site-2  failed: Training failed with OSError" in line for line in lines)


def test_methods_options_reach_the_sites(run):
    record, model = run(
        "run",
        data={"image_size": 20},  # at 16 bfloat16 is NaN on CPUs: oneDNN's convolution of a 1 x 1 map with stride 2
        federation={"rounds": 2, "participation": 1.0},
        method={
            "name": "fedproin",
            "prototypes_per_class": 2,
            "task_loss": "gmcl",
            "prototype_init": "feature_mean",
            "influence_source": "dataset",
        },
        training={"bn_mode": "local", "optimizer_state": "persist", "precision": "bfloat16"},
    )
    assert model["prototypes"].shape == (7, 2, 32)
    for past in record.rounds:
        assert {site.status for site in past.sites.values()} == {"trained"}
        for site in past.sites.values():
            assert np.sum(site.influence) == site.samples
