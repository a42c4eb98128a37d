"""Which copy of the package runs: an installed one silently wins over the one that a job brings."""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import fedproin
from fedproin.errors import NOT_JSON, UserError

PACKAGE = Path(fedproin.__file__).parent
PACKAGE_FILE = "package.json"  # in a packed job, beside its settings.json


@dataclass(frozen=True)
class Identity:
    """Version and code hash of a copy of the package; as text such as `0.1.0+3f9a1c2b7d04`."""

    version: str
    hash: str

    def __str__(self) -> str:
        return f"{self.version}+{self.hash[:12]}"


@cache
def running_identity() -> Identity:
    """Version and code hash of the running package."""
    return identify(PACKAGE)


def package_identity() -> str:
    """The same as text, such as `0.1.0+3f9a1c2b7d04`."""
    return str(running_identity())


def identify(package: Path) -> Identity:
    """Of a copy of the running package, at another place."""
    return Identity(installed_version("fedproin"), code_hash(package))


def code_files(package: Path) -> list[str]:
    """Relative paths of all Python files below the folder, sorted; hidden ones, such as an editor's, are left out."""
    names = sorted(path.relative_to(package).as_posix() for path in package.rglob("*.py"))
    return [name for name in names if not name.startswith(".") and "/." not in name]


def code_hash(package: Path) -> str:
    """SHA-256 over names and contents of all Python files below the folder.

    Neither the folder's place matters, nor what else is in it, nor the ends of lines that a checkout has chosen.
    """
    digest = hashlib.sha256()
    for name in code_files(package):
        content = (package / name).read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def installed_version(package: str) -> str:
    """Version by the package's metadata, without importing it; `uninstalled` if it has none, as a job's own copy."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "uninstalled"


def packed_identity(config_directory: Path) -> Identity | None:
    """The package that a job was packed with; none for a job folder that was not packed.

    Raises:
        UserError: the job says it in a way that cannot be read.
    """
    path = config_directory / PACKAGE_FILE
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_bytes())
        return Identity(str(values["version"]), str(values["hash"]))
    except (OSError, *NOT_JSON, KeyError, TypeError):
        raise UserError(f"The job's {PACKAGE_FILE} is damaged: ask the coordinator to pack the job again.") from None


def require_same_package(config_directory: Path) -> None:
    """Refuse a job that was packed with other code than the code that runs here.

    Args:
        config_directory: the job's `app/config`.

    Raises:
        UserError: the code differs; a job that was not packed is not checked.
    """
    packed = packed_identity(config_directory)
    if packed is not None and packed.hash != running_identity().hash:
        raise UserError(
            f"The package that runs here, fedproin {running_identity()}, is not the one the job was packed with "
            f"({packed}): install the wheel that came with the job, or ask the coordinator to pack it again."
        )
