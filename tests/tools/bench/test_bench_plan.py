"""Which runs a spec means, and when two runs are the same."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from fedproin.errors import SettingsError, UserError
from fedproin.methods import METHODS
from fedproin.tools.bench.plan import plan, table_hash
from fedproin.tools.bench.spec import load_spec

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SEARCHED = {"learning_rate", "optimizer_state"}
MAY_DIFFER = {"ham28_factors": {"optimizer_state"}, "ham28_tuning": SEARCHED, "ham28_tuned": SEARCHED}
SWEEP = '[sweep]\nprototypes_per_class = [1, 2]\nrows = ["fedproin"]\n'


def test_the_product_seed_by_seed_with_the_sweep_last(write_spec):
    runs = plan(load_spec(write_spec(more=SWEEP)))
    assert [str(run) for run in runs] == [
        "fedproin iid seed 0",
        "no_fdl iid seed 0",
        "fedproin dirichlet seed 0",
        "no_fdl dirichlet seed 0",
        "fedproin iid seed 1",
        "no_fdl iid seed 1",
        "fedproin dirichlet seed 1",
        "no_fdl dirichlet seed 1",
        "fedproin iid seed 0 M 2",  # M 1 is the row itself
        "fedproin dirichlet seed 0 M 2",
        "fedproin iid seed 1 M 2",
        "fedproin dirichlet seed 1 M 2",
    ]
    assert runs[-1].file == Path("runs/fedproin/dirichlet/seed1_M2.json")
    assert runs[-1].resolved["method"]["prototypes_per_class"] == 2


def test_no_two_runs_have_the_same_hash(write_spec):
    runs = plan(load_spec(write_spec(more=SWEEP)))
    assert len({run.settings_hash for run in runs}) == len(runs)


@pytest.mark.parametrize(
    ("replacement", "same"),
    [
        (('name = "tiny"', 'name = "other"'), True),
        (('label = "FedProIn"', ""), True),
        (('name = "fedproin" }', 'name = "fedproin", prototypes_per_class = 1 }'), True),  # the default
        (("image_size = 16", 'image_size = 16, path = "/elsewhere"'), True),  # the hash of the data says it
        (("sites = 2", "sites = 3"), False),
        (("local_epochs = 1", "local_epochs = 2"), False),
        (('name = "fedproin" }', 'name = "fedproin", prototypes_per_class = 2 }'), False),
    ],
)
def test_the_hash_is_of_what_decides_the_bits(write_spec, replacement, same):
    before = plan(load_spec(write_spec()))[0].settings_hash
    assert (plan(load_spec(write_spec(replacement)))[0].settings_hash == before) == same


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ('{ name = "fedprion" }', "Row 'no_fdl': Unknown method 'fedprion': did you mean 'fedproin'?"),
        ('{ name = "fedproin", lambda = 0 }', None),
    ],
)
def test_a_method_that_is_not_there_is_said_with_its_row(write_spec, method, sentence):
    spec = load_spec(write_spec(('{ name = "fedproin", lambda_fdl = 0 }', method)))
    with pytest.raises(SettingsError) as error:
        plan(spec)
    assert str(error.value).startswith("Row 'no_fdl': ")
    assert sentence in (None, str(error.value))


def test_the_hash_of_a_table_is_of_what_it_says_not_of_where_it_lies(write_spec, tmp_path, monkeypatch):
    spec = load_spec(write_spec(("synthetic = true", "synthetic = false")))

    def hash_of(folder: str, table: str) -> str:
        path = tmp_path / folder / "manifest.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(table)
        monkeypatch.setenv("FEDPROIN_DATA", str(path))
        return table_hash(spec, tmp_path)

    table = "image,label,patient\na.png,x,1\nb.png,y,2\n"
    assert hash_of("one", table) == hash_of("two", table) == hash_of("one", table.replace("image", "file"))
    assert hash_of("one", table) != hash_of("one", table.replace("y,2", "y,1"))


def test_without_data_it_draws_pictures_only_when_asked(write_spec, tmp_path):
    assert table_hash(load_spec(write_spec()), tmp_path) == "synthetic"
    with pytest.raises(UserError, match="The bench has no data: set FEDPROIN_DATA"):
        table_hash(load_spec(write_spec(("synthetic = true", "synthetic = false"))), tmp_path)


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_specs_of_the_repository(path):
    spec = load_spec(path)
    unknown = sorted({row.method["name"] for row in spec.rows.values()} - METHODS.keys())
    if unknown:
        pytest.skip(f"not there yet: {', '.join(unknown)}")
    table = [run for run in plan(spec) if run.prototypes is None]
    assert len(table) == len(spec.rows) * len(spec.partitions) * len(spec.seeds)
    assert len({run.settings_hash for run in table}) == len(table)  # no row is another one in disguise
    shared = {"batch_size", "local_epochs", "epoch_length", "learning_rate", "optimizer_state"}
    shared -= MAY_DIFFER.get(spec.name, set())
    assert len({tuple(run.resolved["training"][name] for name in shared) for run in table}) == 1
    assert len({(run.resolved["federation"]["rounds"], run.resolved["model"]["width"]) for run in table}) == 1


def test_the_tuned_rows_are_the_winners_of_the_search():
    """The largest validation MCC of the last model, the first of equal ones; as many trials for every method."""
    search, tuned = (load_spec(BENCHMARKS / f"{name}.toml") for name in ("ham28_tuning", "ham28_tuned"))
    with (BENCHMARKS / "results" / "ham28_tuning" / "table.csv").open() as file:
        score = {row["row"]: float(row["dirichlet_mcc_mean"]) for row in csv.DictReader(file)}
    trials: dict[str, list[str]] = {method: [] for method in tuned.rows}
    for row in search.rows:
        trials[max((name for name in trials if f"{row}_".startswith(f"{name}_")), key=len)].append(row)
    assert {len(rows) for rows in trials.values()} == {4}
    for method, row in tuned.rows.items():
        winner = search.rows[max(trials[method], key=score.__getitem__)]
        assert replace(row, group="method") == replace(winner, group="method"), method
    assert search.base == tuned.base
