"""Lets a person read a simulation: FLARE's information lines go to its log files, ours and warnings to the console."""

import copy
import json
import logging
from argparse import Namespace
from pathlib import Path

from nvflare.fuel.utils.log_utils import LoggerNameFilter, LogMode, concise_log_dict


def quiet_simulator(simulator_arguments: Namespace, workspace: Path) -> None:
    """Quiet this process, and the simulator's workers that start after it; `-l full` on the command line keeps it all.

    Args:
        simulator_arguments: FLARE's own; workers start with its `log_config`, `concise` unless the user said otherwise.
        workspace: of the simulation, which is emptied when a run starts.
    """
    if simulator_arguments.log_config != LogMode.CONCISE:
        return
    for handler in logging.getLogger().handlers:
        if type(handler) is logging.StreamHandler:
            handler.addFilter(LoggerNameFilter(["fedproin"]))
            handler.setFormatter(logging.Formatter("%(message)s"))
    config = copy.deepcopy(concise_log_dict)
    config["filters"]["WarningsOnly"] = {"()": f"{LoggerNameFilter.__module__}.LoggerNameFilter", "logger_names": []}
    config["handlers"]["consoleHandler"]["filters"] = ["WarningsOnly"]
    file = workspace / "worker_log_config.json"
    file.write_text(json.dumps(config))
    simulator_arguments.log_config = str(file)
