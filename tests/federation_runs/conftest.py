"""Provisioned federations of real processes over mTLS; each takes minutes, so those that can share one do."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "poc"))

from provisioned import Running  # noqa: E402, after the path to poc/

MARKS = (pytest.mark.federation, pytest.mark.timeout(900))


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            for mark in MARKS:
                item.add_marker(mark)


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    """Server and three sites that have registered; site-3 refuses jobs that bring code."""
    running = Running(tmp_path_factory.mktemp("federation"))
    try:
        running.begin(sites=3, refusing=("site-3",))
        yield running
    finally:
        running.kill()
