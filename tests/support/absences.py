"""What a federation must come to in which some sites were absent: the same rounds in one process, without FLARE.

Server and sites are the real ones; only the messenger differs, who leaves sites out or loses their answers.
"""

import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fedproin.data.location import locate
from fedproin.federation.messages import Task
from fedproin.federation.opening import open_server
from fedproin.federation.site import Site
from fedproin.tools.jobs import load_job, with_changes
from provisioned import JOB, Job, assert_same_run

Absence = tuple[int, str]
"""A round and the site that has no part in it; the round after the last one is that of the final scores."""


def run_without(
    changes: Sequence[str],
    sites: Sequence[str],
    directory: Path,
    absent: Collection[Absence],
    late: Collection[Absence] = (),
    forgetful: Collection[Absence] = (),
) -> Path:
    """Run a job's settings with the real server and sites; the directory with its results.

    Args:
        absent: a site does not even begin.
        late: a site trains and remembers that, but its answer is lost.
        forgetful: a site has lost what it remembered when the round begins.
    """
    settings = with_changes(load_job(JOB), changes)
    location = locate(settings, simulated=True, site_root=directory)
    server = open_server(settings, sites, location, directory / "fedproin", lambda line: None)
    members = {name: Site(name, settings, location, directory / name / "fedproin") for name in sites}

    def exchange(task: Task, targets: Sequence[str]) -> Mapping[str, str]:
        for name in targets:
            if (task.round, name) in forgetful:
                shutil.rmtree(members[name].directory / "state")
            if (task.round, name) not in absent:
                answer = members[name].run(task)
                if (task.round, name) not in late:
                    server.accept(name, answer)
        return {}

    server.run(exchange)
    return directory / "fedproin"


def assert_right(
    job: Job,
    directory: Path,
    absent: Collection[Absence] = (),
    late: Collection[Absence] = (),
    forgetful: Collection[Absence] = (),
) -> None:
    """Models and scores of a job are, bit for bit, those of a run with these absences and no others."""
    record = job.record
    for round_ in record.rounds:
        out = {site for site in round_.participants if round_.sites[site].status != "trained"}
        assert out == {site for number, site in (*absent, *late) if number == round_.round}
    assert_same_run(job.directory, run_without(job.settings, record.site_names, directory, absent, late, forgetful))
