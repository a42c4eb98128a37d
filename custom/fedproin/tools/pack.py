"""`fedproin pack`: from a job folder, what hospitals review and what is submitted."""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from fedproin.errors import UserError
from fedproin.federation.identity import (
    PACKAGE,
    PACKAGE_FILE,
    Identity,
    code_files,
    code_hash,
    identify,
)
from fedproin.settings import Settings, parse
from fedproin.tools.jobs import CONFIG, SETTINGS, add_set_option, apply_changes, load_job
from fedproin.tools.output import new_directory
from fedproin.tools.review import REVIEW, Review, method_options

CUSTOM = Path("app", "custom")
MANIFEST = "MANIFEST.sha256"
ALLOW_LIST = "class_allow_list.json"
BUILD_FILES = ("pyproject.toml", "README.md", "LICENSE")
EPOCH = "315532800"  # the first second that a ZIP can tell, as the time of all files of a wheel


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = subparsers.add_parser("pack", help="make what hospitals review and what is submitted")
    parser.add_argument("job", type=Path, metavar="JOB", help="job folder, such as jobs/fedproin")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    parser.add_argument(
        "--preinstalled", action="store_true", help="leave the code out of the job, and build the wheel for the sites"
    )
    add_set_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Pack, and say what the coordinator passes on."""
    review = pack(arguments.job.resolve(), arguments.out.resolve(), arguments.preinstalled, arguments.changes)
    manifest = (arguments.out / MANIFEST).read_bytes()
    print(f"job      {arguments.out / review.job}   (nvflare job submit -j {arguments.out / review.job})")
    print(f"package  fedproin {review.identity}, {f'wheel/{review.wheel}' if review.wheel else 'in the job'}")
    print(f"review   {arguments.out / REVIEW}: {len(manifest.splitlines())} files in {MANIFEST}, whose SHA-256 is")
    print(f"         {hashlib.sha256(manifest).hexdigest()}")
    for note in review.notes:
        print(f"note     {note}")
    return 0


def pack(job: Path, out: Path, preinstalled: bool, changes: Sequence[str] = ()) -> Review:
    """Write the new folder `out`: the job, its code or wheel, REVIEW.md and MANIFEST.sha256; all of it, or nothing.

    Raises:
        UserError: the job, its changed settings or its method's options are not valid, or something cannot be written.
    """
    _require_job(job)
    if out.is_relative_to(job):
        raise UserError("--out lies in the job folder: choose a place outside of it.")
    with new_directory(out) as folder:
        packed = folder / job.name
        _copy(job, _job_files(job), packed)
        settings = _change(packed, changes)
        options = method_options(settings)
        if preinstalled:
            identity, wheel = _build_wheel(folder / "wheel")
            _write_json(folder / ALLOW_LIST, {"class_allow_list": ["fedproin."]})
        else:
            identity, wheel = _copy_code(packed / CUSTOM / "fedproin"), ""
        _write_json(packed / CONFIG / PACKAGE_FILE, asdict(identity))
        review = Review(job.name, settings, options, identity, wheel)
        (folder / REVIEW).write_text(review.page(), encoding="utf-8")
        _write_manifest(folder)
    return review


def _require_job(job: Path) -> None:
    if not (job / "meta.json").is_file() or not (job / SETTINGS).is_file():
        raise UserError("There is no job in this folder: name one with meta.json and app/config, as jobs/fedproin has.")
    brought = [path for path in (job / CUSTOM).rglob("*") if path.is_file() and path.name != "README.md"]
    if any("__pycache__" not in path.parts for path in brought):
        raise UserError("The job has files of its own in app/custom: a job is settings, so pack one that has none.")


def _job_files(job: Path) -> list[str]:
    """All but hidden files and app/custom, which `pack` makes anew or leaves away."""
    files = (path.relative_to(job) for path in job.rglob("*") if path.is_file())
    return [path.as_posix() for path in files if path.parts[:2] != CUSTOM.parts and not _is_hidden(path)]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _copy(source: Path, names: Iterable[str], target: Path) -> None:
    """Copy files with the same rights everywhere: a wheel records them."""
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)
        (target / name).chmod(0o644)


def _copy_code(target: Path) -> Identity:
    _copy(PACKAGE, [*code_files(PACKAGE), "py.typed"], target)
    return identify(target)


def _change(job: Path, changes: Sequence[str]) -> Settings:
    settings = load_job(job)
    if changes:
        values = json.loads((job / SETTINGS).read_bytes())
        apply_changes(values, changes)
        settings = parse(Settings, values)
        _write_json(job / SETTINGS, values)
    return settings


def _build_wheel(target: Path) -> tuple[Identity, str]:
    """Build the wheel of the running code into the folder `target`; what is in it, and its file name."""
    root = PACKAGE.parents[1]
    if not all((root / name).is_file() for name in BUILD_FILES):
        raise UserError(
            "The wheel is built from the source tree, and the package that runs here is a copy without one: "
            "run `fedproin pack` in the environment that `make setup` makes in a clone."
        )
    with TemporaryDirectory() as temporary:
        source = Path(temporary) / "source"
        _copy(root, BUILD_FILES, source)  # a copy: setuptools would take what an earlier build has left in the tree
        identity = _copy_code(source / "custom" / "fedproin")
        _run_pip(source, target)
        [wheel] = target.glob("*.whl")
        with ZipFile(wheel) as archive:
            archive.extractall(Path(temporary) / "wheel")
        if code_hash(Path(temporary) / "wheel" / "fedproin") != identity.hash:
            raise UserError("The wheel would not hold the code that runs here: see tool.setuptools in pyproject.toml.")
    return identity, wheel.name


def _run_pip(source: Path, target: Path) -> None:
    """`pip wheel` without a network: with the setuptools of this environment."""
    flags = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *flags, "--wheel-dir", str(target), str(source)],
        env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH},
        umask=0o022,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise UserError(f"The wheel was not built ({reason[0]}): `pip install 'setuptools>=77'`, then pack again.")


def _write_manifest(folder: Path) -> None:
    """SHA-256 of every file, as `sha256sum --check` reads it."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / MANIFEST).write_text("".join(lines), encoding="utf-8")


def _write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
