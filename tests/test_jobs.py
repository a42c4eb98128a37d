"""Every job folder is complete, and the two of the paper are its protocol to the letter."""

import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import pytest

from fedproin.methods import METHODS, create_method
from fedproin.methods.fedproin import FedProInOptions
from fedproin.settings import load_settings

JOBS = Path(__file__).parents[1] / "jobs"
NAMES = sorted(job.name for job in JOBS.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_accepted_with_their_method(name):
    settings = load_settings(JOBS / name / "app" / "config" / "settings.json")
    assert settings.run == name
    create_method(settings.with_classes(settings.data.classes or ("a", "b")))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", ["server", "client"])
def test_components_exist_and_carry_no_settings(name, side):
    config = json.loads((JOBS / name / "app" / "config" / f"config_fed_{side}.json").read_text())
    parts = config["components"] + config.get("workflows", []) + [e["executor"] for e in config.get("executors", [])]
    assert parts
    for part in parts:
        module, _, cls = part["path"].rpartition(".")
        assert hasattr(import_module(module), cls)
        assert all(isinstance(value, str) for value in part["args"].values())


@pytest.mark.parametrize("name", NAMES)
def test_the_job_is_marked_as_one_that_brings_code(name):
    assert (JOBS / name / "app" / "custom" / "README.md").read_text()
    meta = json.loads((JOBS / name / "meta.json").read_text())
    assert (meta["name"], meta["deploy_map"]) == (name, {"app": ["@ALL"]})


@pytest.mark.parametrize(("name", "prototypes", "classes"), [("fedproin_ham10000", 2, 7), ("fedproin_matek19", 1, 15)])
def test_the_papers_protocol(name, prototypes, classes):
    settings = load_settings(JOBS / name / "app" / "config" / "settings.json")
    data, training, federation = settings.data, settings.training, settings.federation
    assert (federation.rounds, federation.participation, training.local_epochs) == (50, 0.5, 5)
    assert (training.learning_rate, training.batch_size, training.sampler) == (1e-4, 128, "class_balanced")
    assert (data.image_size, data.split, len(data.classes)) == (128, (0.7, 0.1, 0.2), classes)
    assert (data.mean, data.std) == (None, None)  # ImageNet's, with the backbone
    assert (settings.model.backbone, settings.model.width, settings.model.pretrained) == ("resnet18", 64, True)
    assert (settings.partition.kind, settings.partition.alpha) == ("dirichlet", 0.5)
    options = asdict(create_method(settings).options)
    assert (options["prototypes_per_class"], options["task_loss"]) == (prototypes, "mce")
    assert (options["lambda_fdl"], options["lambda_pcl"]) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("fedproin_mcl", {"task_loss": "mcl", "lambda_fdl": 0.1, "lambda_pcl": 0.01}),
        ("fedproin_no_fdl", {"lambda_fdl": 0.0}),
        ("fedproin_no_pcl", {"lambda_pcl": 0.0}),
        ("fedproin_no_fdl_no_pcl", {"lambda_fdl": 0.0, "lambda_pcl": 0.0}),
        ("fedproin_no_nia", {"prototype_merge": "fedavg"}),
        ("fedavg_prototype", {"lambda_fdl": 0.0, "lambda_pcl": 0.0, "prototype_merge": "fedavg"}),
        *((name, None) for name in METHODS),
    ],
)
def test_jobs_to_compare_differ_from_the_main_one_in_the_method_alone(name, changed):
    job, main = (asdict(load_settings(JOBS / n / "app" / "config" / "settings.json")) for n in (name, "fedproin"))
    settings = load_settings(JOBS / name / "app" / "config" / "settings.json").with_classes(("a", "b"))
    options = asdict(create_method(settings).options)
    for settings_ in (job, main):
        del settings_["run"], settings_["method"]
    assert job == main
    if changed is None:
        assert options["name"] == name
    else:
        main_options = asdict(FedProInOptions(prototypes_per_class=2))
        assert options == main_options | changed
