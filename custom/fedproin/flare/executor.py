"""The site's end in FLARE: hands each task to the site's trainer process and brings its answer back."""

import os
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedproin.data.location import locate
from fedproin.errors import UserError
from fedproin.federation.identity import package_identity, require_same_package
from fedproin.federation.messages import Answer, Task
from fedproin.federation.trainer_process import SiteArguments, TrainerProcess
from fedproin.flare.memory import return_freed_memory
from fedproin.flare.translation import from_flare, to_shareable
from fedproin.flare.workspace import config_directory
from fedproin.settings import load_settings


class FedProInExecutor(Executor):
    """Trains and scores with a process of its own; imports no torch, so an idle site costs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._trainer: TrainerProcess | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """The answer of this site; a failure is an answer too."""
        return_freed_memory()  # of the last round's messages
        task = from_flare(Task, shareable)
        try:
            if self._trainer is None:
                self._trainer = TrainerProcess(site_arguments(fl_ctx))
            answer = self._trainer.run(task, lambda: bool(abort_signal.triggered))
        except UserError as error:
            answer = Answer(task.kind, task.run_id, task.round, error=str(error))
        return make_reply(ReturnCode.TASK_ABORTED) if abort_signal.triggered else to_shareable(answer)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Say which copy of the package runs; end the trainer with the run."""
        if event_type == EventType.START_RUN:
            self.log_info(fl_ctx, f"fedproin {package_identity()} from {Path(__file__).parents[1]} (pid {os.getpid()})")
        elif event_type in (EventType.END_RUN, EventType.ABOUT_TO_END_RUN) and self._trainer is not None:
            self._trainer.stop()


def site_arguments(fl_ctx: FLContext) -> SiteArguments:
    """What the trainer needs to know of this site; refuses a job that was packed with other code."""
    workspace = fl_ctx.get_engine().get_workspace()
    root = Path(workspace.get_root_dir())
    config = config_directory(workspace, fl_ctx.get_job_id())
    require_same_package(config)
    settings = load_settings(config / "settings.json")
    simulated = bool(fl_ctx.get_prop(FLContextKey.SIMULATE_MODE, False))
    return SiteArguments(fl_ctx.get_identity_name(), settings, locate(settings, simulated, root), root / "fedproin")
