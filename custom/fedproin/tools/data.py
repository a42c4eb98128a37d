"""`fedproin data`: make a table from a published layout, check it, deal it, and free the space of decoded images."""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from fedproin.data import layouts
from fedproin.data.checks import CheckReport, check, refused, write_names
from fedproin.data.manifest import PARTS, Manifest, TableError, read_manifest
from fedproin.data.partition import Split
from fedproin.data.site_images import deal
from fedproin.errors import DataError, SettingsError
from fedproin.tools.jobs import load_job
from fedproin.tools.output import new_directory

IMAGES = "images"  # link to the folder of the images, beside the dealt tables


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `data` and its verbs; each sets `run`, a function of the parsed arguments that returns the exit code."""
    verbs = subparsers.add_parser("data", help="prepare and check images").add_subparsers(required=True, metavar="VERB")

    verb = verbs.add_parser("prepare", help="write the table of a data set in a published layout")
    verb.add_argument("source", type=Path, metavar="SOURCE", help="folder or ZIP; a ZIP is not extracted")
    verb.add_argument("--layout", choices=("auto", *layouts.LAYOUTS), default="auto")
    verb.add_argument("--out", type=Path, metavar="CSV", help="in the folder of the images or above it")
    verb.set_defaults(run=run_prepare)

    verb = verbs.add_parser("check", help="find missing and broken images, unknown labels and leaks")
    verb.add_argument("path", type=Path, metavar="PATH", help="table, folder or ZIP")
    verb.add_argument("--classes", type=_classes, metavar="A,B,C", help="the job's classes; default: the table's")
    verb.add_argument("--names", type=Path, metavar="FILE", help="write the names of the images in question to FILE")
    verb.set_defaults(run=run_check)

    verb = verbs.add_parser("deal", help="one table for each site of a rehearsal, as a simulation deals it")
    verb.add_argument("table", type=Path, metavar="TABLE", help="table, folder or ZIP")
    verb.add_argument("--job", type=Path, required=True, help="job folder: its settings say how")
    verb.add_argument("-n", "--sites", type=int, required=True, help="number of sites")
    verb.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder, for site-1.csv and so on")
    verb.set_defaults(run=run_deal)

    verb = verbs.add_parser("clear-cache", help="delete the decoded images of this user's simulations")
    verb.set_defaults(run=run_clear_cache)


def run_prepare(arguments: argparse.Namespace) -> int:
    """Write the table and say what is in it."""
    layout = layouts.detect(arguments.source) if arguments.layout == "auto" else arguments.layout
    manifest = layouts.prepare(arguments.source, arguments.out, arguments.layout)
    print(f"layout   {layout}")
    print(f"images   {len(manifest)} in {len(set(manifest.group.tolist()))} groups, {len(manifest.classes)} classes")
    if layout == layouts.TABLE:
        print("table    is there already, nothing written")
    else:
        print(f"table    {arguments.out or layouts.default_table(arguments.source)}")
    return 0


def run_check(arguments: argparse.Namespace) -> int:
    """Print the report; 1 if something must be mended."""
    try:
        report = check(read_manifest(arguments.path), arguments.classes)
    except TableError as error:
        report = refused(error)
    _print_report(report)
    if arguments.names:
        _write_names(report, arguments.names)
    elif any(problem.names for problem in report.problems):
        print("names    are not shown: --names FILE writes them to a file that only you can read")
    return int(report.failed)


def run_deal(arguments: argparse.Namespace) -> int:
    """Write the tables, with links to the images, and say what each site has."""
    if arguments.sites < 2:
        raise SettingsError("A federation needs at least 2 sites: give -n 2 or more.")
    settings, manifest = load_job(arguments.job), read_manifest(arguments.table)
    names = [f"site-{number}" for number in range(1, arguments.sites + 1)]
    split, owner, how = deal(settings, manifest, names)
    table = _dealt_table(manifest, split, settings.data.group == "table")
    tables = {name: table[owner == position] for position, name in enumerate(names)}
    with new_directory(arguments.out) as folder:
        for name, mine in tables.items():
            mine.to_csv(folder / f"{name}.csv", index=False)
        _link_images(manifest.root.resolve(), folder, names)
    print(f"dealt    {how}, {(owner >= 0).sum()} of {len(manifest)} images")
    for name, mine in tables.items():
        counts = [f"{(mine['split'] == kind).sum()} {kind}" for kind in PARTS]
        print(f"{name:8} {', '.join(counts)}   {arguments.out / name}.csv")
    return 0


def run_clear_cache(_: argparse.Namespace) -> int:
    """Delete this user's decoded images."""
    from fedproin.data import cache

    freed = cache.clear(cache.default_directory())
    print(f"freed {freed / 1e6:.1f} MB")
    return 0


def _dealt_table(manifest: Manifest, split: Split, by_group: bool) -> pd.DataFrame:
    """The rows as a site's table has them; without groups where these do not decide the split."""
    known = by_group & (manifest.group != manifest.image)
    prefix = "" if manifest.root.is_file() else f"{IMAGES}/"
    part = np.full(len(manifest), "", dtype=object)
    for name, rows in zip(PARTS, (split.train, split.val, split.test), strict=True):
        part[rows] = name
    image = [prefix + name for name in manifest.image.tolist()]
    group = np.where(known, manifest.group, "")
    return pd.DataFrame({"image": image, "label": manifest.label, "group": group, "split": part})


def _link_images(root: Path, folder: Path, names: list[str]) -> None:
    """Nothing is copied: a folder is linked once, a ZIP beside each table, under whose name it is looked for."""
    for link in [f"{name}.zip" for name in names] if root.is_file() else [IMAGES]:
        (folder / link).symlink_to(root)


def _classes(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _print_report(report: CheckReport) -> None:
    if report.images:
        print(f"images   {report.images} in {report.groups} groups")
        print("classes  " + ", ".join(f"{name or '(none)'} {count}" for name, count in report.per_class.items()))
    if report.per_site:
        print("sites    " + ", ".join(f"{name or '(none)'} {count}" for name, count in report.per_site.items()))
    for problem in report.problems:
        print(f"{problem.level:8} {problem.message}")
    if not report.problems:
        print("ok       nothing found that would hurt")


def _write_names(report: CheckReport, path: Path) -> None:
    try:
        write_names(report, path)
    except OSError as error:
        raise DataError("The file of --names cannot be written: choose another place.") from error
    print(f"names    {path} (only you can read it; delete it when done)")
