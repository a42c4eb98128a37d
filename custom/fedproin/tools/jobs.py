"""A job folder on the command line: its settings, and `--set` to change them."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedproin.errors import SettingsError
from fedproin.settings import Settings, load_settings, parse

CONFIG = Path("app", "config")
SETTINGS = CONFIG / "settings.json"


def load_job(job: Path) -> Settings:
    """The settings of a job folder."""
    return load_settings(job / SETTINGS)


def add_set_option(parser: argparse.ArgumentParser) -> None:
    """Add `--set`; the parsed arguments get a list `changes`."""
    parser.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting, such as seed=1",
    )


def with_changes(settings: Settings, changes: Sequence[str]) -> Settings:
    """Settings with some values replaced.

    Args:
        changes: such as `training.local_epochs=1`; a value is JSON, or else taken as text.
    """
    values = asdict(settings)
    apply_changes(values, changes)
    return parse(Settings, values)


def apply_changes(values: dict[str, Any], changes: Sequence[str]) -> None:
    """Change the content of a settings.json in place; whether the result is valid is for `parse` to say."""
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


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
