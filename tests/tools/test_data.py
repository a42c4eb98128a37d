import argparse
import json
import stat
import zipfile
from dataclasses import asdict

import numpy as np
import pytest
import torch
from PIL import Image

from fedproin.data.location import Location
from fedproin.data.manifest import open_images, read_manifest
from fedproin.data.site_images import deal
from fedproin.errors import DataError, SettingsError, UserError
from fedproin.federation.local_engine import run_local
from fedproin.federation.opening import open_server
from fedproin.federation.site import Site
from fedproin.settings import load_settings
from fedproin.tensor_file import load_tensors
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


# deal

SITES = ["site-1", "site-2"]


@pytest.fixture
def table(tmp_path):
    """90 pictures, three of a patient, two classes, shuffled, in a folder or in a ZIP with its table beside it."""

    def make(kind="folder"):
        folder = tmp_path / "table" / "pictures"
        folder.mkdir(parents=True)
        rows = []
        for number in np.random.default_rng(0).permutation(90):
            name = f"{number}, {'a' if number % 2 else 'b'}.png"  # a comma, to be quoted
            shade = np.random.default_rng(number).integers(0, 255, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(shade).save(folder / name)
            rows.append(f'"pictures/{name}",{"mel" if number // 3 % 2 else "bcc"},p{number // 3}')
        csv = "image,label,patient\n" + "\n".join(rows)
        if kind == "folder":
            (folder.parent / "manifest.csv").write_text(csv)
            return folder.parent
        with zipfile.ZipFile(tmp_path / "table.zip", "w") as archive:
            for path in sorted(folder.iterdir()):
                archive.write(path, f"pictures/{path.name}")
        (tmp_path / "table.csv").write_text(csv)
        return tmp_path / f"table.{kind}"

    return make


@pytest.fixture
def job(tmp_path, make_settings):
    def make(**changes):
        path = tmp_path / "job" / "app" / "config" / "settings.json"
        path.parent.mkdir(parents=True)
        settings = make_settings(**changes)
        path.write_text(json.dumps(asdict(settings)))
        return path.parents[2]

    return make


def settings_of(job):
    return load_settings(job / "app" / "config" / "settings.json")


def pictures(manifest, rows=None):
    with open_images(manifest) as read:
        return [read(row) for row in (range(len(manifest)) if rows is None else rows)]


@pytest.mark.parametrize("kind", ["folder", "zip", "csv"])
@pytest.mark.parametrize("group", ["table", "none"])
def test_dealt_tables_are_the_simulations(table, job, tmp_path, capsys, kind, group):
    source, job = table(kind), job(data={"group": group}, partition={"kind": "iid"})
    assert run("deal", source, "--job", job, "-n", 2, "--out", tmp_path / "dealt") == 0
    manifest = read_manifest(source)
    split, owner, _ = deal(settings_of(job), manifest, SITES)
    part = {row: name for name in ("train", "val", "test") for row in getattr(split, name)}
    printed = capsys.readouterr().out
    assert "IID, 90 of 90 images" in printed
    for position, site in enumerate(SITES):
        rows = np.flatnonzero(owner == position)
        dealt = read_manifest(tmp_path / "dealt" / f"{site}.csv")
        assert pictures(dealt) == pictures(manifest, rows)
        assert dealt.label.tolist() == manifest.label[rows].tolist()
        assert dealt.split.tolist() == [part[row] for row in rows]
        assert (dealt.group.tolist() == manifest.group[rows].tolist()) == (group == "table")
        assert f"{site}   {(dealt.split == 'train').sum()} train, " in printed
    assert not any(path.is_dir() and not path.is_symlink() for path in (tmp_path / "dealt").iterdir())


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_sites_with_dealt_tables_end_with_the_simulations_bits(table, job, tmp_path, kind):
    """The same run twice: one table that a simulation deals, and a provisioned site for each dealt table."""
    source = table(kind)
    changes = {"classes": ["mel", "bcc"], "path": str(source)}
    job = job(data=changes, federation={"rounds": 2, "participation": 1.0}, training={"augmentation": "adaptive"})
    run("deal", source, "--job", job, "-n", 2, "--out", tmp_path / "dealt")
    settings = settings_of(job)
    simulated = run_local(settings, 2, tmp_path / "simulated", lambda line: None)

    def location(site):
        return Location(tmp_path / "dealt" / f"{site}.csv", tmp_path / "real" / site / "cache", simulated=False)

    members = {site: Site(site, settings, location(site), tmp_path / "real" / site) for site in SITES}
    server = open_server(settings, SITES, None, tmp_path / "real" / "server", lambda line: None)

    def exchange(task, targets):
        for site in targets:
            server.accept(site, members[site].run(task))
        return {}

    real = server.run(exchange)
    assert (real.last, real.best) == (simulated.last, simulated.best)
    assert (real.partition, simulated.partition) == ("", "Dirichlet 0.5")
    one, other = (
        load_tensors(folder / "last_model.safetensors")[0]
        for folder in (tmp_path / "simulated" / "fedproin", tmp_path / "real" / "server")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_what_cannot_be_dealt_leaves_nothing(table, job, tmp_path):
    source, job, out = table(), job(), tmp_path / "dealt"
    with pytest.raises(SettingsError, match="at least 2 sites"):
        run("deal", source, "--job", job, "-n", 1, "--out", out)
    with pytest.raises(SettingsError, match="groups"):
        run("deal", source, "--job", job, "-n", 80, "--out", out)
    with pytest.raises(SettingsError, match=r"settings\.json"):
        run("deal", source, "--job", tmp_path, "-n", 2, "--out", out)
    with pytest.raises(DataError, match="no data"):
        run("deal", tmp_path / "absent", "--job", job, "-n", 2, "--out", out)
    with pytest.raises(UserError, match="not empty"):
        run("deal", source, "--job", job, "-n", 2, "--out", source)
    assert not out.exists()
    assert not any(path.name.startswith(".dealt") for path in tmp_path.iterdir())
