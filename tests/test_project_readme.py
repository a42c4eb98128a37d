"""README's commands, as they stand there; those of the simulator are run in tests/simulator, `make` by CI."""

import csv
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedproin.tools.bench.scores import SCORES
from fedproin.tools.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^    ((?:\w+=\S+ )?(?:make|nvflare|fedproin|poc/run.sh|tensorboard)\b.*)$", README, re.M)


def test_every_kind_of_command_is_there():
    assert {"make run", "make test"} <= {re.split(r" {2,}#", command)[0].strip() for command in COMMANDS}
    assert README.count("table.csv -->") == 2
    assert "nvflare simulator jobs/fedproin -w /tmp/ws -n 10" in README  # tests/simulator runs it


@pytest.mark.parametrize("path", sorted(set(re.findall(r"(?:jobs|benchmarks|poc|provisioning)/[\w./]+\w", README))))
def test_what_it_names_is_there(path):
    assert (ROOT / path).exists()


@pytest.mark.slow
def test_the_local_engine_and_the_use_of_its_model(tmp_path, monkeypatch):
    """The command for the local engine, and then the lines of Python that open its best model."""
    monkeypatch.chdir(ROOT)
    command = next(line for line in COMMANDS if line.startswith("fedproin simulate"))
    arguments = shlex.split(command.replace("/tmp/local", str(tmp_path)))[1:]
    assert main(arguments) == 0
    lines = re.search(r"((?:    (?:from|tensors).*\n\n?)+)", README[README.index("## Use a model") :])[1]
    program = re.sub(r"^    ", "", lines, flags=re.M).replace("/tmp/ws", str(tmp_path))
    program += "print(about['classes'], sorted(tensors)[-1])"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["['akiec',", "'bcc',", "'bkl',", "'df',", "'mel',", "'nv',", "'vasc']", "prototypes"]


@pytest.mark.parametrize(("path", "table"), re.findall(r"<!-- (\S+table\.csv) -->\n(.*?)\n\n", README, re.S))
def test_the_tables_are_those_of_the_bench(path, table):
    with (ROOT / path).open() as file:
        made = {row["label"]: row for row in csv.DictReader(file)}
    means = [name for name in next(iter(made.values())) if name.removesuffix("_mean").endswith(tuple(SCORES))]
    shown = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert {label for label, *_ in shown} >= {label for label, row in made.items() if row["group"] == "method"}
    for label, *cells in shown:
        row = made[label]
        spreads = [name.replace("_mean", "_sd") for name in means]
        numbers = [f"{float(row[a]):.1f} ± {float(row[b]):.1f}" for a, b in zip(means, spreads, strict=True)]
        assert cells == numbers, label
