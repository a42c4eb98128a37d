import ctypes

import psutil
import pytest

from fedproin.flare.memory import return_freed_memory

BLOCK, BLOCKS = 100_000, 2_000


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library has no malloc_trim")
def test_free_blocks_between_used_ones_go_back_to_the_system():
    blocks = [bytearray(BLOCK) for _ in range(BLOCKS)]
    del blocks[::2]
    before = psutil.Process().memory_info().rss
    return_freed_memory()
    assert before - psutil.Process().memory_info().rss > 0.4 * BLOCK * BLOCKS
    assert len(blocks) == BLOCKS // 2


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    return_freed_memory()
