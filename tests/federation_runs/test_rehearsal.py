"""poc/run.sh as it is typed: a whole rehearsal, with and without data, Ctrl-C, and one sentence for each mistake."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from local_federation import EXECUTABLES, free_port
from pictures import draw_pictures
from provisioned import JOB, assert_same_run, simulate
from waiting import wait_for

ROOT = Path(__file__).parents[2]


@dataclass
class Typed:
    """A rehearsal that was started, with a TMPDIR of its own."""

    process: subprocess.Popen[bytes]
    log: Path
    tmp: Path

    @property
    def printed(self) -> str:
        return self.log.read_text()

    def alive(self) -> list[psutil.Process]:
        """All processes with this TMPDIR, or with one inside it: every process of a federation."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("TMPDIR", "").startswith(str(self.tmp)):
                    found.append(process)
            except psutil.Error:
                continue
        return found


@contextmanager
def typed(tmp_path: Path, *words: object, **variables: str) -> Iterator[Typed]:
    """`poc/run.sh WORDS`, in a session of its own."""
    tmp, log = tmp_path / "tmp", tmp_path / "log.txt"
    tmp.mkdir()
    path = f"{EXECUTABLES}{os.pathsep}{os.environ['PATH']}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [ROOT / "poc" / "run.sh", *map(str, words)],
            env=os.environ | {"TMPDIR": str(tmp), "PATH": path} | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    rehearsal = Typed(process, log, tmp)
    try:
        yield rehearsal
    finally:
        for left in rehearsal.alive():
            left.kill()
        process.wait()


def test_a_rehearsal_trains_prints_its_rounds_and_leaves_only_results(tmp_path):
    with typed(tmp_path, "--sites", 3, "--keep", tmp_path / "kept") as rehearsal:
        assert rehearsal.process.wait(400) == 0, rehearsal.printed
        assert not rehearsal.alive()
    for number in range(1, 7):
        assert f"round {number}/6  global" in rehearsal.printed
    assert "3 of 3 sites have registered" in rehearsal.printed
    assert "test scores in percent" in rehearsal.printed
    assert list((tmp_path / "kept" / "tensorboard" / "site-3").glob("events*"))
    assert (tmp_path / "kept" / "logs" / "site-3" / "log.txt").exists()
    assert not list(rehearsal.tmp.glob("fedproin-*"))
    assert_same_run(tmp_path / "kept", simulate(["data.synthetic=true"], 3, tmp_path / "simulated"))


def test_a_rehearsal_on_ones_own_pictures_ends_as_the_simulation_of_them(tmp_path):
    draw_pictures(tmp_path / "images", 400, 5)
    data = str(tmp_path / "images" / "table.csv")
    with typed(tmp_path, "--sites", 2, "--keep", tmp_path / "kept", FEDPROIN_DATA=data) as rehearsal:
        assert rehearsal.process.wait(400) == 0, rehearsal.printed
    assert_same_run(tmp_path / "kept", simulate([], 2, tmp_path / "simulated", FEDPROIN_DATA=data))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize("when", ["prepare ", "submit ", "round 1/6"])
def test_an_interrupted_rehearsal_leaves_nothing(tmp_path, number, when):
    if (number, when) == (signal.SIGTERM, "submit "):
        pytest.skip("the other two moments are enough")
    with typed(tmp_path, "--sites", 2) as rehearsal:
        wait_for(lambda: when in rehearsal.printed or rehearsal.process.poll() is not None, 200, when)
        rehearsal.process.send_signal(number)
        assert rehearsal.process.wait(60) == 130, rehearsal.printed
        assert not rehearsal.alive()
        assert not list(rehearsal.tmp.glob("fedproin-*"))


def test_ctrl_c_pressed_again_and_again_leaves_nothing(tmp_path):
    with typed(tmp_path, "--sites", 2) as rehearsal:
        wait_for(lambda: "prepare " in rehearsal.printed, 100, "the kits")
        until = time.monotonic() + 60
        while rehearsal.process.poll() is None and time.monotonic() < until:
            rehearsal.process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        assert rehearsal.process.poll() == 130, rehearsal.printed
        assert not rehearsal.alive()


def refusal(tmp_path: Path, *words: object, **variables: str) -> str:
    """The one sentence with which a rehearsal ends before it has begun."""
    with typed(tmp_path, *words, **variables) as rehearsal:
        assert rehearsal.process.wait(120) == 2, rehearsal.printed
        assert not rehearsal.alive()
        assert not list(rehearsal.tmp.glob("fedproin-poc-*"))
    [sentence] = rehearsal.printed.splitlines()
    return sentence


def test_a_port_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", free_port())) as other:
        port = other.getsockname()[1]
        assert refusal(tmp_path, "--port", port).startswith(f"Port {port} is in use")


def test_a_job_for_more_sites_than_there_are(tmp_path):
    job = changed_job(tmp_path, "meta.json", min_clients=4)
    assert refusal(tmp_path, "--sites", 3, "--job", job) == (
        "The job needs 4 sites (min_clients in meta.json) and there are 3."
    )


def test_data_that_is_not_there(tmp_path):
    said = refusal(tmp_path, "--sites", 2, FEDPROIN_DATA=str(tmp_path / "nothing"))
    assert said.startswith("There is no data at the given path")


def test_a_job_that_is_not_there(tmp_path):
    said = refusal(tmp_path, "--sites", 2, "--job", tmp_path / "nothing")
    assert said.startswith("There is no job in this folder")


def test_a_folder_for_results_that_is_not_empty(tmp_path):
    assert refusal(tmp_path, "--sites", 2, "--keep", ROOT).startswith("The folder of --keep is not empty")


def test_a_job_that_fails_leaves_its_logs_and_the_reason(tmp_path):
    job = changed_job(tmp_path, "app/config/settings.json", partition={"minimum": 10**6})
    with typed(tmp_path, "--sites", 2, "--job", job, "--keep", tmp_path / "kept") as rehearsal:
        assert rehearsal.process.wait(200) == 1, rehearsal.printed
        assert not rehearsal.alive()
    last = rehearsal.printed.splitlines()[-1]
    assert last.startswith("The job ended as FINISHED:")
    assert "minimum" in last
    assert (tmp_path / "kept" / "logs" / "site-1" / "log.txt").exists()


def changed_job(tmp_path: Path, name: str, **changes: object) -> Path:
    """The quick job with other values in one of its files."""
    job = tmp_path / "job" / "fedproin"
    shutil.copytree(JOB, job)
    file = job / name
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return job
