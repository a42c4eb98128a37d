import random

import numpy as np
import pytest

from fedproin.federation.messages import site_order, size_in_bytes


def test_numbers_count():
    names = ["site-10", "site-2", "site-1", "clinic", "a10b2", "a10b10", "a9", "7"]
    assert sorted(names, key=site_order) == ["7", "a9", "a10b2", "a10b10", "clinic", "site-1", "site-2", "site-10"]


@pytest.mark.parametrize("names", [["site-1", "site-01", "site-001"], ["1", "²", "1²"], ["a", "a1", "a1b", ""]])
def test_any_two_names_have_an_order(names):
    orders = {tuple(sorted(random.Random(seed).sample(names, len(names)), key=site_order)) for seed in range(20)}
    assert len(orders) == 1


def test_bytes_as_they_travel():
    assert size_in_bytes({"a": np.zeros((2, 3), np.float32), "b": np.zeros(4, np.int64)}) == 24 + 32
    assert size_in_bytes({}) == 0
