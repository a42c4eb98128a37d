"""Waiting for something that real processes do."""

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


def wait_for(condition: Callable[[], T], seconds: float, what: str, pause: float = 0.1) -> T:
    """The first true value of `condition()`, asked every `pause` seconds; fails the test after `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(pause)
    pytest.fail(f"{what} did not happen within {seconds} s")
