"""Shared by all tests: the user's cache and data stay untouched, and a job small enough to train in a moment."""

import copy
import os
from typing import Any

import pytest

from fedproin.settings import Settings, parse

os.environ["OMP_NUM_THREADS"] = (
    "1"  # before torch is imported: threads that wait for each other cost ten times the tests
)

TINY: dict[str, Any] = {
    "data": {"image_size": 16, "synthetic_images": 200},
    "partition": {"minimum": 4},
    "model": {"width": 4, "pretrained": False},
    "training": {
        "local_epochs": 1,
        "batch_size": 32,
        "learning_rate": 1e-3,
        "epoch_length": "dataset",
        "augmentation": "none",
    },
    "federation": {"rounds": 2},
}


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDPROIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("FEDPROIN_DATA", raising=False)
        patch.delenv("FEDPROIN_WEIGHTS", raising=False)
        yield


@pytest.fixture(scope="session")
def make_settings():
    """Settings of the tiny job with changes, such as `make_settings(seed=1, federation={"rounds": 3})`."""

    def make(**changes: Any) -> Settings:
        values = copy.deepcopy(TINY)
        for key, change in changes.items():
            values[key] = {**values.get(key, {}), **change} if isinstance(change, dict) else change
        return parse(Settings, values)

    return make
