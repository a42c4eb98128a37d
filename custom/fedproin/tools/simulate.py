"""`fedproin simulate`: a job in the local engine, without FLARE; the same bits as `nvflare simulator`."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedproin.errors import SettingsError
from fedproin.settings import Settings, load_settings, parse


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = subparsers.add_parser("simulate", help="run a job in one process, without FLARE")
    parser.add_argument("job", type=Path, help="job folder, such as jobs/fedproin")
    parser.add_argument(
        "-w", "--workspace", type=Path, required=True, help="where results go; earlier ones are replaced"
    )
    parser.add_argument("-n", "--sites", type=int, default=10, help="number of simulated sites (default: 10)")
    parser.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting, such as seed=1",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the federation and print what a person wants to read."""
    from fedproin.federation.local_engine import run_local

    settings = load_settings(arguments.job / "app" / "config" / "settings.json")
    run_local(
        with_changes(settings, arguments.changes),
        arguments.sites,
        arguments.workspace,
        lambda line: print(line, flush=True),
    )
    return 0


def with_changes(settings: Settings, changes: list[str]) -> Settings:
    """Settings with some values replaced.

    Args:
        changes: such as `training.local_epochs=1`; a value is JSON, or else taken as text.
    """
    values = asdict(settings)
    for change in changes:
        key, equals, text = change.partition("=")
        *path, name = key.split(".")
        if not equals or not name:
            raise SettingsError(f"--set needs KEY=VALUE, such as training.local_epochs=1; got '{change}'.")
        group = values
        for part in path:
            group = group.setdefault(part, {})
            if not isinstance(group, dict):
                raise SettingsError(f"Setting '{part}' in --set {change} is a value, not a group.")
        group[name] = _value(text)
    return parse(Settings, values)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
