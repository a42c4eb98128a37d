"""A small spec, and results written by hand."""

import json

from fedproin.tools.bench.plan import Run
from fedproin.tools.bench.result import ModelScores, RunResult
from fedproin.tools.bench.scores import SCORES

SPEC = """
name = "tiny"
sites = 2
seeds = [0, 1]

[settings]
data = { image_size = 16, synthetic = true, synthetic_images = 120 }
model = { width = 4, pretrained = false }
training = { local_epochs = 1, batch_size = 32, learning_rate = 1e-3, epoch_length = "dataset", augmentation = "none" }
federation = { rounds = 1 }

[partitions.iid]
kind = "iid"

[partitions.dirichlet]
kind = "dirichlet"
minimum = 4

[rows.fedproin]
label = "FedProIn"
method = { name = "fedproin" }

[rows.no_fdl]
group = "ablation"
method = { name = "fedproin", lambda_fdl = 0 }
"""
METHODS = """
[rows.fedavg]
label = "FedAvg"
method = { name = "fedavg" }

[rows.fed_odd]
label = "Fed_Odd & Co"
method = { name = "fedodd" }
"""


def make_run(spec, row, partition, seed, prototypes=None):
    resolved = {"method": {"name": "x", "prototypes_per_class": prototypes or 1}}
    return Run(row, partition, seed, prototypes, spec.sites, spec.settings(row, partition, seed), resolved, resolved)


def make_result(run: Run, scores, **changes) -> RunResult:
    test = {name: value / 100 for name, value in zip(SCORES, scores, strict=True)}
    validation = {name: value / 2 for name, value in test.items()}
    model = ModelScores(3, validation, test, {"a": 0.5, "b": None}, [[1, 1], [0, 0]])
    curve = {"1": validation, "3": test}
    fields = {
        "row": run.row,
        "partition": run.partition,
        "seed": run.seed,
        "prototypes": run.prototypes,
        "settings_hash": run.settings_hash,
        "data_hash": "d" * 16,
        "command": "fedproin bench",
        "engine": "local",
        "sites": run.sites,
        "settings": json.loads(json.dumps(run.resolved)),
        "versions": {"fedproin": "0.1.0+abc"},
        "data": "table",
        "dealt": "IID",
        "steps": 1000 + run.seed,
        "seconds": 12.5,
        "bytes_down": 1_500_000,
        "bytes_up": 2_000_000,
        "validation": curve,
        "last": model,
        "best": model,
    }
    return RunResult(**fields | changes)
