"""Inputs that somebody else wrote: valid ones that were changed in places, and noise.

FEDPROIN_FUZZ=10000 tries so many inputs of each test, other ones every time; without it few and always the same.
"""

import copy
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fedproin.errors import LONGEST_SENTENCE, UserError

LONG_RUN = int(os.environ.get("FEDPROIN_FUZZ", 0))

fuzz = settings(
    max_examples=LONG_RUN or 40,
    derandomize=not LONG_RUN,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

ODD_TEXTS = (
    *("", "\0", "a\nb", "\ud800", "NaN", "x" * 5000),
    *("../../etc/passwd", "/", "~nobody-at-all", "__class__", "subprocess.Popen"),
)
ODD_NUMBERS = (0, -1, True, 2**31, 2**63, -(2**64), 10**400, 1e308, float("nan"), float("inf"), 0.1)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(ODD_TEXTS + ODD_NUMBERS)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
LITTER = (
    *(b"", b"\0", b"\xff\xfe", b'"', b"\n", b",", b"../"),
    *(b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"[" * 20_000, b'{"a":' * 20_000),
)


def _places(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything inside nested dicts and lists."""
    yield where
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*where, key))


@st.composite
def changed(draw: st.DrawFn, valid: Any, odd: st.SearchStrategy[Any] = values) -> Any:
    """A nested value with up to three places replaced, removed, or with something added."""
    value = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        *parents, last = (None, *draw(st.sampled_from(list(_places(value)))))
        if last is None:
            return draw(odd)
        holder = value
        for key in parents[1:]:
            holder = holder[key]
        match draw(st.sampled_from(("replace", "remove", "add"))):
            case "replace":
                holder[last] = draw(odd)
            case "remove":
                del holder[last]
            case "add" if isinstance(holder, list):
                holder.insert(last, draw(odd))
            case _:
                holder[draw(st.text(max_size=8))] = draw(odd)
    return value


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """A file with up to four places overwritten, cut out or filled with litter; sometimes cut off, sometimes noise."""
    content = valid
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(len(content) - 1, 0)))
        litter = draw(st.sampled_from(LITTER) | st.binary(max_size=9))
        gone = draw(st.sampled_from((0, 1, len(litter), 50)))
        content = content[:at] + litter + content[at + gone :]
    ending = draw(st.sampled_from(("whole", "whole", "cut", "noise")))
    if ending == "cut":
        return content[: draw(st.integers(0, len(content)))]
    return draw(st.binary(max_size=60)) if ending == "noise" else content


def json_files(valid: Any) -> st.SearchStrategy[bytes]:
    """The bytes of a JSON file, made from a valid value."""
    texts = changed(valid).map(lambda value: json.dumps(value).encode())
    return st.one_of(texts, damaged(json.dumps(valid).encode()))


def read_or_refuse(read: Callable[[], Any]) -> Any:
    """What was read; none if it was refused in one sentence."""
    try:
        return read()
    except UserError as error:
        message = str(error)
        assert message
        assert message.isprintable()
        assert len(message) <= LONGEST_SENTENCE
        return None
