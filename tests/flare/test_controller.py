"""When a round closes, with FLARE's messenger replaced by one that the test moves."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, TaskCompletionStatus
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedproin.federation.messages import Task
from fedproin.flare import controller as module
from fedproin.flare import pulse
from fedproin.flare.controller import Aborted, FedProInController

SITES = ["site-1", "site-2", "site-3"]
MESSAGE = Task("round", "ab" * 16, "", 0, tuple(SITES), tuple(SITES), False, None, {"w": np.ones(2, np.float32)})


class FakeFlare:
    """Hands tasks out and takes results when told to."""

    def __init__(self) -> None:
        self.task = None
        self.dead: set[str] = set()
        self.silent: set[str] = set()

    def broadcast(self, task, fl_ctx, targets, min_responses, wait_time):
        self.task = task

    def cancel_task(self, task, completion_status, fl_ctx):
        task.completion_status = completion_status

    def get_client_disconnect_time(self, name):
        return 1.0 if name in self.dead else None

    def new_context(self):
        return nullcontext()

    def send_aux_request(self, targets, **words):
        return {site: make_reply(ReturnCode.OK) for site in targets if site not in self.silent}

    def give(self, site):
        client_task = ClientTask(Client(site, ""), self.task)
        self.task.client_tasks.append(client_task)
        return client_task

    def answer(self, client_task, result=None):
        client_task.result = Shareable() if result is None else result
        self.task.result_received_cb(client_task=client_task, fl_ctx=FLContext())


@pytest.fixture
def federation(monkeypatch):
    monkeypatch.setattr(module, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(module, "LOST_AFTER_SECONDS", 0.3)
    controller, flare = FedProInController(), FakeFlare()
    controller.communicator = controller._engine = flare
    controller._simulated = True
    controller._aggregator = SimpleNamespace(accept=lambda shareable, fl_ctx: True)
    return controller, flare


def exchange_in_background(controller, message=MESSAGE, signal=None):
    box = {}

    def run():
        try:
            box["missing"] = controller._exchange(signal or Signal(), FLContext(), message, SITES)
        except Aborted as aborted:
            box["aborted"] = aborted

    thread = threading.Thread(target=run)
    thread.start()
    while controller.communicator.task is None:
        pass
    return thread, box


def test_it_waits_for_every_target(federation):
    controller, flare = federation
    thread, box = exchange_in_background(controller)
    given = [flare.give(site) for site in SITES]
    flare.answer(given[0])
    flare.answer(given[1])
    thread.join(0.5)
    assert thread.is_alive()  # the third one works, however long
    flare.answer(given[2])
    flare.task.completion_status = TaskCompletionStatus.OK
    thread.join(2)
    assert box["missing"] == {}


def test_a_worker_that_never_comes_up_does_not_stop_the_run_and_is_not_waited_for_again(federation):
    controller, flare = federation
    thread, box = exchange_in_background(controller)
    for site in SITES[:2]:
        flare.answer(flare.give(site))
    thread.join(2)
    assert box["missing"] == {"site-3": "its simulator worker never came up"}

    monkey = module.LOST_AFTER_SECONDS
    module.LOST_AFTER_SECONDS = 1000.0  # the second time there is no need to wait
    flare.task = None
    thread, box = exchange_in_background(controller)
    for site in SITES[:2]:
        flare.answer(flare.give(site))
    thread.join(2)
    module.LOST_AFTER_SECONDS = monkey
    assert box["missing"] == {"site-3": "its simulator worker never came up"}


def test_a_lost_site_that_comes_back_is_waited_for(federation):
    controller, flare = federation
    controller._lost = {"site-3"}
    thread, box = exchange_in_background(controller)
    given = [flare.give(site) for site in SITES]
    for client_task in given[:2]:
        flare.answer(client_task)
    thread.join(0.2)
    assert thread.is_alive()
    flare.answer(given[2])
    flare.task.completion_status = TaskCompletionStatus.OK
    thread.join(2)
    assert box["missing"] == {}


def test_in_a_real_federation_a_site_is_missed_when_flare_says_that_it_is_dead(federation):
    controller, flare = federation
    controller._simulated = False
    thread, box = exchange_in_background(controller)
    for site in SITES[:2]:
        flare.answer(flare.give(site))
    thread.join(0.6)
    assert thread.is_alive()
    flare.dead = {"site-3"}
    thread.join(2)
    assert box["missing"] == {"site-3": "FLARE has lost the connection to it"}


def test_in_a_real_federation_a_site_is_missed_when_its_job_is_silent(federation, monkeypatch):
    controller, flare = federation
    controller._simulated = False
    monkeypatch.setattr(pulse, "ASK_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(pulse, "SILENT_AFTER_SECONDS", 0.3)
    thread, box = exchange_in_background(controller)
    given = [flare.give(site) for site in SITES]
    flare.answer(given[0])
    thread.join(0.6)
    assert thread.is_alive()  # site-2 and site-3 work
    flare.silent = {"site-3"}
    thread.join(0.6)
    assert thread.is_alive()  # site-2 works
    flare.answer(given[1])
    thread.join(2)
    assert box["missing"] == {"site-3": "its process of this job is silent"}


def test_the_deadline_travels_in_the_task_and_closes_the_round(federation):
    controller, flare = federation
    message = Task("round", "ab" * 16, "", 0, tuple(SITES), tuple(SITES), False, 2.5, {"w": np.ones(2, np.float32)})
    thread, box = exchange_in_background(controller, message)
    assert flare.task.timeout == 3
    for site in SITES:
        flare.give(site)
    flare.task.completion_status = TaskCompletionStatus.TIMEOUT
    thread.join(2)
    assert box["missing"] == dict.fromkeys(SITES, "it was too late for the deadline")


def test_the_sender_is_who_flare_says_not_who_the_message_says(federation):
    controller, flare = federation
    senders = []
    controller._aggregator.accept = lambda shareable, fl_ctx: senders.append(
        shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, "")
    )
    thread, _ = exchange_in_background(controller)
    for site in SITES:
        result = Shareable()
        result.set_peer_props({ReservedKey.IDENTITY_NAME: "site-1"})
        flare.answer(flare.give(site), result)
    flare.task.completion_status = TaskCompletionStatus.OK
    thread.join(2)
    assert senders == SITES


def test_an_abort_ends_the_wait(federation):
    controller, flare = federation
    signal = Signal()
    thread, box = exchange_in_background(controller, signal=signal)
    signal.trigger(True)
    thread.join(2)
    assert "aborted" in box
    assert flare.task.completion_status == TaskCompletionStatus.ABORTED


@pytest.fixture
def ended(federation, tmp_path, monkeypatch):
    """A controller whose run has ended and left results; where its job's directory is, and what it warned of."""
    controller, flare = federation
    (run := tmp_path / "run").mkdir()
    (run / "results.json").write_text("{}")
    (job := tmp_path / "job").mkdir()
    flare.get_workspace = lambda: SimpleNamespace(get_run_dir=lambda job_id: str(job))
    warnings: list[str] = []
    monkeypatch.setattr(controller, "log_warning", lambda fl_ctx, text: warnings.append(text))
    return controller, SimpleNamespace(directory=run), job, warnings


@pytest.mark.parametrize(("simulated", "found"), [(True, []), (False, ["fedproin"])])
def test_the_results_of_a_real_federation_can_be_downloaded(ended, simulated, found):
    controller, server, job, warnings = ended
    controller._simulated = simulated
    controller._deliver(server, FLContext())
    assert [path.name for path in job.iterdir()] == found
    assert warnings == []


def test_results_that_cannot_be_copied_do_not_fail_the_job(ended):
    controller, server, job, warnings = ended
    controller._simulated = False
    job.rmdir()
    job.write_text("in the way")
    controller._deliver(server, FLContext())
    assert warnings == ["The results stay at the server and cannot be downloaded (Not a directory)."]
