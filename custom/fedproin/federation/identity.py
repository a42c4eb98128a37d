"""Which copy of the package runs: an installed one silently wins over the one that a job brings."""

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import fedproin


@cache
def package_identity() -> str:
    """Version and code hash of the running package, such as `0.1.0+3f9a1c2b7d04`."""
    return f"{installed_version('fedproin')}+{code_hash(Path(fedproin.__file__).parent)[:12]}"


def code_hash(package: Path) -> str:
    """SHA-256 over names and contents of all Python files below the folder; the folder's place does not matter."""
    digest = hashlib.sha256()
    for name in sorted(path.relative_to(package).as_posix() for path in package.rglob("*.py")):
        content = (package / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def installed_version(package: str) -> str:
    """Version by the package's metadata, without importing it; `uninstalled` if it has none, as a job's own copy."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "uninstalled"
