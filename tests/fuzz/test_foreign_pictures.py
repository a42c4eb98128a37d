"""Tables, folders and ZIPs of pictures that somebody else made: nothing is executed, unpacked or written elsewhere."""

import csv
import io
import struct
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedproin.data.cache import cached_manifest
from fedproin.data.checks import check
from fedproin.data.layouts import prepare
from fedproin.data.manifest import LARGEST_FILE, LONGEST_CELL, read_manifest
from fedproin.data.transforms import decode
from foreign import ODD_TEXTS, damaged, fuzz, read_or_refuse

SIZE = 8
NAMES = (
    *("../../evil.png", "/tmp/evil.png", "C:/evil.png", "a/../../evil.png", "..\\evil.png"),
    *("a/b.png", "ä.png", ".hidden.png", "link.png", "a.png/b.png", "con.png/"),
)
LABELS = ("nv", "mel", "x" * 300, "a,b\"c'\n")
names = st.sampled_from([*ODD_TEXTS, *NAMES]) | st.text(min_size=1, max_size=9).map(lambda name: f"{name}.png")


def picture(kind: str) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


PICTURES = {kind: picture(kind) for kind in ("PNG", "JPEG", "TIFF", "BMP", "GIF")}
TABLE = b'image,label,patient,split,site\na.png,nv,p1,train,x\n"b.png",mel,p2,,y\nc/d.png,nv,p1,,x\n'


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def use(source: Path) -> None:
    """All that is done with the data of a site."""
    manifest = read_or_refuse(lambda: read_manifest(source))
    if manifest is not None:
        read_or_refuse(lambda: manifest.encode(("mel", "nv")))
        read_or_refuse(lambda: check(manifest))
        read_or_refuse(lambda: cached_manifest(manifest, SIZE, source.parent / "cache"))


@pytest.fixture
def area(tmp_path):
    """A new folder for every input, alone in a folder that is looked at afterwards."""
    (tmp_path / "in").mkdir()

    def make() -> Path:
        for path in sorted((tmp_path / "in").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        return tmp_path / "in"

    yield make
    assert {path.name for path in tmp_path.iterdir()} <= {"in", "cache"}
    assert not Path("/tmp/evil.png").exists()


@fuzz
@given(content=damaged(TABLE))
def test_a_table(content, area):
    folder = area()
    (folder / "manifest.csv").write_bytes(content)
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(PICTURES["PNG"])
    use(folder)


@fuzz
@given(
    entries=st.lists(st.tuples(names, st.sampled_from(("nv", "mel", "x" * 300, "a,b\"c'\n"))), min_size=1, max_size=4)
)
def test_names_in_a_table(entries, area):
    folder = area()
    with (folder / "manifest.csv").open("w", newline="", encoding="utf-8", errors="replace") as file:
        csv.writer(file).writerows([("image", "label"), *entries])
    use(folder)


@fuzz
@given(
    entries=st.lists(names, min_size=1, max_size=4, unique=True),
    method=st.sampled_from((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)),
    data=st.data(),
)
def test_a_zip(entries, method, data, area):
    """With names that leave it, links and damage; it is prepared by its folders and read by its table."""
    folder, stream = area(), io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("metadata.csv", TABLE)
        for name in entries:
            archive.writestr(zipfile.ZipInfo(name.encode(errors="replace").decode() or "x"), PICTURES["PNG"], method)
        link = zipfile.ZipInfo("link.png")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    content = data.draw(damaged(stream.getvalue()))
    (folder / "pictures.zip").write_bytes(content)
    use(folder / "pictures.zip")
    read_or_refuse(lambda: prepare(folder / "pictures.zip", layout="folders"))
    assert files_below(folder) <= {"pictures.zip", "pictures.csv", "cache", *files_below(folder / "cache")} | {
        f"cache/{name}" for name in files_below(folder / "cache")
    }


@fuzz
@given(paths=st.lists(names, min_size=1, max_size=5), links=st.sampled_from(("/etc/passwd", "..", ".", "nowhere")))
def test_a_folder(paths, links, area):
    folder = area()
    for name in paths:
        last = Path(name.encode(errors="ignore").decode().replace("\0", "")).name
        if 0 < len(last.encode()) < 200:
            (folder / "class").mkdir(exist_ok=True)
            (folder / "class" / last).write_bytes(PICTURES["PNG"])
    for name in ("link.png", "loop", "another loop"):  # two that lead back double the paths at every level
        (folder / name).symlink_to(links)
    read_or_refuse(lambda: prepare(folder))
    use(folder)


@fuzz
@given(kind=st.sampled_from(sorted(PICTURES)), data=st.data())
def test_a_picture(kind, data):
    pixels = read_or_refuse(lambda: decode(SIZE)(data.draw(damaged(PICTURES[kind]))))
    assert pixels is None or (pixels.shape, pixels.dtype) == ((SIZE, SIZE, 3), np.uint8)


def bomb(side: int) -> bytes:
    """The beginning of a PNG of so many pixels a side, all black: 1,000 of them in a byte."""

    def chunk(name: bytes, content: bytes) -> bytes:
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    packer, line = zlib.compressobj(9), b"\0" * (side + 1)
    packed = b"".join(packer.compress(line) for _ in range(100)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [50_000, 12_000, 8_200])
def test_a_picture_with_more_pixels_than_a_camera_has_is_refused_at_once(side):
    content, started = bomb(side), time.monotonic()
    before = psutil.Process().memory_info().rss
    assert read_or_refuse(lambda: decode(SIZE)(content)) is None
    assert time.monotonic() - started < 5
    assert psutil.Process().memory_info().rss - before < 200e6


def test_a_zip_that_unpacks_to_more_than_a_picture_needs_is_refused(tmp_path, monkeypatch):
    """The limit is lowered: the file that breaks the real one takes its time to make."""
    assert LARGEST_FILE == 2**30
    monkeypatch.setattr("fedproin.data.manifest.LARGEST_FILE", 2**20)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", b"\0" * 2**21)
        archive.writestr("metadata.csv", b"image,label\na.png,nv\n")
    manifest = read_manifest(tmp_path / "bomb.zip")
    assert [problem.code for problem in check(manifest).problems if problem.level == "fail"] == ["unreadable"]
    with zipfile.ZipFile(tmp_path / "table.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata.csv", b"image,label\n" + b"a.png,nv\n" * 2**18)
    assert read_or_refuse(lambda: read_manifest(tmp_path / "table.zip")) is None


def test_a_cell_without_end_does_not_fill_the_memory(tmp_path):
    rows = [b"%d.png,nv" % number for number in range(20_000)]
    rows[7] = b"7.png," + b"x" * 10**6  # as fixed-width text, 20,000 times 4 MB
    (tmp_path / "manifest.csv").write_bytes(b"image,label\n" + b"\n".join(rows))
    assert read_or_refuse(lambda: read_manifest(tmp_path)) is None
    rows[7] = b"7.png," + b"x" * LONGEST_CELL
    (tmp_path / "manifest.csv").write_bytes(b"image,label\n" + b"\n".join(rows))
    assert len(read_manifest(tmp_path)) == 20_000
