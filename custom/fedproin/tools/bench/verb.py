"""`fedproin bench`: make the runs of a spec that are missing, then write table, figures and checks."""

import argparse
import os
import shlex
import sys
from pathlib import Path

from fedproin.tools.bench.plan import Run, plan, table_hash
from fedproin.tools.bench.progress import Progress
from fedproin.tools.bench.result import Provenance, discard_others, finished
from fedproin.tools.bench.spec import Spec, load_spec

INTERRUPTED = 130


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = subparsers.add_parser("bench", help="run methods, partitions and seeds of a spec, and make the table")
    parser.add_argument("spec", type=Path, help="TOML file, such as benchmarks/ham28.toml")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results are, and go on")
    parser.add_argument("--engine", choices=("local", "simulator"), default="local", help="same bits (default: local)")
    parser.add_argument("--workers", type=_at_least_1, help="runs at the same time (default: one a core)")
    parser.add_argument("--redo", action="store_true", help="make runs again that have other settings or other data")
    parser.add_argument("--report", action="store_true", help="run nothing, only write table, figures and checks")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make what is missing; the exit code says whether every run has its result."""
    spec, directory = load_spec(arguments.spec), arguments.out.resolve()
    runs = plan(spec)
    failed = 0
    if not arguments.report:
        try:
            failed = _make_missing(spec, runs, directory, arguments)
        except KeyboardInterrupt:
            print("Stopped; the same command goes on from here, --report writes the table of what there is.")
            return INTERRUPTED
    from fedproin.tools.bench.report import write_report

    print(write_report(spec, runs, finished(runs, directory), directory))
    return 1 if failed else 0


def _make_missing(spec: Spec, runs: list[Run], directory: Path, arguments: argparse.Namespace) -> int:
    from fedproin.tools.bench.pool import make_runs
    from fedproin.tools.bench.worker import Work

    data = table_hash(spec, directory)
    if arguments.redo:
        print(f"{discard_others(runs, directory, data)} results of other settings or other data are removed")
    done = finished(runs, directory, data)
    missing = [one for one in runs if one.file not in done]
    workers = arguments.workers or _usable_cores(max((one.settings.training.threads for one in missing), default=1))
    print(f"{spec.name}: {len(runs)} runs, {len(done)} are there, {workers} at a time, data {data}", flush=True)
    progress = Progress(len(runs), len(done), workers)
    make_runs(missing, Work(directory, Provenance(_command(arguments), arguments.engine, data)), workers, progress)
    return progress.failed


def _command(arguments: argparse.Namespace) -> str:
    """What was typed; paths only as they were typed."""
    return shlex.join(
        ["fedproin", "bench", str(arguments.spec), "--out", str(arguments.out), "--engine", arguments.engine]
    )


def _usable_cores(threads: int) -> int:
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, usable // threads)


def _at_least_1(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of at least 1, got {text}")
    return int(text)
