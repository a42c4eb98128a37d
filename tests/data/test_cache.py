import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedproin.data import cache
from fedproin.data.cache import cached_manifest, clear, default_directory, open_images_array
from fedproin.data.manifest import Manifest
from fedproin.errors import DataError


def fill(value):
    def write(pictures):
        pictures[:] = value

    return write


def forbidden(pictures):
    raise AssertionError("built twice")


def names(directory):
    return sorted(path.suffix for path in directory.iterdir() if path.suffix != ".lock")


@pytest.fixture
def folder(tmp_path):
    """Five small pictures, picture k of grey 10 k."""
    for index in range(5):
        Image.new("L", (9, 7), 10 * index).save(tmp_path / f"JaneDoe{index}.png")
    return tmp_path


def manifest_of(folder, count=5):
    image = np.array([f"JaneDoe{index}.png" for index in range(count)])
    return Manifest(root=folder, image=image, label=np.full(count, "nv"), group=image)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"FEDPROIN_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/fedproin"),
        ({"HOME": "/c"}, "/c/.cache/fedproin"),
    ],
)
def test_default_directory(monkeypatch, variables, expected):
    for name in ("FEDPROIN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_directory() == Path(expected)


def test_built_once_and_read_only(tmp_path):
    directory = tmp_path / "new" / "cache"
    first = open_images_array(directory, "key", 3, 4, fill(7))
    second = open_images_array(directory, "key", 3, 4, forbidden)
    assert isinstance(second, np.memmap)
    assert second.shape == first.shape == (3, 4, 4, 3)
    assert (second == 7).all()
    with pytest.raises(ValueError, match="read-only"):
        second[0] = 1
    assert (open_images_array(directory, "other", 1, 4, fill(9)) == 9).all()


def test_nobody_else_may_read_it(tmp_path):
    directory = tmp_path / "cache"
    open_images_array(directory, "key", 1, 4, fill(7))
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}


def test_a_failed_build_leaves_nothing(tmp_path):
    with pytest.raises(AssertionError):
        open_images_array(tmp_path, "key", 1, 4, forbidden)
    assert names(tmp_path) == []
    assert (open_images_array(tmp_path, "key", 1, 4, fill(7)) == 7).all()


def test_a_full_disk_is_said_before_it_kills(tmp_path):
    with pytest.raises(DataError, match="MB free"):
        open_images_array(tmp_path, "key", 10**9, 1000, forbidden)
    assert names(tmp_path) == []


def test_clear_removes_only_its_own(tmp_path):
    (tmp_path / "mine.npy").write_bytes(b"precious")
    open_images_array(tmp_path, "key", 2, 4, fill(7))
    size = (tmp_path / "images-key.npy").stat().st_size
    (tmp_path / "images-dead.abc.partial").write_bytes(b"12345")
    assert clear(tmp_path) == size + 5
    assert [path.name for path in tmp_path.iterdir()] == ["mine.npy"]
    assert clear(tmp_path / "missing") == 0


def test_manifest_is_decoded_in_order(folder, tmp_path):
    pictures = cached_manifest(manifest_of(folder), 4, tmp_path / "cache")
    assert (pictures == np.arange(0, 50, 10)[:, None, None, None]).all()


def test_other_size_or_changed_file_is_another_array(folder, tmp_path):
    cached_manifest(manifest_of(folder), 4, tmp_path / "cache")
    assert cached_manifest(manifest_of(folder), 5, tmp_path / "cache").shape == (5, 5, 5, 3)
    Image.new("L", (90, 70), 200).save(folder / "JaneDoe0.png")
    assert (cached_manifest(manifest_of(folder), 4, tmp_path / "cache")[0] == 200).all()


def test_all_broken_images_are_counted_and_none_is_named(folder, tmp_path):
    (folder / "JaneDoe1.png").write_bytes(b"broken")
    (folder / "JaneDoe3.png").unlink()
    with pytest.raises(DataError, match=r"^2 of 5 images cannot be read; run `fedproin data check`") as refusal:
        cached_manifest(manifest_of(folder), 4, tmp_path / "cache")
    assert "Jane" not in str(refusal.value)
    assert names(tmp_path / "cache") == []


def _build_slowly(directory, log):
    def write(pictures):
        with log.open("a") as lines:
            lines.write("built\n")
        time.sleep(0.5)
        pictures[:] = 7

    pictures = open_images_array(directory, "key", 2, 4, write)
    sys.exit(0 if (pictures == 7).all() else 1)


def test_of_four_processes_one_builds(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_build_slowly, args=(tmp_path / "c", tmp_path / "log")) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert (tmp_path / "log").read_text() == "built\n"


KILLED = """
import pathlib, sys, time
from fedproin.data.cache import open_images_array
def write(pictures):
    pictures[0] = 1
    pictures.flush()
    print("writing", flush=True)
    time.sleep(60)
open_images_array(pathlib.Path(sys.argv[1]), sys.argv[2], 2, 4, write)
"""


@pytest.mark.parametrize("key", ["key", "other"])
def test_a_build_that_was_killed_is_swept_away(tmp_path, key):
    """By the next build, of the same array or of another; but not while it is alive."""
    builder = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), "key"], stdout=subprocess.PIPE)
    assert builder.stdout.readline() == b"writing\n"
    open_images_array(tmp_path, "alive", 1, 4, fill(3))
    assert clear(tmp_path) > 0
    assert names(tmp_path) == [".partial"]
    os.kill(builder.pid, signal.SIGKILL)
    builder.wait()
    builder.stdout.close()
    assert (open_images_array(tmp_path, key, 2, 4, fill(7)) == 7).all()
    assert names(tmp_path) == [".npy"]


def test_threads_and_a_plain_loop_decode_alike(folder, tmp_path, monkeypatch):
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(stream, "PNG")
    (folder / "JaneDoe2.png").write_bytes(stream.getvalue())
    threaded = cached_manifest(manifest_of(folder), 8, tmp_path / "threads")
    monkeypatch.setattr(cache, "DECODERS", 1)
    assert np.array_equal(threaded, cached_manifest(manifest_of(folder), 8, tmp_path / "loop"))
