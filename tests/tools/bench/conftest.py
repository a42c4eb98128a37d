"""A small spec, and benches whose results are written by hand."""

from pathlib import Path

import pytest
from handmade import METHODS, SPEC, make_result, make_run

from fedproin.tools.bench.scores import Bench
from fedproin.tools.bench.spec import load_spec


@pytest.fixture
def write_spec(tmp_path):
    """A spec file: the small one, some of its text replaced, and more behind it."""

    def write(*replacements: tuple[str, str], more: str = "") -> Path:
        text = SPEC
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "tiny.toml"
        path.write_text(text + more)
        return path

    return write


@pytest.fixture
def make_bench(write_spec):
    """A bench by hand: `values[row, partition]` are a tuple of the four scores in percent a finished seed.

    Nothing is planned, so the methods need not exist. A key may have a third part, the number of prototypes.
    """

    def make(values, *replacements: tuple[str, str], more: str = METHODS, **changes) -> Bench:
        spec = load_spec(write_spec(*replacements, more=more))
        runs, results = [], {}
        for (row, partition, *prototypes), by_seed in values.items():
            for seed, scores in zip(spec.seeds, by_seed, strict=False):
                run = make_run(spec, row, partition, seed, *prototypes)
                runs.append(run)
                results[run.file] = make_result(run, scores, **changes)
        for row in spec.rows:
            for partition in spec.partitions:
                missing = [make_run(spec, row, partition, seed) for seed in spec.seeds]
                runs += [run for run in missing if run.file not in results]
        return Bench(spec, runs, results)

    return make
