"""Real runs, tiny: side by side, resumed, killed, interrupted, and with the bits of the other ways to run a job."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from threading import Thread

import psutil
import pytest

from fedproin.federation.console import duration
from fedproin.settings import Settings, parse
from fedproin.tools.bench.engines import JOB, write_job
from fedproin.tools.bench.plan import plan
from fedproin.tools.bench.pool import make_runs
from fedproin.tools.bench.progress import Progress
from fedproin.tools.bench.result import Provenance, finished, read_result
from fedproin.tools.bench.spec import load_spec
from fedproin.tools.bench.worker import Work
from fedproin.tools.cli import main
from waiting import wait_for

LONG = ("rounds = 1", "rounds = 10000")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """2 rows x 2 partitions x 2 seeds with two workers: the folder, what was printed, the seconds."""
    from handmade import SPEC

    folder = tmp_path_factory.mktemp("made")
    (folder / "tiny.toml").write_text(SPEC)
    started = time.monotonic()
    done = bench(folder / "tiny.toml", folder / "out", "--workers", "2")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout.splitlines(), time.monotonic() - started


def command(spec, out, *words: str):
    return [sys.executable, "-m", "fedproin", "bench", str(spec), "--out", str(out), *words]


def bench(spec, out, *words: str):
    return subprocess.run(command(spec, out, *words), capture_output=True, text=True, check=False)


def test_the_whole_product_with_a_line_a_run(made):
    folder, printed, seconds = made
    assert printed[0] == "tiny: 8 runs, 0 are there, 2 at a time, data synthetic"
    assert [line.split()[0] for line in printed[1:9]] == [f"{number}/8" for number in range(1, 9)]
    assert all(" a run, " in line and line.endswith("left)") for line in printed[1:9])
    assert printed[9].startswith("8 of 8 runs are done; in ")
    assert sorted(path.relative_to(folder / "out" / "runs").as_posix() for path in folder.glob("out/runs/*/*/*")) == [
        f"{row}/{partition}/seed{seed}.json"
        for row in ("fedproin", "no_fdl")
        for partition in ("dirichlet", "iid")
        for seed in (0, 1)
    ]
    assert "not run" not in (folder / "out" / "table.md").read_text()
    assert "SYNTHETIC" in (folder / "out" / "table.md").read_text()
    assert seconds < 120  # a few on an idle machine


def test_what_is_done_is_not_made_again(made, capsys):
    folder, *_ = made
    times = {path: path.stat().st_mtime_ns for path in folder.glob("out/runs/*/*/*")}
    assert main(["bench", str(folder / "tiny.toml"), "--out", str(folder / "out")]) == 0
    assert "8 runs, 8 are there" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in folder.glob("out/runs/*/*/*")} == times


def test_the_bits_are_those_of_simulate(made, tmp_path):
    folder, *_ = made
    run = next(run for run in plan(load_spec(folder / "tiny.toml")) if str(run) == "no_fdl dirichlet seed 1")
    write_job(tmp_path / "job", run.settings)
    assert main(["simulate", str(tmp_path / "job"), "-w", str(tmp_path / "ws"), "-n", "2"]) == 0
    simulated = json.loads((tmp_path / "ws" / "fedproin" / "results.json").read_text())
    result = dataclasses.asdict(read_result(folder / "out" / run.file))
    for model in ("last", "best"):
        assert result[model]["confusion"] == simulated[model]["confusion"]
        assert result[model]["test"] == simulated[model]["test"]
    assert result["last"]["validation"] == simulated["last"]["validation"]
    assert result["steps"] == sum(site["steps"] for past in simulated["rounds"] for site in past["sites"].values())


def test_the_report_alone_needs_no_data_and_starts_nothing(made, tmp_path, capsys, monkeypatch):
    folder, *_ = made
    monkeypatch.setenv("FEDPROIN_DATA", "/nowhere")
    (folder / "out" / "table.md").unlink()
    assert main(["bench", str(folder / "tiny.toml"), "--out", str(folder / "out"), "--report"]) == 0
    assert (folder / "out" / "table.md").exists()
    assert main(["bench", str(folder / "tiny.toml"), "--out", str(tmp_path / "empty"), "--report"]) == 0
    assert (tmp_path / "empty" / "table.md").read_text().count("not run") == 4 * 4
    assert "0 of 8 runs are done" in capsys.readouterr().out


def test_other_settings_are_a_sentence_and_redo_makes_them_again(made, tmp_path, capsys, write_spec):
    folder, *_ = made
    changed = write_spec(("seeds = [0, 1]", "seeds = [0]"), ("batch_size = 32", "batch_size = 16"))
    words = ["bench", str(changed), "--out", str(tmp_path / "out"), "--workers", "2"]
    for name in ("no_fdl", "fedproin"):
        target = tmp_path / "out" / "runs" / name / "iid" / "seed0.json"
        target.parent.mkdir(parents=True)
        target.write_bytes((folder / "out" / "runs" / name / "iid" / "seed0.json").read_bytes())
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(
        "2 of 2 results in the folder are not of this spec (runs/fedproin/iid/seed0.json: "
        "training.batch_size was 32 and is 16): give --redo "
    )
    assert main([*words, "--redo"]) == 0
    printed = capsys.readouterr().out
    assert "2 results of other settings or other data are removed" in printed
    assert "4 of 4 runs are done" in printed


@pytest.fixture
def slow_bench(write_spec, tmp_path):
    """A bench of endless runs in its own process group, once both workers train, and its processes."""
    process = subprocess.Popen(
        command(write_spec(LONG), tmp_path / "out", "--workers", "2"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    processes = []
    try:
        wait_for(lambda: len(training_logs(tmp_path)) == 2, 100, "training in both workers")
        processes = psutil.Process(process.pid).children(recursive=True)
        yield process, processes
    finally:
        process.kill()
        process.communicate()
        for one in processes:
            with suppress(psutil.NoSuchProcess):
                one.kill()


def training_logs(folder):
    logs = folder.glob("fedproin_bench_*/*/log.txt")
    return [log for log in logs if "/10000  global" in log.read_text()]


def alive(processes, seconds=30):
    _, left = psutil.wait_procs(processes, timeout=seconds)
    return [one for one in left if one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_and_no_half_file_is_left(slow_bench, tmp_path, number):
    process, processes = slow_bench
    assert len(processes) >= 3  # two workers and the fork server
    process.send_signal(number)
    printed, errors = process.communicate(timeout=60)
    assert not alive(processes)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert printed.splitlines()[-1].startswith("Stopped; the same command goes on from here")
        assert errors == ""
        assert not list(tmp_path.glob("fedproin_bench_*"))


def test_a_killed_worker_costs_its_run_and_the_next_call_makes_it(write_spec, tmp_path, monkeypatch, capsys):
    runs = plan(load_spec(write_spec(("seeds = [0, 1]", "seeds = [0]"))))[:2]
    shared = Work(tmp_path / "out", Provenance("typed", "local", "synthetic"))
    values = dataclasses.asdict(runs[0].settings) | {"federation": {"rounds": 10_000}}
    endless = dataclasses.replace(runs[0], settings=parse(Settings, values))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killer = Thread(target=kill_the_worker, args=(tmp_path,))
    killer.start()
    progress = Progress(total=2, done=0, workers=2)
    make_runs([endless, runs[1]], shared, 2, progress)
    killer.join()
    printed = capsys.readouterr().out
    assert "fedproin iid seed 0  FAILED after" in printed
    assert "its process was killed by SIGKILL" in printed
    assert (progress.done, progress.failed) == (1, 1)
    assert list(finished(runs, tmp_path / "out")) == [runs[1].file]
    make_runs(runs[:1], shared, 2, Progress(total=2, done=1, workers=2))
    assert len(finished(runs, tmp_path / "out")) == 2


def kill_the_worker(folder):
    """Kill the one process that writes the log of the endless run, as the kernel does when memory is short."""
    wait_for(lambda: training_logs(folder), 100, "training in the worker")
    [log] = training_logs(folder)
    for one in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if os.path.realpath(f"/proc/{one.pid}/fd/1") == str(log.resolve()):
                one.kill()


def test_a_run_that_cannot_be_is_said_and_the_others_go_on(write_spec, tmp_path, capsys):
    spec = write_spec(("seeds = [0, 1]", "seeds = [0]"), ("minimum = 4", "minimum = 4000"))
    assert main(["bench", str(spec), "--out", str(tmp_path / "out"), "--workers", "2"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("2 sites with 4000 training images each need more than") == 2
    assert "2 of 4 runs are done" in printed
    assert "not run" in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--workers", "0"], "must be a number of at least 1, got 0"),
        (["--workers", "x"], "must be a number of at least 1, got x"),
        (["--engine", "remote"], "invalid choice: 'remote'"),
    ],
)
def test_words_that_cannot_be(write_spec, tmp_path, capsys, words, sentence):
    with pytest.raises(SystemExit):
        main(["bench", str(write_spec()), "--out", str(tmp_path / "out"), *words])
    assert sentence in capsys.readouterr().err


def test_a_mistake_in_the_spec_starts_nothing(write_spec, tmp_path, capsys):
    words = ["bench", str(write_spec(("lambda_fdl = 0", "lambda_fld = 0"))), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert capsys.readouterr().err == (
        "Row 'no_fdl': Unknown setting 'method.lambda_fld': did you mean 'lambda_fdl'?\n"
    )
    assert not (tmp_path / "out").exists()


def test_the_command_line_starts_without_torch_and_pictures():
    code = "import sys, fedproin.tools.cli; print([n for n in ('torch', 'scipy', 'matplotlib') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_job_for_the_simulator_is_that_of_the_repository(tmp_path, make_settings):
    from pathlib import Path

    config = Path(__file__).parents[3] / "jobs" / "fedproin" / "app" / "config"
    assert {name: json.loads((config / name).read_text()) for name in JOB} == JOB
    write_job(tmp_path / "job", make_settings(seed=3))
    assert json.loads((tmp_path / "job" / "app" / "config" / "settings.json").read_text())["seed"] == 3
    assert json.loads((tmp_path / "job" / "meta.json").read_text())["deploy_map"] == {"app": ["@ALL"]}


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (133, "2:13"), (3733, "1:02:13")])
def test_durations(seconds, text):
    assert duration(seconds, decimals=0) == text


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_simulator_ends_with_the_same_bits(made, write_spec, tmp_path):
    folder, *_ = made
    spec = write_spec(("seeds = [0, 1]", "seeds = [1]"), ("[partitions.dirichlet]", "[partitions.other]"))
    text = spec.read_text().replace('[partitions.iid]\nkind = "iid"\n', "")
    text = text[: text.index("[rows.no_fdl]")].replace("partitions.other", "partitions.dirichlet")
    spec.write_text(text)
    done = bench(spec, tmp_path / "out", "--engine", "simulator", "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    name = "runs/fedproin/dirichlet/seed1.json"
    one, other = (read_result(path / name) for path in (tmp_path / "out", folder / "out"))
    assert (one.engine, other.engine) == ("simulator", "local")
    assert (one.last, one.best, one.validation, one.steps) == (other.last, other.best, other.validation, other.steps)
