import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedproin.data.manifest import TableError, has_table, open_images, parse_table, read_manifest
from fedproin.errors import DataError

TABLE = (
    "image,label,lesion_id,patient,dataset,split\na.png,nv,L1,P1,x,train\nb.png,mel,L2,P1,y,train\nc.png,nv,,,y,test\n"
)


def write_folder(folder: Path, table: str = TABLE, name: str = "manifest.csv") -> Path:
    for image in "abc":
        (folder / f"{image}.png").write_bytes(image.encode())
    (folder / name).write_text(table)
    return folder


def write_zip(path: Path, table: str | None = TABLE) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for image in "abc":
            archive.writestr(f"{image}.png", image)
        if table is not None:
            archive.writestr("metadata.csv", table)
    return path


@pytest.fixture(params=["folder", "csv", "zip", "csv beside zip"])
def source(request, tmp_path):
    if request.param == "folder":
        return write_folder(tmp_path)
    if request.param == "csv":
        return write_folder(tmp_path, name="mine.csv") / "mine.csv"
    archive = write_zip(tmp_path / "data.zip", TABLE if request.param == "zip" else None)
    if request.param == "zip":
        return archive
    (tmp_path / "data.csv").write_text(TABLE)
    return tmp_path / "data.csv"


def test_every_source_gives_the_same_table_and_images(source):
    manifest = read_manifest(source)

    assert len(manifest) == 3
    assert manifest.classes == ("mel", "nv")
    assert manifest.image.tolist() == ["a.png", "b.png", "c.png"]
    assert manifest.group.tolist() == ["P1", "P1", "c.png"]  # patient before lesion; unknown: its own group
    assert manifest.site.tolist() == ["x", "y", "y"]
    assert manifest.split.tolist() == ["train", "train", "test"]
    with open_images(manifest) as read:
        assert [read(index) for index in (2, 0)] == [b"c", b"a"]


def test_take_and_encode(tmp_path):
    manifest = read_manifest(write_folder(tmp_path)).take(np.array([2, 1]))
    assert manifest.image.tolist() == ["c.png", "b.png"]
    assert manifest.site.tolist() == ["y", "y"]
    assert manifest.encode(("bkl", "nv", "mel")).tolist() == [1, 2]
    assert manifest.encode(("nv", "mel")).dtype == np.int64
    with pytest.raises(DataError, match=r"1 of 2 images .* \(mel\): add it to `classes`"):
        manifest.encode(("nv", "bkl"))


@pytest.mark.parametrize(
    "table",
    [
        "IMAGE ;Label\nsub\\a.png; nv \n./b.png;mel\n",
        "\ufefffile\tdx\nsub/a.png\tnv\nb.png\tmel\n",
        "filename,DX,split\nsub/a.png,nv,\nb.png,mel,\n",
    ],
)
def test_tables_as_people_save_them(tmp_path, table):
    (tmp_path / "t.csv").write_text(table, encoding="utf-8")
    manifest = read_manifest(tmp_path / "t.csv")
    assert manifest.image.tolist() == ["sub/a.png", "b.png"]
    assert manifest.label.tolist() == ["nv", "mel"]
    assert manifest.group.tolist() == manifest.image.tolist()
    assert manifest.site is None
    assert manifest.split is None


def test_a_label_that_pandas_takes_for_nothing_stays():
    assert parse_table(b"image,label\na.png,NA\n")["label"].tolist() == ["NA"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("image,comment\na.png,x\n", "no column for the label: name one of its columns label or dx"),
        ("label\nnv\n", "no column for the image: name one of its columns image or file or path or filename"),
        ("image,label\n", "no rows"),
        ("", "not a CSV"),
        ("image,label\na.png,nv,more\n", "more fields in its rows"),
        ("image,label\na.png,nv\nb.png,nv,more\n", "not a CSV"),
        ("image,label\na.png,nv\n./a.png,nv\nb.png,mel\n", "1 of 3 rows name an image that another row names"),
        ("image,label\na.png,\nb.png,mel\n", "1 of 2 rows have no label"),
        ("image,label\n,nv\nb.png,mel\n", "1 of 2 rows have no image path"),
        ("image,label\n/etc/a.png,nv\nb.png,mel\n", "1 of 2 rows have an image path outside"),
        ("image,label\nsub/../../a.png,nv\n..\\b.png,mel\nC:\\c.png,nv\n", "3 of 3 rows have an image path outside"),
        ("image,label,split\na.png,nv,holdout\n", "1 of 1 rows have a split that is not"),
        (
            "image,label,patient,split\na.png,nv,P,train\nb.png,nv,P,test\nc.png,nv,Q,val\n",
            "2 of 3 rows are of a patient",
        ),
    ],
)
def test_refusals_carry_counts_and_no_names(tmp_path, table, message):
    (tmp_path / "t.csv").write_text(table)
    with pytest.raises(DataError, match=message) as raised:
        read_manifest(tmp_path / "t.csv")
    assert ".png" not in str(raised.value)
    assert str(tmp_path) not in str(raised.value)
    if isinstance(raised.value, TableError):
        assert raised.value.names[0].startswith("line ")


def test_a_group_may_be_decided_in_part(tmp_path):
    (tmp_path / "t.csv").write_text("image,label,patient,split\na.png,nv,P,train\nb.png,nv,P,\n")
    assert read_manifest(tmp_path / "t.csv").split.tolist() == ["train", ""]


def test_places_without_a_table(tmp_path):
    with pytest.raises(DataError, match="no data at the given path"):
        read_manifest(tmp_path / "absent")
    with pytest.raises(DataError, match="fedproin data prepare"):
        read_manifest(tmp_path)
    assert not has_table(tmp_path)
    (tmp_path / "broken.zip").write_bytes(b"PK but no archive")
    with pytest.raises(DataError, match="ZIP that can be read"):
        read_manifest(tmp_path / "broken.zip")
    with pytest.raises(DataError, match="fedproin data prepare"):
        read_manifest(write_zip(tmp_path / "bare.zip", None))


def test_a_bare_zip_takes_the_table_beside_it(tmp_path):
    archive = write_zip(tmp_path / "data.zip", None)
    (tmp_path / "data.csv").write_text(TABLE)
    assert read_manifest(archive).root == archive


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_an_image_that_is_not_there(tmp_path, kind):
    table = "image,label\nd.png,nv\n"
    manifest = read_manifest(
        write_folder(tmp_path, table) if kind == "folder" else write_zip(tmp_path / "d.zip", table)
    )
    with open_images(manifest) as read, pytest.raises(DataError, match="fedproin data check") as raised:
        read(0)
    assert "d.png" not in str(raised.value)


def test_digest_follows_table_and_files(tmp_path):
    first = read_manifest(write_folder(tmp_path)).digest()
    assert read_manifest(tmp_path).digest() == first

    os.utime(tmp_path / "a.png", (1, 1))
    touched = read_manifest(tmp_path).digest()
    (tmp_path / "a.png").unlink()
    missing = read_manifest(tmp_path).digest()
    write_folder(tmp_path, TABLE.replace("mel", "bkl"))
    assert len({first, touched, missing, read_manifest(tmp_path).digest()}) == 4


def test_digest_of_a_zip_follows_the_zip(tmp_path):
    archive = write_zip(tmp_path / "data.zip")
    first = read_manifest(archive).digest()
    os.utime(archive, (1, 1))
    assert read_manifest(archive).digest() != first
