"""Lets a person read a simulation: FLARE's information lines go to its log files, ours and warnings to the console."""

import json
import logging
import os
from pathlib import Path

from nvflare.fuel.utils.log_utils import FL_LOG_LEVEL, ConciseLogFilter, msg_only_log_dict


def quiet_simulator(workspace: Path) -> None:
    """Quiet this process and the simulator's workers that start after it; the variable FL_LOG_LEVEL keeps it all.

    Workers read `local/log_config.json` of the simulator's workspace, which survives its clean-up: the file is removed again
    when this process ends.
    """
    if os.environ.get(FL_LOG_LEVEL):
        return
    for handler in logging.getLogger().handlers:
        if type(handler) is logging.StreamHandler:
            handler.addFilter(ConciseLogFilter(["fedproin"]))
            handler.setFormatter(logging.Formatter("%(message)s"))
    config = workspace / "local" / "log_config.json"
    if not config.exists():
        config.parent.mkdir(exist_ok=True)
        config.write_text(json.dumps(msg_only_log_dict))
