"""`results.json`: the record of a run as strict JSON that a person can read and compare line by line."""

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from fedproin.errors import NOT_JSON, UserError
from fedproin.federation.identity import installed_version, package_identity
from fedproin.federation.records import RunRecord
from fedproin.tensor_file import write_atomically

RESULTS, LAST_MODEL, BEST_MODEL = "results.json", "last_model.safetensors", "best_model.safetensors"  # of every run
TENSORBOARD = "tensorboard"
WIDTH = 120
LINE = json.JSONEncoder(allow_nan=False, ensure_ascii=False)


def versions() -> dict[str, str]:
    """What runs: the package with its code hash, Python, and what the numbers depend on; none of it is imported."""
    others = ("nvflare", "torch", "torchvision", "monai", "numpy")
    own = {"fedproin": package_identity(), "python": platform.python_version()}
    return own | {name: installed_version(name) for name in others}


def write_results(run: RunRecord, path: Path) -> None:
    """Write atomically; the directory must exist. Numbers that are not finite become null."""
    write_atomically(path, (_render(_finite(asdict(run)), "") + "\n").encode())


def read_results(path: Path) -> RunRecord:
    """The record of a `results.json`.

    Raises:
        UserError: there is no such file, it is damaged, or another version of the package wrote it.
    """
    try:
        return run_from_dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise UserError(f"There is no {path.name} yet; it is written after the first round.") from None
    except (OSError, *NOT_JSON):
        raise UserError(f"{path.name} is damaged: it is no JSON; restore a copy.") from None


def run_from_dict(values: object) -> RunRecord:
    """The record again from what `dataclasses.asdict` and JSON made of it; null becomes nan where a number must be.

    Raises:
        UserError: something is missing, unknown or of another type.
    """
    try:
        run: RunRecord = _rebuilt(RunRecord, values, "")
    except (TypeError, OverflowError) as error:
        message = (
            f"The record of this run is damaged or of another version ({error}); restore a copy or choose another run."
        )
        raise UserError(message) from None
    return run


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _render(value: Any, indent: str) -> str:
    """JSON with every matrix on one line, and small objects too."""
    items = value.values() if isinstance(value, dict) else [value]
    if all(map(_flat, items)):
        line = LINE.encode(value)
        if not isinstance(value, dict) or len(indent + line) <= WIDTH:
            return line
    deeper = indent + "  "
    if isinstance(value, dict):
        parts = [f"{LINE.encode(key)}: {_render(item, deeper)}" for key, item in value.items()]
    else:
        parts = [_render(item, deeper) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{deeper}" + f",\n{deeper}".join(parts) + f"\n{indent}{closing}"


def _flat(value: Any) -> bool:
    return not isinstance(value, dict) and (not isinstance(value, list) or all(map(_flat, value)))


def _rebuilt(kind: Any, value: Any, where: str) -> Any:
    """`value` from JSON as an instance of `kind`, one of the types that the records use."""
    if is_dataclass(kind):
        return _rebuilt_record(kind, value, where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if value is None else _rebuilt(next(a for a in arguments if a is not NoneType), value, where)
    if origin is list and isinstance(value, list):
        return [_rebuilt(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {key: _rebuilt(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float and (value is None or type(value) is int):
        return math.nan if value is None else float(value)
    if kind is object or type(value) is kind:
        return value
    raise TypeError(f"{where or 'the record'} is no {getattr(origin or kind, '__name__', kind)}")


def _rebuilt_record(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"{where or 'the record'} is no object")
    known = {field.name: field for field in fields(kind)}
    required = {name for name, f in known.items() if f.default is MISSING and f.default_factory is MISSING}
    odd = sorted((value.keys() - known.keys()) | (required - value.keys()))
    if odd:
        raise TypeError(f"{f'{where}.{odd[0]}'.lstrip('.')} is unknown or missing")
    types = _types(kind)
    return kind(**{name: _rebuilt(types[name], item, f"{where}.{name}".lstrip(".")) for name, item in value.items()})


@cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
