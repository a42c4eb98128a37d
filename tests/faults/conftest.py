"""Faults of real processes in provisioned federations over mTLS; each test is a row of docs/reliability.md."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.fault)
            item.add_marker(pytest.mark.timeout(900))
