"""What the lead of a job gets: FLARE keeps a job's directory when it ends, and `nvflare job download` brings it."""

import shutil
from pathlib import Path

from fedproin.federation.results import BEST_MODEL, LAST_MODEL, RESULTS, TENSORBOARD

FOLDER = "fedproin"


def deliver(run: Path, job: Path) -> None:
    """Copy what there is of a run's results, models and curves into the directory of a job that ends; all, or nothing.

    Args:
        run: the server's directory of the run, which outlives the job and keeps the originals.
        job: FLARE's directory of the job.

    Raises:
        OSError: the disk is full; FLARE needs what is left of it for its own files of the job.
    """
    files = [run / RESULTS, run / LAST_MODEL, run / BEST_MODEL, *(run / TENSORBOARD).rglob("*")]
    unfinished = job / f".{FOLDER}.tmp"
    try:
        for file in filter(Path.is_file, files):
            copy = unfinished / file.relative_to(run)
            copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.copy2(file, copy)
        if unfinished.exists():
            unfinished.rename(job / FOLDER)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
