"""Runs that several tests look at: they are slow, so each is made once and they go on side by side."""

from collections.abc import Iterator

import pytest

from simulator_runs import Run, start, whole_run


@pytest.fixture(scope="session")
def one_thread(tmp_path_factory) -> Iterator[Run]:
    """README's main command, `-n 10` alone: FLARE then starts a new process for every task. Takes minutes."""
    with start(tmp_path_factory.mktemp("one_thread"), "-n", "10") as run:
        yield run


@pytest.fixture(scope="session")
def ten_threads(tmp_path_factory, one_thread) -> Iterator[Run]:
    """The same job with `-t 10`, while the one with a single thread goes on in the background."""
    with whole_run(tmp_path_factory.mktemp("ten_threads"), "-n", "10", "-t", "10", seconds=400) as run:
        yield run
