"""`fedproin simulate`: a job in the local engine, without FLARE; the same bits as `nvflare simulator`."""

import argparse
from pathlib import Path

from fedproin.tools.jobs import add_set_option, load_job, with_changes


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = subparsers.add_parser("simulate", help="run a job in one process, without FLARE")
    parser.add_argument("job", type=Path, help="job folder, such as jobs/fedproin")
    parser.add_argument(
        "-w", "--workspace", type=Path, required=True, help="where results go; a run that was stopped there goes on"
    )
    parser.add_argument("-n", "--sites", type=int, default=10, help="number of simulated sites (default: 10)")
    add_set_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the federation and print what a person wants to read."""
    from fedproin.federation.local_engine import run_local

    run_local(
        with_changes(load_job(arguments.job), arguments.changes),
        arguments.sites,
        arguments.workspace,
        lambda line: print(line, flush=True),
    )
    return 0
