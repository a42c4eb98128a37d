"""Where a verb writes: all of its files appear at once, or none."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from fedproin.errors import UserError


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A folder to fill, beside `path`; it gets that name when the block ends, and vanishes when it raises.

    Raises:
        UserError: there is something at `path` already, or it cannot be written.
    """
    path = path.resolve()
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError("The folder of --out is there already and not empty: name a new one.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as temporary:
            folder = Path(temporary) / path.name
            folder.mkdir()
            yield folder
            folder.replace(path)
    except OSError as error:
        raise UserError(f"The folder of --out cannot be written ({error.strerror}): choose another place.") from error
