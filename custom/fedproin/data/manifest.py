"""The table of a site: which images there are, what they show, and which of them belong together.

Messages carry counts and class names only. Names of rows travel in `TableError.names`, for a local file.
"""

import hashlib
import io
import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedproin.errors import DataError

Strings = NDArray[np.str_]
Indices = NDArray[np.int64]

PARTS = ("train", "val", "test")
TABLE_NAMES = ("manifest.csv", "metadata.csv")
ALIASES = {
    "image": ("image", "file", "path", "filename"),
    "label": ("label", "dx"),
    "group": ("patient", "patient_id", "group", "lesion", "lesion_id"),  # the coarsest first: it protects best
    "site": ("site", "dataset"),
    "split": ("split",),
}
LEAVES_ROOT = r"^(?:/|[A-Za-z]:)|(?:^|/)\.\.(?:/|$)"
LONGEST_CELL = 1000
LARGEST_FILE = 2**30  # of a table or a picture inside a ZIP, which may say so in a few bytes
LARGEST_PICTURE = 2**26  # pixels; each takes some fifteen bytes while it is resized
READ_ERRORS = (
    *(OSError, KeyError, RuntimeError, EOFError, ValueError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)


class TableError(DataError):
    """The table is refused; `names` tells which rows, for a local file only, never for a message."""

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.names = tuple(names)


@dataclass(frozen=True, eq=False)
class Manifest:
    """N images of one site, as columns of N strings.

    Attributes:
        root: folder or ZIP that the paths in `image` are relative to.
        image: paths with forward slashes, each once.
        label: class names.
        group: patient or lesion; an image of which it is unknown is its own group.
        site: where the image comes from, empty where unknown; None if the table does not tell.
        split: train, val or test, empty where undecided; None if the table decides nothing.
    """

    root: Path
    image: Strings
    label: Strings
    group: Strings
    site: Strings | None = None
    split: Strings | None = None

    def __len__(self) -> int:
        return len(self.image)

    def take(self, index: Indices) -> "Manifest":
        """The rows at `index`, in that order."""
        site = None if self.site is None else self.site[index]
        split = None if self.split is None else self.split[index]
        return Manifest(self.root, self.image[index], self.label[index], self.group[index], site, split)

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels that occur, sorted."""
        return tuple(np.unique(self.label).tolist())

    def encode(self, classes: tuple[str, ...]) -> Indices:
        """Position of every label in `classes`, int64 [N].

        Raises:
            DataError: a label is not among `classes`.
        """
        names, inverse = np.unique(self.label, return_inverse=True)
        code = np.array([classes.index(name) if name in classes else -1 for name in names], dtype=np.int64)[inverse]
        unknown = [name for name in names.tolist() if name not in classes]
        if unknown:
            raise DataError(
                f"{(code < 0).sum()} of {len(self)} images have a label that is not among the job's classes "
                f"({listed(unknown)}): add it to `classes` in the settings or take these rows out of the table."
            )
        return code

    def table_digest(self) -> str:
        """SHA-256 of the table, the same wherever its images are."""
        return hashlib.sha256(json.dumps(self._columns()).encode()).hexdigest()

    def digest(self) -> str:
        """SHA-256 of the table, the place of its images, and size and time of each file (of the ZIP, if it is one)."""
        sha = hashlib.sha256(json.dumps([str(self.root.resolve()), *self._columns()]).encode())
        files = [self.root] if self.root.is_file() else [self.root / name for name in self.image.tolist()]
        for file in files:
            sha.update(_stamp(file))
        return sha.hexdigest()

    def _columns(self) -> list[list[str] | None]:
        columns = (self.image, self.label, self.group, self.site, self.split)
        return [None if column is None else column.tolist() for column in columns]


def read_manifest(path: Path) -> Manifest:
    """The table at `path`: a CSV file, a folder or a ZIP with a manifest.csv or metadata.csv.

    A CSV beside a ZIP of the same name describes the images in that ZIP, else those of its own folder.

    Raises:
        DataError: there is no table, or it cannot be used; the message says what to do.
    """
    content, root = _find_table(path)
    if content is None:
        raise DataError("The data has no table (manifest.csv or metadata.csv): run `fedproin data prepare` on it once.")
    return manifest_from(parse_table(content), root)


def has_table(path: Path) -> bool:
    """Whether `read_manifest` would find a table at `path`."""
    return _find_table(path)[0] is not None


def parse_table(content: bytes) -> pd.DataFrame:
    """A CSV as a frame of stripped strings, lower-case column names; commas, semicolons or tabs separate.

    Raises:
        DataError: it is not such a CSV.
    """
    header = content.split(b"\n", 1)[0].decode("latin-1")
    separator = max(",;\t", key=header.count)
    try:
        table = pd.read_csv(io.BytesIO(content), sep=separator, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (ValueError, pd.errors.ParserError) as error:
        raise DataError("The table is not a CSV that can be read: save it as CSV in UTF-8, with a header.") from error
    if not isinstance(table.index, pd.RangeIndex):
        raise DataError("The table has more fields in its rows than names in its header: correct the header.")
    table.columns = table.columns.str.strip().str.lower()
    table = table.loc[:, ~table.columns.duplicated()].fillna("")
    stripped = pd.DataFrame({name: table[name].str.strip() for name in table})
    if any((stripped[name].str.len() > LONGEST_CELL).any() for name in stripped):
        raise DataError(f"The table has a cell of more than {LONGEST_CELL} letters: correct its quotes.")
    return stripped


def manifest_from(table: pd.DataFrame, root: Path) -> Manifest:
    """A manifest from a frame of strings, after all refusals.

    Raises:
        DataError: a column is missing or a row cannot be used.
    """
    image, label = _required(table, "image"), _required(table, "label")
    if table.empty:
        raise DataError("The table has no rows: list at least one image.")
    image = image.str.replace("\\", "/").str.replace(r"^(?:\./)+", "", regex=True)
    _refuse(image == "", image, "have no image path: fill it in or take them out")
    _refuse(image.str.contains(LEAVES_ROOT), image, "have an image path outside of the data folder: make it relative")
    _refuse(image.duplicated(), image, "name an image that another row names too: keep one row an image")
    _refuse(label == "", image, "have no label: fill it in or take them out")
    group, site, split = (_optional(table, name) for name in ("group", "site", "split"))
    group = image if group is None else group.where(group != "", image)
    if split is not None:
        split = split.str.lower()
        _refuse(~split.isin([*PARTS, ""]), image, "have a split that is not train, val, test or empty: correct it")
        parts = split.where(split != "").groupby(group).transform("nunique")
        _refuse(parts > 1, image, "are of a patient or lesion that lies in two splits: choose one, or drop the column")
    return Manifest(root, *map(_strings, (image, label, group)), *map(_maybe_strings, (site, split)))


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """The ZIP at `path`, for reading.

    Raises:
        DataError: it is not a ZIP.
    """
    try:
        archive = zipfile.ZipFile(path)
    except READ_ERRORS as error:
        raise DataError(
            "The data is neither a folder nor a ZIP that can be read: copy or download it again."
        ) from error
    with archive:
        yield archive


@contextmanager
def open_images(manifest: Manifest) -> Iterator[Callable[[int], bytes]]:
    """A function that returns the bytes of the image in one row; a ZIP is opened once, nothing is extracted.

    Raises:
        DataError: the ZIP, or later an image, cannot be read.
    """
    if manifest.root.is_file():
        with open_archive(manifest.root) as archive:
            yield lambda index: _read(partial(read_member, archive), manifest.image[index].item())
    else:
        yield lambda index: _read(lambda name: (manifest.root / name).read_bytes(), manifest.image[index].item())


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """One file of a ZIP, unless it would unpack to more than any table or picture needs."""
    if archive.getinfo(name).file_size > LARGEST_FILE:
        raise ValueError("a file in the ZIP is too large")
    return archive.read(name)


def listed(names: Sequence[str], limit: int = 10) -> str:
    """The first names of a list, for a message; only for class names, never for files."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _find_table(path: Path) -> tuple[bytes | None, Path]:
    """The bytes of the table at `path` (None: there is none), and the root of its images."""
    try:
        return _locate(path.absolute())
    except READ_ERRORS as error:
        raise DataError("The data cannot be read: give the user who runs this the right to read it.") from error


def _locate(path: Path) -> tuple[bytes | None, Path]:
    if not path.exists():
        raise DataError("There is no data at the given path: check FEDPROIN_DATA, local/fedproin.json or `data.path`.")
    if path.is_dir():
        return next((file.read_bytes() for name in TABLE_NAMES if (file := path / name).is_file()), None), path
    if path.suffix.lower() != ".zip":
        archive = path.with_suffix(".zip")
        return path.read_bytes(), archive if archive.is_file() else path.parent
    with open_archive(path) as opened:
        inside = [name for name in TABLE_NAMES if name in opened.namelist()]
        if inside:
            return read_member(opened, inside[0]), path
    beside = path.with_suffix(".csv")
    return beside.read_bytes() if beside.is_file() else None, path


def _required(table: pd.DataFrame, name: str) -> pd.Series:
    for alias in ALIASES[name]:
        if alias in table:
            return table[alias]
    raise DataError(f"The table has no column for the {name}: name one of its columns {' or '.join(ALIASES[name])}.")


def _optional(table: pd.DataFrame, name: str) -> pd.Series | None:
    """The first column under one of the names that is not empty altogether."""
    return next((table[alias] for alias in ALIASES[name] if alias in table and (table[alias] != "").any()), None)


def _refuse(bad: pd.Series, image: pd.Series, what: str) -> None:
    if bad.any():
        names = [f"line {row + 2}: {image.iloc[row]}" for row in np.flatnonzero(bad)]
        raise TableError(f"{bad.sum()} of {len(bad)} rows {what}.", names)


def _strings(column: pd.Series) -> Strings:
    return column.to_numpy(dtype=np.str_)


def _maybe_strings(column: pd.Series | None) -> Strings | None:
    return None if column is None else _strings(column)


def _stamp(file: Path) -> bytes:
    try:
        status = file.stat()
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return b"missing\n"
    return f"{status.st_size} {status.st_mtime_ns}\n".encode()


def _read(fetch: Callable[[str], bytes], name: str) -> bytes:
    try:
        return fetch(name)
    except READ_ERRORS as error:
        raise DataError("An image cannot be read: run `fedproin data check` on this machine for its name.") from error
