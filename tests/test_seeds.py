import subprocess
import sys

from fedproin.seeds import derive_seed


def test_fits_every_generator():
    seeds = [derive_seed(seed, "site-1", round_, "sampler") for seed in range(20) for round_ in range(20)]
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert len(set(seeds)) == len(seeds)


def test_each_part_of_the_purpose_matters():
    purposes = [(0, "a", 1), (1, "a", 1), (0, "b", 1), (0, "a", 2), (0, 1, "a"), (0, "a", "1"), (0, "a1"), (0, "a")]
    assert len({derive_seed(*purpose) for purpose in purposes}) == len(purposes)


def test_is_the_same_in_every_process():
    """Python's `hash` of a string is not; the number is pinned, since runs must be repeatable by later versions."""
    code = "from fedproin.seeds import derive_seed; print(derive_seed(3, 'site-1', 7, 'draw'))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert printed == {str(derive_seed(3, "site-1", 7, "draw"))} == {"1473009806"}
