import io
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedproin.federation.records import FinalRecord, RoundRecord, RunRecord, SiteRecord
from fedproin.federation.tracking import Tracker

CLASSES = ["akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"]
EPOCHS = 3
SCORES = {"accuracy": 0.7, "f1_weighted": 0.65, "f1_macro": 0.5, "balanced_accuracy": 0.6, "mcc": 0.55}
PROTOTYPES = np.arange(7 * 2 * 4, dtype=np.float32).reshape(7, 2, 4)


def confusion(count=5):
    return (np.eye(len(CLASSES), dtype=int) * count + 1).tolist()


def trained(round_, loss=1.0):
    influence = [[10 * row + 1, 3] for row in range(len(CLASSES))]
    influence[2][0] = 0
    losses = {term: [loss / (round_ + 1)] * EPOCHS for term in ("total", "task", "fdl")}
    return SiteRecord("trained", "", 4.1, 1000, 2000, 80, 12, losses, influence, dict(SCORES))


def a_round(round_, names=("site-1", "site-2"), loss=1.0):
    unused = [[row == 2 and column == 0 for column in range(2)] for row in range(len(CLASSES))]
    sites = {name: trained(round_, loss) for name in names}
    sites |= {"site-8": SiteRecord("validated", validation=dict(SCORES)), "site-9": SiteRecord("refused", "NaN")}
    return RoundRecord(round_, [*names, "site-9"], sites, True, dict(SCORES), confusion(), unused, 9.5)


def a_run(rounds):
    def final(version):
        return FinalRecord(version, dict(SCORES), dict(SCORES), confusion(), [0.5] * 7, {"site-1": dict(SCORES)})

    records = [a_round(round_) for round_ in range(rounds)]
    run = RunRecord("r", "id", "fedproin", 0, "digest", {}, {}, CLASSES, ["site-1"], "table", rounds=records)
    run.last, run.best = final(rounds), final(1)
    return run


def track(directory, rounds, resume_from=0, final=False, loss=1.0):
    if any(directory.iterdir()):
        time.sleep(
            1.01 - time.time() % 1
        )  # the names of event files sort by the second, as a new process would be later
    tracker = Tracker(directory, CLASSES, resume_from)
    for round_ in range(resume_from, rounds):
        tracker.round(a_round(round_, loss=loss), PROTOTYPES)
    if final:
        tracker.final(a_run(rounds), PROTOTYPES)
    tracker.close()


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    return events


def steps(events, tag):
    return [event.step for event in events.Scalars(tag)]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tensorboard")
    track(directory, rounds=3, final=True)
    return directory


def test_one_run_a_site_and_a_global_one(tracked):
    assert sorted(path.name for path in tracked.iterdir()) == ["global", "site-1", "site-2", "site-8"]


def test_site_tags(tracked):
    tags = read(tracked / "site-1").Tags()
    validation = {f"validation/{name}" for name in SCORES}
    test = {f"{model}/{name}" for name in SCORES for model in ("test_last", "test_best")}
    losses = {"loss/total", "loss/task", "loss/fdl"}
    assert set(tags["scalars"]) == validation | test | losses | {"site/seconds", "site/steps", "prototypes/used"}
    assert tags["images"] == ["influence"]


def test_a_site_that_only_validates_has_only_validation(tracked):
    assert set(read(tracked / "site-8").Tags()["scalars"]) == {f"validation/{name}" for name in SCORES}


def test_losses_have_one_point_a_local_epoch_and_the_rest_one_a_round(tracked):
    events = read(tracked / "site-1")
    assert steps(events, "loss/task") == list(range(3 * EPOCHS))
    assert steps(events, "validation/mcc") == steps(events, "site/steps") == [0, 1, 2]


def test_values_of_a_site(tracked):
    events = read(tracked / "site-1")
    assert events.Scalars("prototypes/used")[0].value == pytest.approx(13 / 14)
    assert events.Scalars("loss/task")[-1].value == pytest.approx(1 / 3)


def test_global_values(tracked):
    events = read(tracked / "global")
    first = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"] if tag.startswith("federation/")}
    assert first == {
        "federation/participants": 3,
        "federation/trained": 2,
        "federation/refused": 1,
        "federation/bytes_up": 4000,
        "federation/seconds": 9.5,
    }
    assert events.Scalars("prototypes/used")[0].value == pytest.approx(13 / 14)


def test_the_last_model_closes_the_validation_curve(tracked):
    events = read(tracked / "global")
    assert steps(events, "validation/mcc") == [0, 1, 2, 3]
    assert steps(events, "test_last/mcc") == [3]
    assert steps(events, "test_best/mcc") == [1]


@pytest.mark.parametrize(
    ("tag", "count"),
    [("influence", 3), ("confusion/validation", 3), ("confusion/test_last", 1), ("confusion/test_best", 1)],
)
def test_images_can_be_decoded(tracked, tag, count):
    images = [Image.open(io.BytesIO(image.encoded_image_string)) for image in read(tracked / "global").Images(tag)]
    assert len(images) == count
    assert all(min(image.size) > 100 and len(image.getcolors(10**6)) > 5 for image in images)


def test_prototypes_are_in_the_projector(tracked):
    folder = tracked / "global"
    config = (folder / "projector_config.pbtxt").read_text()
    for version in (1, 2, 3):  # the powers of two, and the last
        assert f"{version:05d}/prototypes/tensors.tsv" in config
        table = np.loadtxt(folder / f"{version:05d}" / "prototypes" / "tensors.tsv", delimiter="\t")
        np.testing.assert_array_equal(table, PROTOTYPES.reshape(14, 4))
    labels = (folder / "00003" / "prototypes" / "metadata.tsv").read_text().splitlines()
    assert labels[:3] == ["prototype\tclass", "akiec 0\takiec", "akiec 1\takiec"]
    assert len(labels) == 15


def test_a_method_without_prototypes_or_validation(tmp_path):
    tracker = Tracker(tmp_path, CLASSES)
    tracker.round(RoundRecord(0, ["site-1"], {"site-1": SiteRecord("trained", losses={"total": [float("nan")]})}))
    tracker.close()
    assert "prototypes/used" not in read(tmp_path / "site-1").Tags()["scalars"]
    assert read(tmp_path / "global").Tags()["images"] == []


@pytest.mark.parametrize("written", [2, 4], ids=["stopped between rounds", "two rounds must be done again"])
def test_a_resumed_run_repeats_no_step_and_loses_none(tmp_path, written):
    track(tmp_path, rounds=written, loss=7.0)
    track(tmp_path, rounds=5, resume_from=2, final=True)
    for run in ("site-1", "global"):
        events = read(tmp_path / run)
        for tag in events.Tags()["scalars"]:
            assert steps(events, tag) == sorted(set(steps(events, tag))), tag
        assert [image.step for image in events.Images("influence")] == [0, 1, 2, 3, 4]
    losses = read(tmp_path / "site-1").Scalars("loss/total")
    assert [event.step for event in losses] == list(range(5 * EPOCHS))
    assert [event.value for event in losses[EPOCHS : 3 * EPOCHS]] == pytest.approx([7 / 2] * EPOCHS + [1 / 3] * EPOCHS)


def test_a_run_that_is_resumed_twice(tmp_path):
    for resume_from, rounds in ((0, 3), (2, 5), (1, 4)):
        track(tmp_path, rounds, resume_from)
    assert steps(read(tmp_path / "site-1"), "loss/total") == list(range(4 * EPOCHS))


def test_a_torn_last_record_is_cut_off(tmp_path):
    track(tmp_path, rounds=2)
    for path in tmp_path.glob("*/events.out.tfevents.*"):
        with path.open("ab") as file:
            file.write(b"\x2a\0\0\0\0\0\0\0torn")
    track(tmp_path, rounds=3, resume_from=2)
    assert steps(read(tmp_path / "global"), "federation/seconds") == [0, 1, 2]


def test_importing_it_does_not_import_torch():
    code = "import sys, fedproin.federation.tracking; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_round_of_ten_sites_is_quick(tmp_path):
    names = [f"site-{number}" for number in range(1, 11)]
    tracker = Tracker(tmp_path, CLASSES)
    tracker.round(a_round(0, names), PROTOTYPES)
    started = time.process_time()
    tracker.round(a_round(1, names), PROTOTYPES)
    assert time.process_time() - started < 1.0  # about 0.15 s; a busy machine must not fail it
    tracker.close()
