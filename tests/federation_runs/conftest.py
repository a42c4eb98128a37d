"""Provisioned federations of real processes over mTLS; each takes minutes, so those that can share one do."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioned import Running

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
