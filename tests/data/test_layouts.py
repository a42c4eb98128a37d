import zipfile
from pathlib import Path

import pytest

from fedproin.data.layouts import default_table, detect, prepare
from fedproin.data.manifest import read_manifest
from fedproin.errors import DataError

HAM10000 = {
    "HAM10000_metadata": "lesion_id,image_id,dx,dx_type,age,sex,localization,dataset\n"
    "HAM_1,ISIC_1,nv,histo,80.0,male,scalp,vidir_modern\n"
    "HAM_1,ISIC_2,nv,histo,80.0,male,scalp,vidir_modern\n"
    "HAM_2,ISIC_3,mel,histo,,male,ear,rosendahl\n",
    "HAM10000_images_part_1/ISIC_1.jpg": "1",
    "HAM10000_images_part_1/ISIC_2.jpg": "2",
    "HAM10000_images_part_2/ISIC_3.jpg": "3",
    "ham10000_images_part_2/ISIC_3.jpg": "3",  # some copies hold a folder twice
    "hmnist_8_8_L.csv": "pixel0000\n1\n",
}
MATEK19 = {
    "annotations.dat": "BAS/BAS_0001.tiff BAS nan nan\nEBO/EBO_0001.tiff EBO UNC EBO\n",
    "AML-Cytomorphology/BAS/BAS_0001.tiff": "1",
    "AML-Cytomorphology/EBO/EBO_0001.tiff": "2",
    "abbreviations.txt": "BAS Basophil\n",
}
MATEK19_BARE = {"BAS/BAS_0001.tiff": "1", "EBO/EBO_0001.tiff": "2"}
FOLDERS = {
    "wrapper/cat/1.PNG": "1",
    "wrapper/dog/2.jpeg": "2",
    "wrapper/dog/.hidden.png": "",
    "wrapper/dog/notes.txt": "",
}
SPLIT_FOLDERS = {"train/cat/1.png": "1", "valid/cat/2.png": "2", "test/dog/3.png": "3"}
NESTED = {"cat/case1/1.png": "1", "cat/case1/2.png": "2", "dog/case2/3.bmp": "3", "dog/4.bmp": "4"}

CASES = [
    pytest.param(HAM10000, "ham10000", ["nv", "nv", "mel"], id="ham10000"),
    pytest.param(MATEK19, "matek19", ["BAS", "EBO"], id="matek19"),
    pytest.param(MATEK19_BARE, "matek19", ["BAS", "EBO"], id="matek19 without annotations"),
    pytest.param(FOLDERS, "folders", ["cat", "dog"], id="folders"),
    pytest.param(SPLIT_FOLDERS, "folders", ["dog", "cat", "cat"], id="folders below train, val, test"),
    pytest.param(NESTED, "folders", ["cat", "cat", "dog", "dog"], id="nested folders"),
]


def write_folder(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def write_zip(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("kind", ["folder", "zip"])
@pytest.mark.parametrize(("files", "layout", "labels"), CASES)
def test_layouts(tmp_path, kind, files, layout, labels):
    source = write_folder(tmp_path / "d", files) if kind == "folder" else write_zip(tmp_path / "d.zip", files)
    assert detect(source) == layout

    manifest = prepare(source)

    assert manifest.label.tolist() == labels
    again = read_manifest(source)
    assert again.digest() == manifest.digest()
    assert detect(source) == "table"
    if kind == "folder":
        assert all((manifest.root / name).is_file() for name in manifest.image)
        assert not list(source.glob(".manifest*"))
    else:
        assert manifest.root == source
        assert default_table(source) == tmp_path / "d.csv"


def test_ham10000_keeps_lesion_and_source(tmp_path):
    manifest = prepare(write_folder(tmp_path, HAM10000))
    assert manifest.group.tolist() == ["HAM_1", "HAM_1", "HAM_2"]
    assert manifest.site.tolist() == ["vidir_modern", "vidir_modern", "rosendahl"]
    assert manifest.image[2] == "HAM10000_images_part_2/ISIC_3.jpg"


def test_ham10000_as_dataverse_exports_it(tmp_path):
    files = dict(HAM10000)
    files["HAM10000_metadata.tab"] = files.pop("HAM10000_metadata").replace(",", "\t")
    assert prepare(write_folder(tmp_path, files)).group.tolist() == ["HAM_1", "HAM_1", "HAM_2"]


def test_split_folders_decide_the_split(tmp_path):
    assert prepare(write_folder(tmp_path, SPLIT_FOLDERS)).split.tolist() == ["test", "train", "val"]


def test_out_in_a_folder_above(tmp_path):
    source = write_folder(tmp_path / "d", FOLDERS)
    manifest = prepare(source, tmp_path / "all.csv")
    assert manifest.root == tmp_path
    assert manifest.image[0] == "d/wrapper/cat/1.PNG"
    assert read_manifest(tmp_path / "all.csv").image.tolist() == manifest.image.tolist()
    assert not (source / "manifest.csv").exists()


def test_a_table_that_is_there_is_kept_unless_a_layout_is_named(tmp_path):
    source = write_folder(tmp_path, FOLDERS | {"manifest.csv": "image,label\nwrapper/cat/1.PNG,mine\n"})
    assert prepare(source).label.tolist() == ["mine"]
    with pytest.raises(DataError, match="leave --out away"):
        prepare(source, tmp_path / "other.csv")
    assert prepare(source, layout="folders").label.tolist() == ["cat", "dog"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"readme.txt": ""}, "does not look like ham10000 or matek19 or folders"),
        ({"1.png": "", "cat/2.png": ""}, "not clear which folders are the classes"),
        ({"site1/cat/1.png": "", "site2/cat/2.png": ""}, "not clear which folders are the classes"),
        (HAM10000 | {"HAM10000_metadata": "image_id,dx\nISIC_1,nv\n"}, "must have the columns"),
        ({**HAM10000, "HAM10000_metadata": "image_id,dx,lesion_id\nISIC_1,nv,1\nISIC_9,nv,2\n"}, "1 of 2 images"),
        ({**MATEK19, "annotations.dat": "BAS/BAS_0001.tiff\n"}, "annotations.dat must have"),
        ({"a/cat/1.png": "", "a/../2.png": ""}, "1 of 2 rows have an image path outside"),
    ],
)
def test_refusals(tmp_path, files, message):
    with pytest.raises(DataError, match=message) as raised:
        prepare(write_zip(tmp_path / "d.zip", files))
    assert "ISIC_" not in str(raised.value)
    assert not (tmp_path / "d.csv").exists()


@pytest.mark.parametrize("out", ["elsewhere/m.csv", "d/m.txt", "taken.csv"])
def test_out_must_be_where_the_images_can_be_reached(tmp_path, out):
    write_zip(tmp_path / "taken.zip", FOLDERS)
    with pytest.raises(DataError, match="--out"):
        prepare(write_folder(tmp_path / "d", FOLDERS), tmp_path / out)


def test_out_of_a_zip_must_lie_beside_it(tmp_path):
    with pytest.raises(DataError, match="beside it"):
        prepare(write_zip(tmp_path / "d.zip", FOLDERS), tmp_path / "other.csv")


def test_unknown_layout(tmp_path):
    with pytest.raises(DataError, match="use auto, ham10000"):
        prepare(write_folder(tmp_path, FOLDERS), layout="cifar")
