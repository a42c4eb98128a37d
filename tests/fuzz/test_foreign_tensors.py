"""Checkpoints, states of sites and models whose bytes or whose header somebody has changed."""

import copy
import json
import resource
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedproin.federation.checkpoint import load_checkpoint
from fedproin.federation.local_engine import run_local
from fedproin.federation.opening import new_record
from fedproin.tensor_file import load_tensors, save_tensors
from fedproin.training.site_state import SiteState
from foreign import changed, damaged, fuzz, read_or_refuse

RUN = "0123456789abcdef"
NAMES = ["site-1", "site-2"]


@pytest.fixture(scope="module")
def settings(make_settings):
    return make_settings(training={"steps_per_epoch": 1})


@pytest.fixture(scope="module")
def checkpoint(settings, tmp_path_factory) -> bytes:
    """A real checkpoint after the first of two rounds."""

    class Stopped(Exception):
        pass

    def stop(line):
        if "round 1/2  global" in line:
            raise Stopped

    directory = tmp_path_factory.mktemp("run")
    with pytest.raises(Stopped):
        run_local(settings, 2, directory, stop)
    return (directory / "fedproin" / "checkpoint.safetensors").read_bytes()


def rebuilt(content: bytes, header: object) -> bytes:
    """A safetensors file with another header before the same data."""
    text = json.dumps(header).encode()
    size = int.from_bytes(content[:8], "little")
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def headers(content: bytes) -> st.SearchStrategy[bytes]:
    """The file with changes in its list of tensors, or in our header inside it."""
    size = int.from_bytes(content[:8], "little")
    outer = json.loads(content[8 : 8 + size])
    inner = json.loads(outer["__metadata__"]["header"])

    def with_inner(value: object) -> bytes:
        other = copy.deepcopy(outer)
        other["__metadata__"]["header"] = json.dumps(value)
        return rebuilt(content, other)

    return changed(outer).map(lambda value: rebuilt(content, value)) | changed(inner).map(with_inner)


def test_a_checkpoint(checkpoint, settings, tmp_path):
    @fuzz
    @given(content=damaged(checkpoint) | headers(checkpoint))
    def try_(content):
        (tmp_path / "checkpoint.safetensors").write_bytes(content)
        read_or_refuse(lambda: load_checkpoint(tmp_path, fresh))

    (tmp_path / "checkpoint.safetensors").write_bytes(checkpoint)
    record, header = load_tensors(tmp_path / "checkpoint.safetensors")[1]["run"], settings
    fresh = new_record(header.with_classes(tuple(record["classes"])), NAMES, "", synthetic=True)
    assert load_checkpoint(tmp_path, fresh) is not None
    try_()


def test_the_state_of_a_site(tmp_path):
    state = SiteState(tmp_path, RUN)
    state.save(1, {"prototypes": torch.ones(3, 4), "count": torch.tensor(5)})
    path = state.directory / "round-000001.safetensors"
    valid = path.read_bytes()

    @fuzz
    @given(content=damaged(valid) | headers(valid))
    def try_(content):
        path.write_bytes(content)
        memory = read_or_refuse(lambda: state.load(2))
        assert memory is None or memory.round == 1

    assert state.load(2) is not None
    try_()
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == [path.name]


@pytest.mark.parametrize("size", [2**20, 2**40, 2**63, 2**64 - 1])
def test_a_header_that_says_it_is_huge_costs_neither_time_nor_memory(size, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(size.to_bytes(8, "little") + b"{" + b" " * 100)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    assert read_or_refuse(lambda: load_tensors(path)) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
    assert time.monotonic() - started < 5


def test_tensors_that_say_they_are_huge_or_overlap_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_tensors(path, {"a": torch.ones(4), "b": torch.ones(4)}, {})
    size = int.from_bytes(path.read_bytes()[:8], "little")
    valid = json.loads(path.read_bytes()[8 : 8 + size])
    for changes in ({"shape": [2**40]}, {"data_offsets": [0, 2**50]}, {"data_offsets": [8, 24]}, {"dtype": "F64"}):
        header = {**valid, "a": {**valid["a"], **changes}}
        path.write_bytes(rebuilt(path.read_bytes(), valid))
        path.write_bytes(rebuilt(path.read_bytes(), header))
        assert read_or_refuse(lambda: load_tensors(path)) is None
