"""The server's end in FLARE: an exchange that broadcasts a task and closes it when nobody more will answer.

FLARE's own workflows do not fit: ScatterAndGather draws no sites and its `min_clients` is no quorum; FedAvg aborts when
one drawn site fails. Here a round closes when every target has answered, failed, is dead or silent, or at its deadline.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, TaskCompletionStatus
from nvflare.apis.controller_spec import Task as FlareTask
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from fedproin.data.location import locate
from fedproin.errors import UserError
from fedproin.federation.identity import require_same_package
from fedproin.federation.messages import Task
from fedproin.federation.opening import open_server
from fedproin.federation.server import Server
from fedproin.flare.aggregator import FedProInAggregator
from fedproin.flare.console import quiet_simulator
from fedproin.flare.delivery import deliver
from fedproin.flare.isolation import isolate_sites
from fedproin.flare.memory import return_freed_memory
from fedproin.flare.pulse import Pulse, ask_job_processes
from fedproin.flare.translation import to_shareable
from fedproin.flare.workspace import config_directory
from fedproin.settings import load_settings

POLL_SECONDS = 0.05
LOST_AFTER_SECONDS = 60.0  # as long as FLARE's simulator itself waits for a worker to come up


class Aborted(Exception):
    """The job was aborted; the checkpoint of the last round stands."""


class FedProInController(Controller):
    """Runs the federation's `Server` with FLARE as its messenger.

    Args:
        aggregator_id: component id of the `FedProInAggregator`.
    """

    def __init__(self, aggregator_id: str = "aggregator") -> None:
        super().__init__()
        self.aggregator_id = aggregator_id
        self._lost: set[str] = set()
        self._pulse = Pulse(lambda sites: ask_job_processes(self._engine, sites))

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Find the aggregator, and let no site stop the others."""
        isolate_sites(fl_ctx.get_prop(FLContextKey.RUNNER))
        self._simulated = fl_ctx.get_job_id() == SimulatorConstants.JOB_NAME
        self._aggregator: FedProInAggregator = self._engine.get_component(self.aggregator_id)
        if self._simulated:
            quiet_simulator(self._engine.args, Path(self._engine.get_workspace().get_root_dir()).parent)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """All rounds; a mistake of the user ends the job with one sentence."""
        try:
            server = self._open_server(fl_ctx)
            self._aggregator.server = server
            try:
                server.run(partial(self._exchange, abort_signal, fl_ctx))
            finally:
                self._deliver(server, fl_ctx)
        except Aborted:
            self.log_warning(fl_ctx, "The job was aborted; its last whole round is in the checkpoint.")
        except UserError as error:
            self.system_panic(str(error), fl_ctx)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Let no answer in any more."""
        self._aggregator.server = None

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """An answer that comes after its round was closed is not used."""
        self.log_warning(fl_ctx, f"Refused the answer of {client.name}: its round is closed.")

    def _open_server(self, fl_ctx: FLContext) -> Server:
        workspace = self._engine.get_workspace()
        root = Path(workspace.get_root_dir())
        config = config_directory(workspace, fl_ctx.get_job_id())
        require_same_package(config)
        settings = load_settings(config / "settings.json")
        shared = self._simulated or settings.data.synthetic  # a table that the server can read too
        location = locate(settings, self._simulated, root.parent) if shared else None
        directory = root.parent / "fedproin" if self._simulated else root / "fedproin" / settings.run
        sites = [client.name for client in self._engine.get_clients()]
        return open_server(settings, sites, location, directory, logging.getLogger("fedproin").info)

    def _deliver(self, server: Server, fl_ctx: FLContext) -> None:
        if self._simulated:  # whoever runs a simulation has the directory of the run itself
            return
        try:
            deliver(server.directory, Path(self._engine.get_workspace().get_run_dir(fl_ctx.get_job_id())))
        except OSError as error:
            self.log_warning(fl_ctx, f"The results stay at the server and cannot be downloaded ({error.strerror}).")

    def _exchange(
        self, abort_signal: Signal, fl_ctx: FLContext, message: Task, targets: Sequence[str]
    ) -> Mapping[str, str]:
        answered: set[str] = set()

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            sender = client_task.client.name  # by its token; the props of a result are its sender's own words
            client_task.result.set_peer_props({ReservedKey.IDENTITY_NAME: sender})
            self._aggregator.accept(client_task.result, fl_ctx)
            client_task.result = None  # the arrays are the server's now
            answered.add(sender)

        deadline = message.deadline_seconds
        task = FlareTask(
            name=message.kind,
            data=to_shareable(message),
            timeout=math.ceil(deadline) if deadline else 0,
            result_received_cb=received,
        )
        self.broadcast(task, fl_ctx, targets=list(targets), min_responses=len(targets))
        self._wait(task, answered, set(targets), abort_signal)
        return_freed_memory()
        return {site: self._why_missing(site, task) for site in targets if site not in answered}

    def _wait(self, task: FlareTask, answered: set[str], targets: set[str], abort_signal: Signal) -> None:
        quiet_since, last = time.monotonic(), (0, 0)
        self._pulse.begin()
        while task.completion_status is None:
            if abort_signal.triggered:
                self.cancel_task(task, TaskCompletionStatus.ABORTED)
                raise Aborted
            taken = {client_task.client.name for client_task in list(task.client_tasks)}
            self._lost -= taken
            if (len(taken), len(answered)) != last or taken != answered:  # something happens, or somebody works
                quiet_since, last = time.monotonic(), (len(taken), len(answered))
            pending = targets - answered
            if not self._simulated:
                self._lost = self._pulse.silent(pending)
            elif time.monotonic() - quiet_since > LOST_AFTER_SECONDS:
                self._lost |= pending
            if pending and all(self._is_gone(site) for site in pending):
                self.cancel_task(task, TaskCompletionStatus.CLIENT_DEAD)
            time.sleep(POLL_SECONDS)

    def _is_gone(self, site: str) -> bool:
        return site in self._lost or self.get_client_disconnect_time(site) is not None

    def _why_missing(self, site: str, task: FlareTask) -> str:
        if self.get_client_disconnect_time(site) is not None:
            return "FLARE has lost the connection to it"
        if site in self._lost:
            return "its simulator worker never came up" if self._simulated else "its process of this job is silent"
        if task.completion_status == TaskCompletionStatus.TIMEOUT:
            return "it was too late for the deadline"
        return "it gave no answer"
