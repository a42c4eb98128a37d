"""Tables from the layouts in which data sets are published: HAM10000, Matek-19, and a folder per class."""

import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pandas as pd

from fedproin.data.manifest import (
    Manifest,
    has_table,
    manifest_from,
    open_archive,
    parse_table,
    read_manifest,
    read_member,
)
from fedproin.errors import DataError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
MATEK19_CLASSES = "BAS|EBO|EOS|KSC|LYA|LYT|MMZ|MOB|MON|MYB|MYO|NGB|NGS|PMB|PMO"
SPLIT_FOLDERS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
TABLE = "table"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tree:
    """The files below a folder or in a ZIP.

    Attributes:
        root: the folder or ZIP.
        names: sorted paths in `root`, with forward slashes, without hidden files.
    """

    root: Path
    names: tuple[str, ...]

    @property
    def images(self) -> list[str]:
        """The names that end like an image."""
        return [name for name in self.names if name.lower().endswith(IMAGE_SUFFIXES)]

    def find(self, pattern: str) -> bytes | None:
        """Content of the first file whose last name matches `pattern`, upper or lower case; None if there is none."""
        found = (name for name in self.names if re.fullmatch(pattern, PurePosixPath(name).name, re.IGNORECASE))
        name = next(found, None)
        if name is None or self.root.is_dir():
            return None if name is None else (self.root / name).read_bytes()
        with open_archive(self.root) as archive:
            return read_member(archive, name)


def ham10000(tree: Tree) -> pd.DataFrame | None:
    """HAM10000 as its authors publish it: HAM10000_metadata and `<image_id>.jpg` in any folders."""
    content = tree.find(r"HAM10000_metadata(\.csv|\.tab|\.txt)?")
    if content is None:
        return None
    metadata = parse_table(content)
    if not {"image_id", "lesion_id", "dx"} <= set(metadata):
        raise DataError("HAM10000_metadata must have the columns image_id, lesion_id and dx: download it again.")
    columns = {"label": metadata["dx"], "lesion": metadata["lesion_id"]}
    if "dataset" in metadata:
        columns["site"] = metadata["dataset"]
    return _with_images(tree, metadata["image_id"], columns, parents=0)


def matek19(tree: Tree) -> pd.DataFrame | None:
    """Matek-19 (AML-Cytomorphology_LMU): `BAS/BAS_0001.tiff` and so on, with annotations.dat or without."""
    pattern = rf"(?:.*/)?({MATEK19_CLASSES})/\1_\d+\.\w+"
    images = [name for name in tree.images if re.fullmatch(pattern, name)]
    if not images:
        return None
    content = tree.find(r"annotations\.dat")
    if content is None:
        return pd.DataFrame({"image": images, "label": [PurePosixPath(name).parent.name for name in images]})
    rows = [line.split()[:2] for line in content.decode("latin-1").splitlines() if line.strip()]
    if any(len(row) < 2 for row in rows):
        raise DataError("annotations.dat must have a path and a class in every line: download it again.")
    annotations = pd.DataFrame(rows, columns=["image", "label"])
    return _with_images(tree, annotations["image"], {"label": annotations["label"]}, parents=1)


def folders(tree: Tree) -> pd.DataFrame | None:
    """A folder per class, possibly below train, val and test, or with one more level of folders inside a class."""
    images = tree.images
    if not images:
        return None
    parents = [PurePosixPath(name).parts[:-1] for name in images]
    while min(map(len, parents)) > 1 and len({parent[0] for parent in parents}) == 1:
        parents = [parent[1:] for parent in parents]
    if all(len(parent) == 2 and parent[0].lower() in SPLIT_FOLDERS for parent in parents):
        split = [SPLIT_FOLDERS[parent[0].lower()] for parent in parents]
        return pd.DataFrame({"image": images, "label": [parent[1] for parent in parents], "split": split})
    nested = {(parent[0], parent[-1]) for parent in parents if len(parent) == 2}
    ambiguous = len(nested) > len({inner for _, inner in nested})  # site/class/image would look like class/lesion/image
    if ambiguous or not all(1 <= len(parent) <= 2 for parent in parents):
        raise DataError(
            "It is not clear which folders are the classes: put the images of each class into one folder, "
            "or write a manifest.csv with the columns image and label."
        )
    return pd.DataFrame({"image": images, "label": [parent[0] for parent in parents]})


LAYOUTS: dict[str, Callable[[Tree], pd.DataFrame | None]] = {
    "ham10000": ham10000,
    "matek19": matek19,
    "folders": folders,
}


def prepare(source: Path, out: Path | None = None, layout: str = "auto") -> Manifest:
    """Write the table of the data at `source` and return what `read_manifest` will read.

    Data that has a table already is only read, unless `layout` names one of LAYOUTS.

    Args:
        source: folder or ZIP; nothing is extracted.
        out: the CSV, in `source` or a folder above it; by default that of `default_table`. It is replaced.
        layout: `auto`, or one of LAYOUTS.

    Raises:
        DataError: the layout is not recognised, an image is missing, or the table cannot be written.
    """
    source = source.absolute()
    if has_table(source) and layout == "auto":
        if out is not None:
            raise DataError("The data has a table already: leave --out away, or name its --layout to make a new one.")
        logger.info("layout: %s", TABLE)
        return read_manifest(source)
    name, table = _recognise(_list_files(source), layout)
    logger.info("layout: %s", name)
    path = (out or default_table(source)).absolute()
    root, prefix = _place(source, path)
    table["image"] = prefix + table["image"]
    manifest = manifest_from(table, root)
    _write(table, path)
    return manifest


def detect(source: Path) -> str:
    """The layout that `prepare` takes: `table` for data that has one already, or one of LAYOUTS.

    Raises:
        DataError: the layout is not recognised.
    """
    source = source.absolute()
    return TABLE if has_table(source) else _recognise(_list_files(source), "auto")[0]


def default_table(source: Path) -> Path:
    """Where the table of `source` belongs: manifest.csv in the folder, NAME.csv beside NAME.zip."""
    return source / "manifest.csv" if source.is_dir() else source.with_suffix(".csv")


def _list_files(source: Path) -> Tree:
    if source.is_dir():
        names = [path.relative_to(source).as_posix() for path in _walk(source)]
    else:
        with open_archive(source) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
    visible = (name for name in names if not re.search(r"(?:^|/)(?:\.[^./]|__MACOSX/)", name))
    return Tree(source, tuple(sorted(visible)))


def _walk(source: Path) -> Iterator[Path]:
    """All files below a folder, also behind links; each folder once, since links may lead back."""
    seen = {source.resolve()}
    for folder, below, files in os.walk(source, followlinks=True):
        yield from (Path(folder, name) for name in files)
        real = {name: Path(folder, name).resolve() for name in sorted(below)}
        below[:] = {path: name for name, path in reversed(real.items()) if path not in seen}.values()
        seen.update(real.values())


def _recognise(tree: Tree, layout: str) -> tuple[str, pd.DataFrame]:
    candidates = LAYOUTS if layout == "auto" else {name: read for name, read in LAYOUTS.items() if name == layout}
    if not candidates:
        raise DataError(f"There is no layout of that name: use auto, {', '.join(LAYOUTS)}.")
    for name, read in candidates.items():
        table = read(tree)
        if table is not None:
            return name, table
    raise DataError(
        f"The data does not look like {' or '.join(candidates)}: see the README for the layouts, "
        "or write a manifest.csv with the columns image and label."
    )


def _with_images(tree: Tree, wanted: pd.Series, columns: dict[str, pd.Series], parents: int) -> pd.DataFrame:
    """A table whose images are found by their name without suffix, and `parents` folders before it."""

    def key(name: str) -> tuple[str, ...]:
        path = PurePosixPath(name)
        return *path.parts[-1 - parents : -1], path.stem

    found = {key(name): name for name in reversed(tree.images)}  # some copies hold a folder twice: the first counts
    image = [found.get(key(name)) for name in wanted]
    missing = image.count(None)
    if missing:
        raise DataError(
            f"{missing} of {len(image)} images that the published table lists are not there: "
            "put all image folders into the folder or ZIP with the table."
        )
    return pd.DataFrame({"image": image, **columns})


def _place(source: Path, path: Path) -> tuple[Path, str]:
    """Root of the images for the table at `path`, and what comes before their names in `source`."""
    if not source.is_dir():
        if path != source.with_suffix(".csv"):
            raise DataError("The table of a ZIP must lie beside it and have its name with .csv: leave --out away.")
        return source, ""
    if path.suffix.lower() != ".csv" or not source.is_relative_to(path.parent):
        raise DataError("--out must be a .csv file in the folder of the images or in a folder above it.")
    if path.with_suffix(".zip").is_file():
        raise DataError(
            "There is a ZIP with the name of the table, and it would be read instead: choose another --out."
        )
    prefix = source.relative_to(path.parent).as_posix()
    return path.parent, "" if prefix == "." else f"{prefix}/"


def _write(table: pd.DataFrame, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        table.to_csv(temporary, index=False)
        temporary.replace(path)
    except (OSError, UnicodeError) as error:
        raise DataError("The table cannot be written there: get the right to write, or give another --out.") from error
    finally:
        temporary.unlink(missing_ok=True)
