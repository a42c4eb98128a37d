"""One seed for each purpose, so that no draw depends on the order of the others or on the process that makes it."""

import hashlib


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A seed below 2**32 for one purpose, such as ``derive_seed(0, "site-3", 12, "epoch")``."""
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:4], "big")
