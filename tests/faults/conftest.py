"""Faults of real processes in provisioned federations over mTLS; each test is a row of docs/reliability.md."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioned import Running


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.fault)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    """Server and three sites that have registered, with FLARE's own limits."""
    running = Running(tmp_path_factory.mktemp("federation"))
    try:
        running.begin(sites=3)
        yield running
    finally:
        running.kill()
