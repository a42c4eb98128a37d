"""Hospitals whose data cannot be used, in part or for a while, with real pictures and processes over mTLS.

Each costs its own site, with a sentence that names no picture. Pictures that were decoded are not read again by the
process that decoded them, so that a picture must be lost before that to matter.
"""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from fedproin.data.location import Location
from fedproin.data.synthetic import CLASSES
from local_federation import SERVER, free_port
from pictures import draw_pictures
from provisioned import Job, Running, assert_same_run, replay
from waiting import wait_for

IMAGES = 60
ABSENT = CLASSES.index("nv")
SITES = ("site-1", NO_TRAINING := "site-2", ONE_IMAGE := "site-3", NO_NV := "site-4", LOSING := "site-5")
NAME = "JaneDoe-1950.png"
ROUNDS = 8
SETTINGS = (
    "data.synthetic=false",
    f"data.classes={json.dumps(CLASSES)}",
    "data.image_size=16",
    "model.width=4",
    "training.steps_per_epoch=2",
    f"federation.rounds={ROUNDS}",
)
UNREADABLE = "images cannot be read; run `fedproin data check` on this machine for their names."


def rewrite(table: Path, change) -> None:
    """Replace the rows of a table by those that `change` makes of them, with a split; the first picture is NAME."""
    header, *rows = csv.reader(table.read_text().splitlines())
    (first, *rest), *others = change(rows)
    table.with_name(first).rename(table.with_name(NAME))
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([[*header, "split"], [NAME, *rest], *others])


TABLES = {
    NO_TRAINING: lambda rows: [[*row, "test"] for row in rows],
    ONE_IMAGE: lambda rows: [[*rows[0], "train"]],
    NO_NV: lambda rows: [[*row, ""] for row in rows if row[1] != "nv"],
}


class Picture:
    """One that can be lost or damaged, and put back as it was."""

    def __init__(self, path: Path) -> None:
        self.path, self.content, status = path, path.read_bytes(), path.stat()
        assert status.st_size

    def vanish(self) -> None:
        self.path.unlink()

    def damage(self) -> None:
        self.path.write_bytes(self.content[:100])

    def put_back(self) -> None:
        self.path.write_bytes(self.content)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, Path]:
    """The table of every site; the first picture of each has the name of a patient."""
    root, tables = tmp_path_factory.mktemp("data"), {}
    for seed, name in enumerate(SITES):
        draw_pictures(root / name, IMAGES, seed)
        tables[name] = root / name / "table.csv"
        rewrite(tables[name], TABLES.get(name, lambda rows: [[*row, ""] for row in rows]))
    return tables


@pytest.fixture(scope="module")
def pictures(data) -> dict[str, Picture]:
    return {name: Picture(table.parent / NAME) for name, table in data.items()}


@pytest.fixture(scope="module")
def federation(tmp_path_factory, data):
    running = Running(tmp_path_factory.mktemp("federation"))
    try:
        running.provision(len(SITES), free_port())
        running.set_up(SERVER)
        for name in SITES:
            running.set_up(name, data[name])
        for name in (SERVER, *SITES):
            running.start(name)
        running.wait_for_sites(set(SITES))
        yield running
    finally:
        running.kill()


def rounds_of(job: Job):
    return job.record.rounds if (job.directory / "results.json").exists() else []


def statuses(job: Job, site: str) -> list[str]:
    return [round_.sites[site].status for round_ in rounds_of(job)]


@pytest.fixture(scope="module")
def lost_and_found(federation, pictures) -> Job:
    """A picture of one site vanishes before it was decoded, is put back, and vanishes again when it was decoded."""
    pictures[LOSING].vanish()
    job = federation.submit("lost_and_found", *SETTINGS, packing=("--preinstalled",))
    wait_for(lambda: rounds_of(job), 240, "the first round")
    pictures[LOSING].put_back()
    wait_for(lambda: "trained" in statuses(job, LOSING), 120, "training with the picture")
    pictures[LOSING].vanish()
    assert len(rounds_of(job)) < ROUNDS  # else nothing below was tried without the picture
    assert federation.wait(job) == "FINISHED:COMPLETED"
    pictures[LOSING].put_back()
    return job


@pytest.fixture(scope="module")
def all_damaged(federation, lost_and_found, pictures) -> Job:
    """Every site that could train has a damaged picture, and one of them has less than it wants to have."""
    (federation.kit(ONE_IMAGE) / "local" / "fedproin.json").write_text(
        json.dumps({"data": str(pictures[ONE_IMAGE].path.with_name("table.csv")), "minimum_count": 2})
    )
    damaged = [pictures[name] for name in SITES if name != NO_TRAINING]
    for picture in damaged:
        picture.damage()
    job = federation.submit("all_damaged", *SETTINGS, "federation.rounds=3", packing=("--preinstalled",))
    wait_for(lambda: rounds_of(job), 240, "the first round")
    for picture in damaged:
        picture.put_back()
    assert federation.wait(job) == "FINISHED:COMPLETED"
    return job


def test_a_lost_picture_costs_its_site_the_rounds_until_it_is_back(lost_and_found):
    first, *later = lost_and_found.record.rounds
    assert first.counted
    assert (first.sites[LOSING].status, first.sites[LOSING].reason) == ("failed", f"1 of {IMAGES} {UNREADABLE}")
    assert "trained" in [round_.sites[LOSING].status for round_ in later[:3]]


def test_a_picture_that_is_lost_after_it_was_decoded_costs_nothing(lost_and_found):
    found = statuses(lost_and_found, LOSING)
    assert set(found[found.index("trained") :]) == {"trained"}
    assert LOSING in lost_and_found.record.last.sites


def test_degenerate_a_site_without_training_images_only_validates(lost_and_found):
    for round_ in lost_and_found.record.rounds:
        site = round_.sites[NO_TRAINING]
        assert (site.status, site.samples, site.notes) == ("validated", 0, ["no_training_images"])


def test_degenerate_one_image_is_trained_with(lost_and_found):
    for round_ in lost_and_found.record.rounds:
        site = round_.sites[ONE_IMAGE]
        assert (site.status, site.samples) == ("trained", 1)
        assert np.count_nonzero(np.sum(site.influence, axis=1)) == 1


def test_degenerate_a_site_without_a_class_does_not_move_its_prototypes(lost_and_found):
    for round_ in lost_and_found.record.rounds:
        assert sum(round_.sites[NO_NV].influence[ABSENT]) == 0
        assert sum(round_.sites["site-1"].influence[ABSENT]) > 0


def test_degenerate_a_round_in_which_all_fail_is_recorded_and_the_next_ones_count(all_damaged):
    first = all_damaged.record.rounds[0]
    assert not first.counted
    for name in ("site-1", NO_NV, LOSING):
        assert first.sites[name].status == "failed"
        assert first.sites[name].reason.startswith("1 of ")
        assert first.sites[name].reason.endswith(UNREADABLE)
        assert statuses(all_damaged, name)[-1] == "trained"
    assert all_damaged.record.rounds[-1].counted


def test_a_site_with_less_than_its_minimum_takes_no_part_and_says_so(all_damaged):
    assert set(statuses(all_damaged, ONE_IMAGE)) == {"failed"}
    assert all_damaged.record.rounds[-1].sites[ONE_IMAGE].reason.startswith("This site takes no part:")
    assert ONE_IMAGE not in all_damaged.record.last.sites


@pytest.mark.parametrize("name", ["lost_and_found", "all_damaged"])
def test_the_model_has_the_bits_of_a_run_in_which_the_failed_sites_were_not_there(name, request, data, tmp_path):
    job = request.getfixturevalue(name)
    record = job.record

    def arriving(site, task, run):
        there = record.last.sites if task.kind == "score" else worked[task.round]
        return run(task) if site in there else None

    worked = [{site for site, own in round_.sites.items() if own.status != "failed"} for round_ in record.rounds]
    locations = {site: Location(data[site], tmp_path / site / "cache", simulated=False) for site in SITES}
    assert_same_run(job.directory, replay(job, locations, tmp_path, arriving))


def test_no_name_of_a_picture_and_no_path_reaches_the_server(federation, data, lost_and_found, all_damaged):
    kit = federation.kit(SERVER)
    secrets = [NAME.encode(), str(data["site-1"].parent.parent).encode()]
    holders = [path.name for path in kit.rglob("*") if path.is_file() and any(s in path.read_bytes() for s in secrets)]
    assert holders == []
