"""A rehearsal: kits, start, submit, one line a round, results, stop; nothing of it is left but the results.

poc/run.sh --sites 10 --job jobs/fedproin
"""

import argparse
import io
import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from nvflare.fuel.flare_api.api_spec import NoConnection
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from fedproin.data.location import VARIABLE
from fedproin.data.manifest import read_manifest
from fedproin.errors import UserError
from fedproin.federation.console import final_table, round_line
from fedproin.federation.records import RunRecord
from fedproin.federation.results import read_results
from fedproin.tools.jobs import load_job
from local_federation import ADMIN, LEAD, SERVER, LocalFederation, check_project, free_port, require_free

ROOT = Path(__file__).parents[1]
START_SECONDS = 180.0
DONE = "FINISHED:COMPLETED"
INTERRUPTS: list[int] = []


class Failed(Exception):
    """The rehearsal began and did not end well; the message says where the logs are."""


@dataclass(frozen=True)
class Rehearsal:
    """What to rehearse: a job on N sites; `results` is the directory that is left at the end."""

    job: Path
    sites: int
    results: Path
    port: int
    timeout: float
    federation: LocalFederation

    def run(self) -> None:
        """All of it.

        Raises:
            UserError: it cannot begin.
            Failed: it did not end well.
        """
        with step("prepare", f"kits for a server and {self.sites} sites"):
            self.federation.provision(self.sites, self.port)
            packed = self.pack()
            self.set_up_kits(packed)
        with step("start", f"{self.sites} of {self.sites} sites have registered"):
            for name in (SERVER, *self.site_names):
                self.federation.start(name)
            session = self.connect(LEAD)
            self.wait_for_sites(session)
        try:
            status = self.follow(session, session.submit_job(str(packed)))
        finally:
            session.close()
        if status != DONE:
            raise self.failed(f"The job ended as {status}{self.reason()}")
        self.fetch()
        with step("stop", "server and sites have stopped"):
            self.stop()

    @property
    def site_names(self) -> list[str]:
        """`site-1` to `site-N`."""
        return [f"site-{number}" for number in range(1, self.sites + 1)]

    def pack(self) -> Path:
        """The job as hospitals get it, who have the code already; with synthetic pictures when there is no data."""
        out = self.federation.root / "packed"
        pack = ("pack", str(self.job), "--preinstalled", "--out", str(out), "--set", self.change_of_data())
        self.federation.run("fedproin", *pack)
        packed = out / self.job.name
        needed: int = json.loads((packed / "meta.json").read_text()).get("min_clients", 1)
        if needed > self.sites:
            raise UserError(f"The job needs {needed} sites (min_clients in meta.json) and there are {self.sites}.")
        return packed

    def change_of_data(self) -> str:
        """The setting that a job needs where no simulation reads its classes from the one table."""
        table = os.environ.get(VARIABLE)
        if not table:
            return "data.synthetic=true"
        classes = load_job(self.job).data.classes or read_manifest(absolute(table)).classes
        return f"data.classes={json.dumps(classes)}"

    def set_up_kits(self, packed: Path) -> None:
        """What each of them sets up for itself: policies, the server's store, where a site's data is."""
        table, dealt = os.environ.get(VARIABLE), self.federation.root / "data"
        if table:
            deal = ("data", "deal", str(absolute(table)), "--job", str(packed), "-n", str(self.sites))
            self.federation.run("fedproin", *deal, "--out", str(dealt))
        self.federation.set_up(SERVER)
        for name in self.site_names:
            self.federation.set_up(name, dealt / f"{name}.csv" if table else None)

    def connect(self, user: str) -> Session:
        """A session of a person with the server, once it has come up."""
        until = time.monotonic() + START_SECONDS
        while True:
            require_no_interrupt()
            try:
                with quiet():  # it says that it connects, once a try, and traces those that fail
                    return new_secure_session(user, str(self.federation.kit(user)), timeout=5.0)
            except NoConnection:
                if time.monotonic() > until:
                    raise self.failed("The server did not come up") from None

    def wait_for_sites(self, session: Session) -> None:
        """Until all sites have registered with the server."""
        until = time.monotonic() + START_SECONDS
        while missing := set(self.site_names) - {client.name for client in session.get_system_info().client_info}:
            require_no_interrupt()
            if time.monotonic() > until:
                raise self.failed(f"{len(missing)} sites did not register")
            time.sleep(0.5)

    def follow(self, session: Session, job_id: str) -> str:
        """Print a line a round until the job has ended; its status."""
        say("submit", f"job {job_id}")
        until, printed = time.monotonic() + self.timeout, 0
        while True:
            require_no_interrupt()
            status = str(session.get_job_meta(job_id).get("status"))
            printed = self.print_rounds(printed)
            if status.startswith("FINISHED") or status == "FAILED_TO_RUN":
                return status
            if time.monotonic() > until:
                raise UserError(
                    f"The job did not end within {self.timeout:g} s (--timeout): read {self.results / 'logs'}."
                )
            time.sleep(1)

    def print_rounds(self, printed: int) -> int:
        """Print the rounds that are new; how many there are now."""
        found = self.record()
        if found is None:
            return printed
        total = int(found.settings["federation"]["rounds"])  # type: ignore[index]
        for record in found.rounds[printed:]:
            recent = [past.seconds for past in found.rounds[-5:]]
            print(round_line(record, total, sum(recent) / len(recent) * (total - record.round - 1)), flush=True)
        return len(found.rounds)

    def record(self) -> RunRecord | None:
        """What the server has written of the run so far."""
        files = list(self.federation.kit(SERVER).glob("fedproin/*/results.json"))
        return read_results(files[0]) if files else None

    def fetch(self) -> None:
        """Copy what the server keeps of the run: models, results.json, TensorBoard files."""
        [directory] = self.federation.kit(SERVER).glob("fedproin/*/")
        shutil.copytree(directory, self.results, dirs_exist_ok=True)
        print(final_table(read_results(self.results / "results.json"), self.results))

    def failed(self, what: str) -> Failed:
        """What happened, and where to read more."""
        return Failed(f"{what}; the logs are in {self.results / 'logs'}.")

    def reason(self) -> str:
        """Why the server ended the job, by the log that FLARE has packed away."""
        for archive in self.federation.kit(SERVER).glob("store/jobs/*/workspace"):
            log = ZipFile(archive).read("log.txt").decode(errors="replace")
            if found := re.findall(r"FATAL_SYSTEM_ERROR received: (.*)", log):
                return f" ({found[-1].rstrip('.')})"
        return ""

    def keep_logs(self) -> None:
        """The logs of server and sites, and a failed site's own traceback."""
        for kit in self.federation.root.glob("workspace/*/prod_*/*/"):
            for pattern in ("log.txt", "console.log", "*/log.txt", "fedproin/error.log"):
                for file in kit.glob(pattern):
                    target = self.results / "logs" / kit.name / file.relative_to(kit)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, target)

    def stop(self) -> None:
        """As an admin does it."""
        session = self.connect(ADMIN)
        with quiet():
            session.shutdown("all", timeout=30)


def say(what: str, text: str) -> None:
    """One line of progress."""
    print(f"{what:<8}  {text}", flush=True)


@contextmanager
def step(what: str, done: str) -> Iterator[None]:
    """Say that a step is done, and how long it took."""
    started = time.monotonic()
    yield
    say(what, f"{done}  {time.monotonic() - started:.1f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse; 0 when the job has completed, 2 after a mistake, 1 after a failure, 130 after Ctrl-C."""
    parsed = parse(arguments)
    try:
        if parsed.check_project:
            print(f"ok: {check_project(parsed.check_project)}")
            return 0
        rehearse(parsed)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped; nothing of it runs any more.", file=sys.stderr)
        return 130
    return 0


def rehearse(parsed: argparse.Namespace) -> None:
    """One rehearsal in a directory of its own, which is gone afterwards, as are all processes."""
    if parsed.sites < 2:
        raise UserError("A federation needs at least 2 sites: give --sites 2 or more.")
    port = parsed.port or free_port()
    require_free(port)
    results, root = new_results(parsed.keep), Path(tempfile.mkdtemp(prefix="fedproin-poc-"))
    rehearsal = Rehearsal(parsed.job.absolute(), parsed.sites, results, port, parsed.timeout, LocalFederation(root))
    started, interrupted = time.monotonic(), False
    try:
        try:
            rehearsal.run()
        finally:
            ignore_interrupts()
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        rehearsal.federation.kill()
        rehearsal.keep_logs()
        shutil.rmtree(root, ignore_errors=True)
        if not any(results.iterdir()) or (interrupted and not parsed.keep):
            shutil.rmtree(results)
    say("done", f"{time.monotonic() - started:.1f} s, results in {results}")


def new_results(wanted: Path | None) -> Path:
    """The directory for results: a new one, or the one that was asked for, which must be empty."""
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="fedproin-results-"))
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        if any(wanted.iterdir()):
            raise UserError("The folder of --keep is not empty: name a new one.")
    except OSError as error:
        raise UserError(f"The folder of --keep cannot be written ({error.strerror}): choose another place.") from error
    return wanted.absolute()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="poc/run.sh", description="Rehearse a federation on this machine.")
    parser.add_argument("--sites", type=int, default=10, metavar="N", help="number of sites (default: 10)")
    parser.add_argument("--job", type=Path, default=ROOT / "jobs" / "fedproin", help="job folder")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where results go (default: a new directory)")
    parser.add_argument("--port", type=int, help="of the server (default: a free one)")
    parser.add_argument("--timeout", type=float, default=3600, metavar="SECONDS", help="for the job (default: an hour)")
    parser.add_argument("--check-project", type=Path, metavar="FILE", help="only check a project file")
    return parser.parse_args(arguments)


def absolute(path: str) -> Path:
    """Relative to the directory in which the command was typed."""
    return Path(os.environ.get("PWD", ".")) / Path(path).expanduser()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what FLARE prints off the console."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


def interrupt(number: int, frame: object) -> None:
    """Ctrl-C and SIGTERM end a rehearsal."""
    INTERRUPTS.append(number)
    if len(INTERRUPTS) > 1:  # it is on its way out already
        ignore_interrupts()
    raise KeyboardInterrupt


def require_no_interrupt() -> None:
    """FLARE swallows whatever is raised while it connects; so ask again when it returns."""
    if INTERRUPTS:
        raise KeyboardInterrupt


def ignore_interrupts() -> None:
    """From here on to the end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    logging.disable(logging.ERROR)  # FLARE's, of tries to connect before the server is up
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a connection of FLARE that was interrupted leaves threads behind that never end
