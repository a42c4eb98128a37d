import os
import pickle
import stat
import subprocess

import pytest
import torch

from fedproin.errors import UserError
from fedproin.tensor_file import load_tensors, save_tensors, write_atomically


def test_gives_back_what_was_saved(tmp_path):
    shared = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "float": shared,
        "transposed view of it": shared.T,
        "scalar": torch.tensor(3.5),
        "int": torch.tensor([2**62, -1]),
        "channels last": torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        "empty": torch.zeros(0, 5),
        "with gradient": torch.ones(2, requires_grad=True),
    }
    save_tensors(tmp_path / "x.safetensors", tensors, {"round": 3, "name": "ä", "nested": {"a": [1.5, None]}})
    loaded, header = load_tensors(tmp_path / "x.safetensors")
    assert header == {"round": 3, "name": "ä", "nested": {"a": [1.5, None]}}
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor.detach())


def test_only_its_owner_may_read_it(tmp_path):
    previous = os.umask(0)
    try:
        save_tensors(tmp_path / "x", {"a": torch.ones(1)}, {})
        write_atomically(tmp_path / "y", b"text")
    finally:
        os.umask(previous)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "xy"} == {0o600}


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write_atomically(path, b"old")

    def full(_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_had_begun_to_write_is_removed_and_that_of_a_live_one_is_not(tmp_path):
    path = tmp_path / "x"
    dead = subprocess.Popen(["true"])
    dead.wait()
    for process in (dead.pid, os.getppid()):
        (tmp_path / f".x.{process}.tmp").write_bytes(b"half")
    write_atomically(path, b"whole")
    assert set(tmp_path.iterdir()) == {path, tmp_path / f".x.{os.getppid()}.tmp"}


@pytest.mark.parametrize("name", ["backup", "20240101123456789012", "²"])
def test_a_file_that_only_looks_unfinished_is_left_alone(tmp_path, name):
    mine = tmp_path / f".x.{name}.tmp"
    mine.write_bytes(b"mine")
    write_atomically(tmp_path / "x", b"whole")
    assert mine.read_bytes() == b"mine"


def test_the_file_is_complete_before_it_has_its_name(tmp_path, monkeypatch):
    path, seen = tmp_path / "x", []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda number: (seen.append((path.exists(), os.fstat(number).st_size)), real(number))
    )
    write_atomically(path, b"12345")
    assert seen == [(False, 5)]


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "no header", "header is no JSON"])
def test_a_damaged_file_is_one_sentence(tmp_path, damage):
    from safetensors.torch import save

    path = tmp_path / "round-000001.safetensors"
    save_tensors(path, {"a": torch.ones(100)}, {"round": 1})
    content = {
        "cut": path.read_bytes()[:-50],
        "empty": b"",
        "text": b"This is no tensor file at all, but it is long enough to look like one.",
        "no header": save({"a": torch.ones(1)}),
        "header is no JSON": save({"a": torch.ones(1)}, {"header": "{"}),
    }[damage]
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        load_tensors(path)
    assert str(error.value) == (
        "round-000001.safetensors is damaged or no file of this package; remove it or restore a copy."
    )


class Bomb:
    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_nothing_is_executed_on_reading(tmp_path):
    path, trace = tmp_path / "x.safetensors", tmp_path / "executed"
    path.write_bytes(pickle.dumps(Bomb(trace)))
    torch.save({"a": Bomb(trace)}, tmp_path / "y.safetensors")
    for bad in (path, tmp_path / "y.safetensors"):
        with pytest.raises(UserError):
            load_tensors(bad)
    assert not trace.exists()
