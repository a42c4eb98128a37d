"""Between our messages and FLARE's: tensors travel as DXO data, the rest in its meta; arrays and plain values only."""

from dataclasses import fields
from typing import Any, TypeVar

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable

from fedproin.federation.messages import Answer, Task

KEY = "fedproin"
ARRAYS = {
    Task: ("model", "best"),
    Answer: ("tensors",),
}  # in DXO data, where FLARE's stock filters act; the rest in meta
T = TypeVar("T", Task, Answer)


def to_shareable(message: Task | Answer) -> Shareable:
    """A message as a FLARE Shareable."""
    names = ARRAYS[type(message)]
    data = {f"{part}/{name}": array for part in names for name, array in getattr(message, part).items()}
    meta = {field.name: _plain(getattr(message, field.name)) for field in fields(message) if field.name not in names}
    return DXO(DataKind.WEIGHTS, data=data, meta={KEY: meta}).to_shareable()


def from_flare(cls: type[T], shareable: Shareable) -> T:
    """The message inside a FLARE Shareable.

    Raises:
        ValueError: it is not such a message.
    """
    dxo = from_shareable(shareable)
    meta = dxo.get_meta_prop(KEY)
    if not isinstance(meta, dict) or dxo.data_kind != DataKind.WEIGHTS:
        raise ValueError("not a message of this package")
    parts: dict[str, Any] = {part: {} for part in ARRAYS[cls]}
    for key, array in dxo.data.items():
        part, _, name = key.partition("/")
        if part not in parts:
            raise ValueError("a tensor is in no known part")
        parts[part][name] = array
    if set(meta) | set(parts) != {field.name for field in fields(cls)}:
        raise ValueError("a field is missing or unknown")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in meta.items()}
    return cls(**values, **parts)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, dict) else value
