import io
import stat
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedproin.data.checks import check, groups_in_two_parts, write_names
from fedproin.data.manifest import Manifest, read_manifest


def picture(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def write_data(folder: Path, rows: list[str], pictures: dict[str, bytes]) -> Manifest:
    for name, content in pictures.items():
        (folder / name).write_bytes(content)
    (folder / "manifest.csv").write_text("\n".join(["image,label,patient,site", *rows]))
    return read_manifest(folder)


@pytest.fixture
def clean(tmp_path):
    rows = [
        f"{number}.png,{'nv' if number % 2 else 'mel'},P{number // 2 % 4 + number % 2 * 4},s" for number in range(16)
    ]
    return write_data(tmp_path, rows, {f"{number}.png": picture(number) for number in range(16)})


def codes(report) -> dict[str, str]:
    return {problem.code: problem.level for problem in report.problems}


def test_clean_data(clean):
    report = check(clean, ("mel", "nv"))
    assert report.problems == ()
    assert not report.failed
    assert (report.images, report.groups) == (16, 8)
    assert report.per_class == {"mel": 8, "nv": 8}
    assert report.per_site == {"s": 16}


def test_missing_broken_and_unknown(clean):
    (clean.root / "0.png").unlink()
    (clean.root / "1.png").write_bytes(picture(1)[:-20])
    (clean.root / "2.png").write_text("no image")
    report = check(clean, ("bkl", "mel"))

    by_code = {problem.code: problem for problem in report.problems}
    assert codes(report) == {"missing": "fail", "unreadable": "fail", "labels": "fail", "few": "warn"}
    assert by_code["missing"].names == ("0.png",)
    assert by_code["unreadable"].names == ("1.png", "2.png")
    assert "8 of 16 images" in by_code["labels"].message
    assert "(nv)" in by_code["labels"].message
    assert "(bkl)" in by_code["few"].message
    assert report.per_class == {"bkl": 0, "mel": 8, "nv": 8}
    assert not any(".png" in problem.message for problem in report.problems)


def test_copies_in_different_groups(clean):
    (clean.root / "0.png").write_bytes(picture(9))  # 0 and 9: different patients
    (clean.root / "8.png").write_bytes((clean.root / "10.png").read_bytes())  # 8 and 10: different patients
    (clean.root / "7.png").write_bytes((clean.root / "15.png").read_bytes())  # 7 and 15: one patient
    (problem,) = check(clean).problems
    assert (problem.code, problem.level) == ("copies", "warn")
    assert sorted(problem.names) == ["0.png", "10.png", "8.png", "9.png"]
    assert problem.message.startswith("4 images")


def test_split_and_groups(clean):
    split = np.where(clean.image == "0.png", "train", "test")
    alone = Manifest(clean.root, clean.image, clean.label, clean.image, None, None)
    divided = Manifest(clean.root, clean.image, clean.label, clean.group, None, split)
    assert codes(check(alone)) == {"groups": "warn"}
    report = check(divided)
    assert codes(report) == {"divided": "fail", "parts": "warn"}
    assert report.problems[0].names == ("P0",)
    assert report.per_site == {}


def test_groups_in_two_parts():
    group, part = np.array(["b", "a", "b", "a", "c"]), np.array([0, 1, 2, 1, 0])
    assert groups_in_two_parts(group, part).tolist() == ["b"]
    assert groups_in_two_parts(group[:0], part[:0]).tolist() == []


def test_names_go_into_a_private_file(clean, tmp_path):
    (clean.root / "0.png").unlink()
    path = tmp_path / "names.txt"
    path.write_text("old")
    path.chmod(0o644)
    write_names(check(clean), path)
    assert path.read_text() == "missing\t0.png\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
