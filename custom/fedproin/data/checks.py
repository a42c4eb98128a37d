"""What would hurt later, found before training: counts in the messages, names of images only for a local file."""

import hashlib
import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedproin.data.manifest import (
    LARGEST_PICTURE,
    PARTS,
    Manifest,
    Strings,
    TableError,
    listed,
    open_archive,
    open_images,
)
from fedproin.errors import DataError

FEWEST_GROUPS = 3  # one for each part of the split
THREADS = 4


@dataclass(frozen=True)
class Problem:
    """One finding.

    Attributes:
        code: short name of the kind of problem.
        level: `fail` must be mended before training, `warn` should be looked at.
        message: a sentence with counts and class names, safe to send.
        names: images or groups; only for a local file.
    """

    code: str
    level: Literal["warn", "fail"]
    message: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckReport:
    """Counts of a table and what is wrong with it; `per_class` and `per_site` count images."""

    images: int
    groups: int
    per_class: dict[str, int]
    per_site: dict[str, int]
    problems: tuple[Problem, ...]

    @property
    def failed(self) -> bool:
        """Whether a problem must be mended before training."""
        return any(problem.level == "fail" for problem in self.problems)


def check(manifest: Manifest, classes: tuple[str, ...] | None = None) -> CheckReport:
    """Read and decode every image, and look for what the table gets wrong.

    Args:
        manifest: the site's table.
        classes: the job's classes; by default the table's own.
    """
    per_class = dict.fromkeys(classes or (), 0) | _counts(manifest.label)
    problems = (*_image_problems(manifest), *_table_problems(manifest, classes or manifest.classes))
    per_site = {} if manifest.site is None else _counts(manifest.site)
    return CheckReport(len(manifest), len(np.unique(manifest.group)), per_class, per_site, problems)


def refused(error: TableError) -> CheckReport:
    """The report on a table that `read_manifest` refuses."""
    return CheckReport(0, 0, {}, {}, (Problem("table", "fail", str(error), error.names),))


def write_names(report: CheckReport, path: Path) -> None:
    """Write `code<TAB>name` lines to a file that only its owner can read; an existing file is replaced."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{problem.code}\t{name}\n" for problem in report.problems for name in problem.names)


def groups_in_two_parts(group: Strings, part: NDArray[np.generic]) -> Strings:
    """The groups, sorted, whose images lie in more than one part; `group` and `part` are [N]."""
    names, group_code = np.unique(group, return_inverse=True)
    part_code = np.unique(part, return_inverse=True)[1]
    pairs = np.unique(np.stack([group_code, part_code]), axis=1)
    return names[np.bincount(pairs[0], minlength=len(names)) > 1]


def _counts(values: Strings) -> dict[str, int]:
    names, counts = np.unique(values, return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def _image_problems(manifest: Manifest) -> Iterator[Problem]:
    missing = _missing(manifest)
    if missing.any():
        message = f"{missing.sum()} of {len(manifest)} images are missing: copy them or take their rows out."
        yield Problem("missing", "fail", message, _names(manifest.image[missing]))
    digest = _digests(manifest, np.flatnonzero(~missing))
    broken = (digest == "") & ~missing
    if broken.any():
        message = f"{broken.sum()} of {len(manifest)} images cannot be decoded: copy them again or take their rows out."
        yield Problem("unreadable", "fail", message, _names(manifest.image[broken]))
    yield from _copies(manifest.take(np.flatnonzero(digest != "")), digest[digest != ""])


def _copies(manifest: Manifest, digest: Strings) -> Iterator[Problem]:
    """Images with the same bytes in different groups: they could be trained on and tested on."""
    order = np.argsort(digest, kind="stable")
    copied = np.isin(digest[order], groups_in_two_parts(digest, manifest.group))
    if copied.any():
        message = (
            f"{copied.sum()} images have an exact copy in another group (patient or lesion): "
            "give the copies one group, or keep one of them."
        )
        yield Problem("copies", "warn", message, _names(manifest.image[order][copied]))


def _table_problems(manifest: Manifest, classes: tuple[str, ...]) -> Iterator[Problem]:
    unknown = ~np.isin(manifest.label, classes)
    if unknown.any():
        message = (
            f"{unknown.sum()} of {len(manifest)} images have a label that is not among the job's classes "
            f"({listed(np.unique(manifest.label[unknown]).tolist())}): correct it or take them out."
        )
        yield Problem("labels", "fail", message, _names(manifest.image[unknown]))
    yield from _split_problems(manifest)
    yield from _group_problems(manifest, classes)


def _split_problems(manifest: Manifest) -> Iterator[Problem]:
    if manifest.split is None:
        return
    decided = manifest.split != ""
    divided = groups_in_two_parts(manifest.group[decided], manifest.split[decided])
    if len(divided):
        message = f"{len(divided)} groups (patients or lesions) lie in more than one split: put each into one."
        yield Problem("divided", "fail", message, _names(divided))
    absent = [part for part in PARTS if part not in manifest.split]
    if absent and decided.all():
        message = f"The column `split` has no image for {' and '.join(absent)}: the job draws what is left empty."
        yield Problem("parts", "warn", message)


def _group_problems(manifest: Manifest, classes: tuple[str, ...]) -> Iterator[Problem]:
    if len(np.unique(manifest.group)) == len(manifest):
        message = "Every image is its own group: if patients or lesions have several images, add a column `patient`."
        yield Problem("groups", "warn", message)
    few = [name for name in classes if len(np.unique(manifest.group[manifest.label == name])) < FEWEST_GROUPS]
    if few:
        message = (
            f"{len(few)} of {len(classes)} classes have fewer than {FEWEST_GROUPS} groups ({listed(few)}): "
            "they cannot be trained, validated and tested here."
        )
        yield Problem("few", "warn", message)


def _missing(manifest: Manifest) -> NDArray[np.bool_]:
    if manifest.root.is_file():
        with open_archive(manifest.root) as archive:
            return ~np.isin(manifest.image, archive.namelist())
    return np.array([not (manifest.root / name).is_file() for name in manifest.image.tolist()], dtype=bool)


def _digests(manifest: Manifest, rows: NDArray[np.int64]) -> Strings:
    """SHA-256 of every image at `rows`, empty where it cannot be decoded and everywhere else, [N]."""
    digest = np.zeros(len(manifest), dtype="<U64")
    with open_images(manifest) as read, ThreadPoolExecutor(THREADS) as pool:

        def decode(row: int) -> str:
            try:
                content = read(row)
            except DataError:
                return ""
            return hashlib.sha256(content).hexdigest() if _decodes(content) else ""

        digest[rows] = list(pool.map(decode, rows.tolist()))
    return digest


def _decodes(content: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.verify()
            if image.width * image.height > LARGEST_PICTURE:
                return False
        with Image.open(io.BytesIO(content)) as image:  # `verify` leaves an image that cannot be loaded
            image.load()
    except Exception:  # Pillow's plug-ins raise many types on broken files
        return False
    return True


def _names(values: Strings) -> tuple[str, ...]:
    return tuple(values.tolist())
