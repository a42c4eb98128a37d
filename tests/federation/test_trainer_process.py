"""Real processes, killed and stopped: a trainer's end costs its site one answer, and none of them is left behind."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from fedproin.data.cache import default_directory
from fedproin.data.location import Location
from fedproin.data.synthetic import CLASSES
from fedproin.federation import trainer_process
from fedproin.federation.messages import Task
from fedproin.federation.trainer_process import SiteArguments, TrainerProcess
from fedproin.methods import create_method

RUN = "0123456789abcdef"
ENDLESS = 10**6


def our_children(of=None):
    """All processes below this one but Python's own tracker of shared memory, which ends with its parent."""
    children = (of or psutil.Process()).children(recursive=True)
    return [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]


def never():
    return False


@pytest.fixture
def trainer(tmp_path, make_settings):
    """A trainer that, if it is drawn, trains without end; not started yet."""
    settings = make_settings(training={"local_epochs": ENDLESS}, data={"classes": list(CLASSES)})
    location = Location(None, default_directory(), simulated=True)
    made = TrainerProcess(SiteArguments("site-1", settings, location, tmp_path / "site-1"))
    yield made
    made.stop()
    assert our_children() == []


def make_task(trainer, train=(), deadline=None, padding=0):
    settings = trainer._site.settings
    torch.manual_seed(0)
    model = {name: np.asarray(value) for name, value in create_method(settings).build().state_dict().items()}
    model |= {"padding": np.zeros(padding, np.uint8)} if padding else {}
    sites = ("site-1", "site-2")
    return Task("round", RUN, settings.digest(), 0, sites, train, True, deadline, model)


def test_sigkill_in_an_epoch_costs_one_answer(trainer):
    validated = trainer.run(make_task(trainer), never)
    assert validated.error == ""
    assert validated.confusion["val"].sum() > 0
    pid, started = trainer._process.pid, time.monotonic()
    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"
    busy = psutil.Process(pid).cpu_times().user

    def kill():
        if psutil.Process(pid).cpu_times().user > busy + 0.3:  # it is in its epochs by then: all else is loaded
            os.kill(pid, signal.SIGKILL)
        return False

    answer = trainer.run(make_task(trainer, train=("site-1",)), kill)
    assert answer.error == (
        "The trainer process was killed by signal 9 (out of memory?); this site takes part again in its next round."
    )
    assert not answer.trained
    assert time.monotonic() - started < 30
    assert not psutil.pid_exists(pid)

    again = trainer.run(make_task(trainer), never)
    assert np.array_equal(again.confusion["val"], validated.confusion["val"])
    second = trainer._process.pid
    assert second != pid
    assert trainer.run(make_task(trainer), never).error == ""
    assert trainer._process.pid == second  # it is kept while it lives

    os.kill(second, signal.SIGKILL)  # between two tasks nobody notices
    trainer._process.join()
    assert trainer.run(make_task(trainer, train=("site-1",), deadline=1.0), never).error == (
        "Training was stopped at the round's deadline."
    )


def test_abort_ends_the_process(trainer):
    answer = trainer.run(make_task(trainer, train=("site-1",)), lambda: True)
    assert answer.error == "The server stopped this task."
    assert trainer._process is None
    assert our_children() == []


def test_the_deadline_holds_though_the_process_hangs(trainer, monkeypatch):
    """Not even the task gets through: it is larger than a pipe, and the process does not read."""
    monkeypatch.setattr(trainer_process, "GRACE_SECONDS", 0.5)
    started = time.monotonic()

    def hang():
        os.kill(trainer._process.pid, signal.SIGSTOP)
        return False

    answer = trainer.run(make_task(trainer, deadline=1.0, padding=10**7), hang)
    assert answer.error == "Training was stopped at the round's deadline."
    assert 0.9 < time.monotonic() - started < 5
    assert 0.9 < answer.seconds < 5


def test_a_site_that_cannot_start_says_why(tmp_path, make_settings):
    """Each task gets a new process after a failure: what was missing may be there by then."""
    settings = make_settings(data={"classes": list(CLASSES)}, model={"backbone": "efficientnet_lite0"})  # with width 4
    trainer = TrainerProcess(SiteArguments("site-1", settings, Location(None, tmp_path, True), tmp_path / "site-1"))
    task = Task("round", RUN, settings.digest(), 0, ("site-1",), (), True, None, {})
    try:
        answers = [trainer.run(task, never) for _ in range(2)]
        assert trainer._process is None
    finally:
        trainer.stop()
    assert {answer.error for answer in answers} == {"EfficientNet-Lite0 has one width; leave model.width at 64, got 4."}
    assert (tmp_path / "site-1" / "error.log").exists()


def test_stopping_twice_or_before_a_start_does_nothing(trainer):
    trainer.stop()
    trainer.stop()


PARENT = """
import pickle, sys, threading, time
from pathlib import Path
from fedproin.federation.trainer_process import TrainerProcess

if __name__ == "__main__":
    site, task = pickle.loads(Path(sys.argv[1]).read_bytes())
    trainer = TrainerProcess(site)
    threading.Thread(target=trainer.run, args=(task, lambda: False), daemon=True).start()
    while trainer._process is None or trainer._process.pid is None:
        time.sleep(0.01)
    print(trainer._process.pid, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("busy", [0.2, 5.0], ids=["while it starts", "while it trains"])
def test_the_process_ends_with_its_parent(trainer, tmp_path, busy):
    """The parent is killed after the trainer has worked for some seconds; from the fourth on it is in its epochs."""
    script, arguments = tmp_path / "parent.py", tmp_path / "arguments"
    script.write_text(PARENT)
    arguments.write_bytes(pickle.dumps((trainer._site, make_task(trainer, train=("site-1",)))))
    parent = subprocess.Popen([sys.executable, str(script), str(arguments)], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    while child.cpu_times().user < busy:
        time.sleep(0.05)
    family = psutil.Process(parent.pid).children(recursive=True)
    assert child in family
    parent.kill()
    parent.wait()
    parent.stdout.close()
    gone, alive = psutil.wait_procs(family, timeout=10)
    for process in alive:
        process.kill()
    assert alive == []
    assert child in gone
