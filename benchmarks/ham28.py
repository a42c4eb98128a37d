"""FedProIn against its ablation on the whole of HAM10000 at 28 pixels: ten sites, Dirichlet 0.5, half of them a round.

    FEDPROIN_DATA=../shared/data/ham10000_28px.zip python benchmarks/ham28.py --seeds 0 1 2

Each finished run is one small file in benchmarks/results/ham28; a run that is there is not made again.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from fedproin.federation.local_engine import run_local
from fedproin.federation.records import RunRecord
from fedproin.settings import Settings, parse

RESULTS = Path(__file__).parent / "results" / "ham28"
METHODS: dict[str, dict[str, object]] = {
    "fedproin": {},
    "fedavg_prototype": {"lambda_fdl": 0.0, "lambda_pcl": 0.0, "prototype_merge": "fedavg"},
    "fedproin_adaptive": {},
}
ROUNDS = 60


def settings(method: str, seed: int) -> Settings:
    """The same encoder, sites, draws, batches and number of steps for all; one with the paper's adaptive augmentation."""
    augmentation = "adaptive" if method == "fedproin_adaptive" else "none"
    return parse(
        Settings,
        {
            "run": f"ham28_{method}",
            "seed": seed,
            "data": {"image_size": 28},
            "partition": {"kind": "dirichlet", "alpha": 0.5},
            "model": {"width": 16, "pretrained": False},
            "training": {
                "local_epochs": 3,
                "batch_size": 64,
                "learning_rate": 1e-3,
                "epoch_length": "dataset",
                "augmentation": augmentation,
            },
            "federation": {"rounds": ROUNDS, "validate_every": 2},
            "method": {"name": "fedproin", "prototypes_per_class": 2, **METHODS[method]},
        },
    )


def summary(run: RunRecord) -> dict[str, object]:
    """What a reader needs of a run: how it was made, its validation curve, its test scores."""
    assert run.last is not None
    assert run.best is not None
    sites = [site for record in run.rounds for site in record.sites.values() if site.status == "trained"]
    return {
        "command": f"python benchmarks/ham28.py --seeds {run.seed}",
        "settings": run.settings,
        "versions": run.versions,
        "steps": sum(site.steps for site in sites),
        "seconds": round(run.seconds, 1),
        "validation": {record.round: record.validation for record in run.rounds if record.validation}
        | {run.last.version: run.last.validation},
        "last": {
            "version": run.last.version,
            "test": run.last.test,
            "recall": dict(zip(run.classes, run.last.recall, strict=True)),
        },
        "best": {
            "version": run.best.version,
            "test": run.best.test,
            "recall": dict(zip(run.classes, run.best.recall, strict=True)),
        },
    }


def main() -> None:
    """Make the runs that are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in arguments.seeds:
        for method in arguments.methods:
            file = RESULTS / f"{method}_seed{seed}.json"
            if file.exists():
                continue
            with tempfile.TemporaryDirectory() as workspace:
                run = run_local(settings(method, seed), 10, Path(workspace), lambda line: print(line, file=sys.stderr))
            file.write_text(json.dumps(summary(run), indent=1) + "\n")


if __name__ == "__main__":
    main()
