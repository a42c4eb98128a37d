import argparse
import stat

import pytest
from PIL import Image

from fedproin.errors import DataError
from fedproin.tools import data


def run(*words: object) -> int:
    parser = argparse.ArgumentParser()
    data.add_parser(parser.add_subparsers(required=True))
    arguments = parser.parse_args(["data", *map(str, words)])
    return arguments.run(arguments)


@pytest.fixture
def folders(tmp_path):
    for number in range(8):
        path = tmp_path / "d" / ("cat" if number % 2 else "dog") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(path)
    return tmp_path / "d"


def test_prepare_says_what_it_took(folders, capsys):
    assert run("prepare", folders) == 0
    printed = capsys.readouterr().out
    assert "layout   folders" in printed
    assert "8 in 8 groups, 2 classes" in printed
    assert str(folders / "manifest.csv") in printed
    assert run("prepare", folders) == 0
    assert "nothing written" in capsys.readouterr().out
    out = folders.parent / "all.csv"
    assert run("prepare", folders, "--layout", "folders", "--out", out) == 0
    assert str(out) in capsys.readouterr().out


def test_check_passes_with_a_warning(folders, capsys):
    run("prepare", folders)
    assert run("check", folders, "--classes", "cat, dog") == 0
    printed = capsys.readouterr().out
    assert "classes  cat 4, dog 4" in printed
    assert "warn     Every image is its own group" in printed


def test_check_fails_and_keeps_names_to_itself(folders, capsys, tmp_path):
    run("prepare", folders)
    (folders / "cat" / "1.png").unlink()
    assert run("check", folders) == 1
    printed = capsys.readouterr().out
    assert "fail     1 of 8 images are missing" in printed
    assert "1.png" not in printed
    assert "--names FILE" in printed

    names = tmp_path / "names.txt"
    assert run("check", folders, "--names", names) == 1
    assert names.read_text() == "missing\tcat/1.png\n"
    assert stat.S_IMODE(names.stat().st_mode) == 0o600
    with pytest.raises(DataError, match="--names"):
        run("check", folders, "--names", tmp_path / "absent" / "names.txt")


def test_check_of_a_refused_table_gives_its_rows(folders, capsys, tmp_path):
    (folders / "manifest.csv").write_text("image,label\ncat/1.png,cat\ncat/3.png,\n")
    assert run("check", folders, "--names", tmp_path / "names.txt") == 1
    assert "fail     1 of 2 rows have no label" in capsys.readouterr().out
    assert (tmp_path / "names.txt").read_text() == "table\tline 3: cat/3.png\n"


def test_clear_cache(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("FEDPROIN_CACHE", str(tmp_path))
    (tmp_path / "images-0.npy").write_bytes(bytes(2_500_000))
    assert run("clear-cache") == 0
    assert not (tmp_path / "images-0.npy").exists()
    assert "freed 2.5 MB" in capsys.readouterr().out
