"""Decoded pictures on disk: one uint8 memory map that all processes of a machine share.

A file is named after what is in it (table, size, code version). One process builds it under a file lock, in a temporary
file that is renamed when it is complete: a file that has its final name is finished. Only its owner may read it.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from fedproin.data.manifest import Manifest, open_images
from fedproin.errors import DataError

CODE_VERSION = 1  # to be raised whenever the same image file decodes to other pixels
DECODERS = 2
PREFIX = "images-"

Pictures = NDArray[np.uint8]


def default_directory() -> Path:
    """``$FEDPROIN_CACHE``, else ``$XDG_CACHE_HOME/fedproin``, else ``~/.cache/fedproin``."""
    named = os.environ.get("FEDPROIN_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedproin"


def cached_manifest(manifest: Manifest, size: int, directory: Path) -> Pictures:
    """The images of a manifest, decoded: a read-only memory map, uint8 ``[N, size, size, 3]``.

    Raises:
        DataError: images cannot be read (the message counts them), or the disk has no room.
    """
    key = hashlib.sha256(f"{manifest.digest()} {size} {CODE_VERSION}".encode()).hexdigest()
    return open_images_array(directory, key, len(manifest), size, lambda pictures: _decode_into(pictures, manifest))


def open_images_array(directory: Path, key: str, count: int, size: int, write: Callable[[Pictures], None]) -> Pictures:
    """A read-only memory map, uint8 ``[count, size, size, 3]``; built with `write` unless the directory has it.

    Args:
        directory: made with mode 0700 if it is missing.
        key: names the content, in characters that a file name may have.
        count: number of pictures.
        size: side of a picture in pixels.
        write: fills the array that it is given. If it raises, or the process is killed, nothing stays that another
            call would take for finished.

    Raises:
        DataError: the disk has no room.
    """
    path = directory / f"{PREFIX}{key}.npy"
    if not path.exists():
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock(path):
            if not path.exists():
                _remove_dead_builds(directory, path)
                _build(path, (count, size, size, 3), write)
    pictures: Pictures = np.load(path, mmap_mode="r", allow_pickle=False)
    return pictures


def clear(directory: Path) -> int:
    """Remove the cache's own files, except those that are being built; return the bytes freed."""
    finished = list(directory.glob(f"{PREFIX}*.npy"))
    freed = sum(_remove(path) for path in finished) + _remove_dead_builds(directory)
    for lock in directory.glob(f"{PREFIX}*.lock"):
        if not _is_building(lock.with_suffix(".npy")):
            lock.unlink(missing_ok=True)
    return freed


def _lock(path: Path, timeout: float = -1) -> FileLock:
    return FileLock(path.with_suffix(".lock"), timeout=timeout, mode=0o600)


def _is_building(path: Path) -> bool:
    try:
        with _lock(path, timeout=0):
            return False
    except Timeout:
        return True


def _build(path: Path, shape: tuple[int, ...], write: Callable[[Pictures], None]) -> None:
    _require_room(path.parent, int(np.prod(shape)))
    handle, name = tempfile.mkstemp(prefix=f"{path.stem}.", suffix=".partial", dir=path.parent)  # mode 0600
    partial = Path(name)
    try:
        pictures = np.lib.format.open_memmap(partial, mode="w+", dtype=np.uint8, shape=shape)
        write(pictures)
        pictures.flush()
        os.fsync(handle)
        partial.replace(path)
    finally:
        os.close(handle)
        partial.unlink(missing_ok=True)


def _require_room(directory: Path, needed: int) -> None:
    """A memory map on a full disk kills its process, so ask before."""
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise DataError(
            f"The image cache needs {needed / 1e6:.0f} MB and its disk has {free / 1e6:.0f} MB free: make room, or let "
            "FEDPROIN_CACHE name a directory on another disk."
        )


def _remove_dead_builds(directory: Path, own: Path | None = None) -> int:
    """Remove temporary files whose builder is gone, `own` being locked by the caller; return the bytes freed."""
    partials = ((partial, directory / f"{partial.name.split('.')[0]}.npy") for partial in directory.glob("*.partial"))
    return sum(_remove(partial) for partial, path in partials if path == own or not _is_building(path))


def _remove(path: Path) -> int:
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:  # another process was faster
        return 0
    return size


def _decode_into(pictures: Pictures, manifest: Manifest) -> None:
    from fedproin.data.transforms import decode

    decode_one = decode(pictures.shape[1])
    with open_images(manifest) as read, ThreadPoolExecutor(DECODERS) as pool:

        def fill(index: int) -> bool:
            try:
                pictures[index] = decode_one(read(index))
            except DataError:
                return False
            return True

        broken = len(manifest) - sum(pool.map(fill, range(len(manifest))))
    if broken:
        raise DataError(
            f"{broken} of {len(manifest)} images cannot be read; run `fedproin data check` on this machine for their "
            "names."
        )
