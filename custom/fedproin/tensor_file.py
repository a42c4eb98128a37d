"""Named tensors and a JSON header in one safetensors file: nothing is executed on reading, nothing is half-written."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedproin.errors import NOT_JSON, UserError

if TYPE_CHECKING:
    from torch import Tensor


def save_tensors(path: Path, tensors: "Mapping[str, Tensor]", header: Mapping[str, Any]) -> None:
    """Write atomically, readable by the owner only; the directory must exist."""
    from safetensors.torch import save

    own = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()
    }  # it refuses shared memory
    content = save(own, {"header": json.dumps(header)})
    write_atomically(path, content)


def load_tensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Tensors on the CPU and the header.

    Raises:
        UserError: the file is damaged or of another kind.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["header"])
            if not isinstance(header, dict):
                raise ValueError("the header is no object")
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118  it is no mapping
    except (SafetensorError, OSError, KeyError, *NOT_JSON) as error:
        raise UserError(f"{path.name} is damaged or no file of this package; remove it or restore a copy.") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` under a temporary name in the same directory, flush it to the disk, then rename."""
    _remove_unfinished(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb", opener=_private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_unfinished(path: Path) -> None:
    """Remove what processes that were killed had begun to write."""
    for temporary in path.parent.glob(f".{path.name}.*.tmp"):
        process = temporary.name.split(".")[-2]
        with contextlib.suppress(PermissionError):  # another user's
            if process.isdecimal() and _has_ended(int(process)):
                temporary.unlink(missing_ok=True)


def _has_ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OverflowError:  # no process had such a number
        pass
    return False


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
