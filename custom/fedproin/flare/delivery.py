"""What the lead of a job gets: FLARE keeps a job's directory when it ends, and `nvflare job download` brings it."""

import shutil
from pathlib import Path

FOLDER = "fedproin"
RESULTS = ("results.json", "last_model.safetensors", "best_model.safetensors")
CURVES = "tensorboard"


def deliver(run: Path, job: Path) -> None:
    """Copy what there is of a run's results, models and curves into the directory of a job that ends.

    Args:
        run: the server's directory of the run, which outlives the job and keeps the originals.
        job: FLARE's directory of the job.

    Raises:
        OSError: the disk is full; what was copied until then stays.
    """
    target = job / FOLDER
    target.mkdir(mode=0o700, exist_ok=True)
    for name in RESULTS:
        if (run / name).exists():
            shutil.copy2(run / name, target / name)
    if (run / CURVES).exists():
        shutil.copytree(run / CURVES, target / CURVES, dirs_exist_ok=True)
