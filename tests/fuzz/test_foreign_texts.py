"""Settings, site files, identities, records, results and specs that somebody else wrote, or a disk has damaged."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given

from fedproin.data.location import locate, read_site_file
from fedproin.federation.identity import packed_identity
from fedproin.federation.local_engine import run_local
from fedproin.federation.results import read_results, run_from_dict
from fedproin.methods import create_method
from fedproin.settings import Settings, load_settings
from fedproin.tools.bench.result import read_result
from fedproin.tools.bench.spec import load_spec
from foreign import damaged, fuzz, json_files, read_or_refuse

SETTINGS = {
    "run": "a",
    "seed": 1,
    "data": {"classes": ["a", "b"], "image_size": 28, "split": [0.7, 0.1, 0.2], "mean": [0.5, 0.5, 0.5]},
    "training": {"local_epochs": 1, "learning_rate": 0.1, "steps_per_epoch": 3},
    "method": {"name": "fedproin", "prototypes_per_class": 2},
}
SITE = {"data": "/data/table.csv", "minimum_count": 5}
SPEC = b"""
name = "tiny"
sites = 2
seeds = [0, 1]
[settings]
data = { image_size = 16, synthetic = true }
[partitions.iid]
kind = "iid"
[rows.fedproin]
method = { name = "fedproin" }
"""
MODEL = {
    "version": 1,
    "validation": {"mcc": 0.1},
    "test": {"mcc": 0.2},
    "recall": {"a": 0.5, "b": None},
    "confusion": [[1, 2], [3, 4]],
}
RESULT = {
    "row": "fedproin", "partition": "iid", "seed": 0, "prototypes": None, "settings_hash": "a", "data_hash": "b",
    "command": "fedproin bench", "engine": "local", "sites": 2, "settings": {"seed": 0}, "versions": {"torch": "2"},
    "data": "table", "dealt": "IID", "steps": 3, "seconds": 1.5, "bytes_down": 1, "bytes_up": 1,
    "validation": {"1": {"mcc": 0.1}}, "last": MODEL, "best": MODEL,
}  # fmt: skip


@pytest.fixture(scope="module")
def record(tmp_path_factory, make_settings):
    """A real record of two rounds."""
    settings = make_settings(training={"steps_per_epoch": 1})
    return asdict(run_local(settings, 2, tmp_path_factory.mktemp("run"), lambda line: None))


@fuzz
@given(content=json_files(SETTINGS))
def test_settings(content, tmp_path):
    (tmp_path / "settings.json").write_bytes(content)
    settings = read_or_refuse(lambda: load_settings(tmp_path / "settings.json"))
    if settings is not None:
        assert settings.digest() == load_settings(tmp_path / "settings.json").digest()
        read_or_refuse(lambda: create_method(settings))


@fuzz
@given(content=json_files(SITE))
def test_a_sites_own_file(content, tmp_path):
    (tmp_path / "local").mkdir(exist_ok=True)
    (tmp_path / "local" / "fedproin.json").write_bytes(content)
    read_or_refuse(lambda: read_site_file(tmp_path))
    read_or_refuse(lambda: locate(Settings(), False, tmp_path))


@fuzz
@given(content=json_files({"version": "0.1.0", "hash": "ab" * 32}))
def test_the_identity_in_a_job(content, tmp_path):
    (tmp_path / "package.json").write_bytes(content)
    read_or_refuse(lambda: packed_identity(tmp_path))


@fuzz
@given(content=json_files(RESULT))
def test_a_result_of_a_bench(content, tmp_path):
    (tmp_path / "fedproin_seed0.json").write_bytes(content)
    read_or_refuse(lambda: read_result(tmp_path / "fedproin_seed0.json"))


@fuzz
@given(content=damaged(SPEC))
def test_the_spec_of_a_bench(content, tmp_path):
    (tmp_path / "spec.toml").write_bytes(content)
    read_or_refuse(lambda: load_spec(tmp_path / "spec.toml"))


def test_the_record_of_a_run(record, tmp_path):
    """The record is real, so that its strategy is made here."""

    @fuzz
    @given(content=json_files(json.loads(json.dumps(record))))
    def try_(content):
        (tmp_path / "results.json").write_bytes(content)
        read_or_refuse(lambda: read_results(tmp_path / "results.json"))

    assert run_from_dict(json.loads(json.dumps(record))).run == "fedproin"
    try_()


@pytest.mark.parametrize("read", [load_settings, read_results, read_result, load_spec])
def test_a_folder_in_place_of_the_file(read, tmp_path):
    read_or_refuse(lambda: read(tmp_path))
