"""One good answer, and a table of what may be wrong with it: each must be refused as a whole, with its reason."""

from dataclasses import replace

import numpy as np
import pytest

from answers import MODEL, RUN
from fedproin.federation.messages import Answer, Task
from fedproin.federation.open_round import Expected, OpenRound
from fedproin.methods.base import ExtraSpec

PUBLIC_ONLY = {"bn": np.ones(3, np.float32)}  # sent, but not shared
COUNTS = np.array([[3, 1, 0], [0, 2, 0], [1, 0, 0]])
GOOD = Answer(
    kind="round",
    run_id=RUN,
    round=4,
    trained=True,
    tensors={**MODEL, "w": MODEL["w"] + 0.1, "prototypes": MODEL["prototypes"] * 2, "batches": np.array(9, np.int64)},
    extras={"influence": np.array([[3, 1], [2, 2], [0, 0]])},
    samples=8,
    steps=2,
    presentations=16,
    losses={"total": [0.5, 0.4], "task": [0.4, 0.3]},
    confusion={"val": COUNTS},
    notes=("state_damaged",),
    seconds=1.5,
)
VALIDATED = replace(GOOD, trained=False, tensors={}, extras={}, losses={}, steps=0, presentations=0)
FAILED = Answer("round", RUN, 4, error="This site has no data configured.", seconds=0.1)


@pytest.fixture
def opened(make_settings):
    settings = make_settings(data={"classes": ["a", "b", "c"]}, training={"local_epochs": 2})
    task = Task("round", RUN, "digest", 4, ("a", "b", "c"), ("a", "b"), True, None, {**MODEL, **PUBLIC_ONLY})
    expected = Expected(settings, frozenset(MODEL), {"influence": ExtraSpec((3, 2))}, False)
    return OpenRound(task, ("a", "b", "c"), expected)


def tensors(**changes):
    return {"tensors": {**GOOD.tensors, **changes}}


def influence(values, dtype=np.int64):
    return {"extras": {"influence": np.array(values, dtype)}}


def filled(name, value):
    array = GOOD.tensors[name].copy()
    array.flat[-1] = value
    return tensors(**{name: array})


ANOTHER = "it answers another round or run"
NAMES = "its tensors have other names than the model's"
SHAPE = "a tensor has another shape or type than the model's"
VALUES = "a tensor holds NaN or infinite values"
INFLUENCE = "its influence is not a matrix of counts that fits its training"
STEP = "its step is larger than federation.max_step allows"
ASKED = "its scores are not those that were asked for"
SCORES = "its scores are not counts of the job's classes"
LOSSES = "its losses are not one number a term and epoch"
EMPTY = "it trained without images or steps"
SECONDS = "its seconds are not a time"
ODD = "could not be checked"
UPDATE = "it has an update that it should not have"
UNSAID = "a field is not of its type or length"

REFUSED = {
    "an old round": ({"round": 3}, ANOTHER),
    "a later round": ({"round": 5}, ANOTHER),
    "another run": ({"run_id": "f" * 16}, ANOTHER),
    "another task": ({"kind": "score"}, ANOTHER),
    "synthetic pictures": ({"synthetic": True}, "it used synthetic pictures and the federation does not"),
    "NaN": (filled("w", np.nan), VALUES),
    "infinite": (filled("prototypes", -np.inf), VALUES),
    "a missing tensor": ({"tensors": {k: v for k, v in GOOD.tensors.items() if k != "prototypes"}}, NAMES),
    "an unknown tensor": (tensors(other=np.ones(1)), NAMES),
    "a tensor that is not shared": (tensors(bn=np.ones(3, np.float32)), NAMES),
    "no tensors": ({"tensors": {}}, NAMES),
    "another shape": (tensors(w=np.ones((3, 2), np.float32)), SHAPE),
    "another number of prototypes": (tensors(prototypes=np.ones((3, 1, 4), np.float32)), SHAPE),
    "a shape that would broadcast": (tensors(w=np.ones((1, 3), np.float32)), SHAPE),
    "half precision": (tensors(w=np.ones((2, 3), np.float16)), SHAPE),
    "objects": (tensors(w=np.full((2, 3), None)), SHAPE),
    "a list": (tensors(w=[[1.0] * 3] * 2), SHAPE),
    "a counter that is no integer": (tensors(batches=np.array(9.0)), SHAPE),
    "a negative variance": (filled("norm.running_var", -0.1), "a variance is negative"),
    "a huge step": (filled("w", 1e6), STEP),
    "a step beyond float32's squares": (filled("w", 3e38), STEP),
    "no influence": ({"extras": {}}, NAMES),
    "an unknown extra": ({"extras": {**GOOD.extras, "more": np.ones(1)}}, NAMES),
    "negative influence": (influence([[3, -1], [2, 2], [0, 0]]), INFLUENCE),
    "influence beyond the images": (influence([[17, 0], [0, 0], [0, 0]]), INFLUENCE),
    "influence whose sum overflows": (influence(np.full((3, 2), 2**62)), INFLUENCE),
    "influence of another shape": (influence([[3, 1, 0], [2, 2, 0]]), INFLUENCE),
    "influence in floats": (influence([[3, 1], [2, 2], [0, 0]], np.float64), INFLUENCE),
    "influence that is no array": ({"extras": {"influence": [[3, 1], [2, 2], [0, 0]]}}, INFLUENCE),
    "no images": ({"samples": 0}, EMPTY),
    "no steps": ({"steps": 0}, EMPTY),
    "negative images": ({"samples": -8}, "its number of samples is not a count"),
    "images in floats": ({"samples": 8.0}, "its number of samples is not a count"),
    "images beyond belief": ({"samples": 10**12}, "its number of samples is not a count"),
    "a truth for a number": ({"presentations": True}, "its number of presentations is not a count"),
    "no scores": ({"confusion": {}}, ASKED),
    "scores of the test part": ({"confusion": {"val": COUNTS, "test_last": COUNTS}}, ASKED),
    "scores of other classes": ({"confusion": {"val": COUNTS[:2, :2]}}, SCORES),
    "negative scores": ({"confusion": {"val": -COUNTS}}, SCORES),
    "scores in floats": ({"confusion": {"val": COUNTS.astype(float)}}, SCORES),
    "scores beyond belief": ({"confusion": {"val": COUNTS * 10**9}}, SCORES),
    "losses of too many epochs": ({"losses": {"total": [0.1] * 3}}, LOSSES),
    "losses that are no numbers": ({"losses": {"total": ["0.1"]}}, LOSSES),
    "losses with a name that is none": ({"losses": {"patient Smith": [0.1]}}, LOSSES),
    "losses that are no mapping": ({"losses": [0.1]}, ODD),
    "too many losses": ({"losses": {"x" * n: [0.1] for n in range(1, 18)}}, "its report is too long"),
    "notes with text": ({"notes": ("patient 0815",)}, "its notes are not codes"),
    "too many notes": ({"notes": ("note",) * 17}, "its report is too long"),
    "a package of another length": ({"package": "x" * 101}, UNSAID),
    "a package on two lines": ({"package": "0.1.0\n"}, UNSAID),
    "a package that is no text": ({"package": 1}, UNSAID),
    "training that is no truth": ({"trained": "yes"}, UNSAID),
    "pictures that are no truth": ({"synthetic": 0}, UNSAID),
    "negative seconds": ({"seconds": -1.0}, SECONDS),
    "seconds without end": ({"seconds": float("inf")}, SECONDS),
    "seconds in words": ({"seconds": "two"}, SECONDS),
    "tensors that are none": ({"tensors": None}, ODD),
    "scores that are none": ({"confusion": None}, ODD),
    "an error beside an update": ({"error": "I failed."}, UPDATE),
    "an update without training": ({"trained": False}, UPDATE),
}


def test_a_good_answer_is_accepted(opened):
    assert opened.accept("a", GOOD) == ""
    assert [update.site for update in opened.updates()] == ["a"]
    assert opened.records()["a"].status == "trained"
    assert opened.pooled("val").tolist() == COUNTS.tolist()


@pytest.mark.parametrize("what", REFUSED)
def test_degenerate_answers_are_refused_as_a_whole(opened, what):
    changes, reason = REFUSED[what]
    told = opened.accept("a", replace(GOOD, **changes))
    assert reason in told
    assert opened.updates() == []
    assert opened.pooled("val").sum() == 0
    record = opened.records()["a"]
    assert (record.status, record.reason) == ("refused", told)
    assert (record.influence, record.losses, record.notes) == ([], {}, [])


FAILURES = {
    "too long": {"error": "x" * 501},
    "more than a line": {"error": "Traceback:\nFile /data/patient-7.png"},
    "colours of a terminal": {"error": "\x1b[31mred"},
    "no text": {"error": ["x"]},
    "an update": {"trained": True},
    "tensors": {"tensors": GOOD.tensors},
    "influence": {"extras": GOOD.extras},
    "scores": {"confusion": {"val": COUNTS}},
    "odd scores": {"confusion": {"val": "x"}},
    "losses": {"losses": GOOD.losses},
    "notes": {"notes": GOOD.notes},
    "odd seconds": {"seconds": "x"},
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_failure_brings_one_sentence_and_nothing_else(opened, what):
    assert opened.accept("a", FAILED) == ""
    assert opened.records()["a"].status == "failed"
    assert opened.accept("b", replace(FAILED, **FAILURES[what]))
    assert opened.records()["b"].status == "refused"
    assert opened.updates() == []
    assert opened.pooled("val").sum() == 0


UNTRAINED = {"tensors": GOOD.tensors, "extras": {"influence": "x"}}


@pytest.mark.parametrize("what", UNTRAINED)
def test_a_site_that_only_validates_brings_no_update(opened, what):
    assert opened.accept("c", VALIDATED) == ""
    assert opened.records()["c"].status == "validated"
    assert opened.accept("a", replace(VALIDATED, **{what: UNTRAINED[what]})) == UPDATE
    assert opened.updates() == []


CLUSTERS = {
    "clusters": ExtraSpec(("clusters", 4), "float32", 100.0),
    "cluster_class": ExtraSpec(("clusters",), largest=2),
    "class_sum": ExtraSpec((3, 4), "float64"),
    "mask": ExtraSpec((3,), "bool"),
}
UPLOADED = {
    "clusters": np.full((5, 4), -99.0, np.float32),
    "cluster_class": np.array([0, 0, 1, 2, 2]),
    "class_sum": np.full((3, 4), -1e6),
    "mask": np.array([True, False, True]),
}
SHAPE_TYPE_RANGE = "has not the shape, type or range that the method asks for"
ODD_EXTRAS = {
    "other lengths": {"cluster_class": np.array([0, 0, 1, 2])},
    "more clusters than images": {"clusters": np.zeros((9, 4), np.float32), "cluster_class": np.zeros(9, np.int64)},
    "clusters of another size": {"clusters": np.zeros((5, 3), np.float32)},
    "clusters with another number of axes": {"clusters": np.zeros((5, 4, 1), np.float32)},
    "clusters in double precision": {"clusters": np.zeros((5, 4))},
    "NaN": {"clusters": np.full((5, 4), np.nan, np.float32)},
    "infinite": {"class_sum": np.full((3, 4), np.inf)},
    "features out of range": {"clusters": np.full((5, 4), 101, np.float32)},
    "sums beyond belief": {"class_sum": np.full((3, 4), 1e10)},
    "a class that there is not": {"cluster_class": np.array([0, 0, 1, 2, 3])},
    "a negative class": {"cluster_class": np.array([0, 0, 1, 2, -1])},
    "classes in floats": {"cluster_class": np.zeros(5)},
    "a mask in integers": {"mask": np.array([1, 0, 1])},
    "a mask of other classes": {"mask": np.array([True])},
    "a list": {"clusters": [[0.0] * 4] * 5},
    "a number": {"clusters": np.float32(1)},
}


@pytest.fixture
def clustered(opened):
    """A round of a method that uploads clusters, as many as a site likes."""
    return OpenRound(opened.task, opened.targets, replace(opened.expected, extras=CLUSTERS))


@pytest.mark.parametrize("clusters", [5, 8, 1, 0])
def test_a_site_chooses_lengths_up_to_its_images(clustered, clusters):
    lengths = {"clusters": np.zeros((clusters, 4), np.float32), "cluster_class": np.zeros(clusters, np.int64)}
    assert clustered.accept("a", replace(GOOD, extras={**UPLOADED, **lengths})) == ""
    assert len(clustered.updates()[0].extras["clusters"]) == clusters


@pytest.mark.parametrize("what", ODD_EXTRAS)
def test_degenerate_extras_are_refused(clustered, what):
    assert clustered.accept("a", replace(GOOD, extras=UPLOADED)) == ""
    told = clustered.accept("b", replace(GOOD, extras={**UPLOADED, **ODD_EXTRAS[what]}))
    assert SHAPE_TYPE_RANGE in told
    assert [update.site for update in clustered.updates()] == ["a"]


def test_who_was_not_drawn_must_not_train(opened):
    assert opened.accept("c", GOOD) == "it trained without being drawn"


def test_who_was_not_asked_leaves_no_trace(opened):
    assert opened.accept("d", GOOD) == "it was not asked"
    assert "d" not in opened.records()
    assert opened.updates() == []


def test_a_second_answer_is_refused_and_the_first_stands(opened):
    assert opened.accept("a", GOOD) == ""
    assert opened.accept("a", replace(GOOD, samples=7)) == "it has answered before"
    assert opened.accept("a", replace(FAILED)) == "it has answered before"
    assert opened.records()["a"].status == "trained"
    assert [update.samples for update in opened.updates()] == [8]


def test_a_good_answer_after_a_bad_one_counts(opened):
    opened.accept("a", replace(GOOD, samples=-1))
    assert opened.accept("a", GOOD) == ""
    assert opened.records()["a"].status == "trained"


def test_one_bad_site_does_not_touch_the_others(opened):
    opened.accept("a", replace(GOOD, **filled("w", np.nan)))
    opened.accept("b", GOOD)
    opened.accept("c", VALIDATED)
    assert [update.site for update in opened.updates()] == ["b"]
    assert opened.pooled("val").tolist() == (2 * COUNTS).tolist()
    assert [record.status for record in opened.records().values()] == ["refused", "trained", "validated"]


def test_updates_come_in_the_order_of_sites_not_of_arrival(opened):
    for site in ("b", "a"):
        assert opened.accept(site, GOOD) == ""
    assert [update.site for update in opened.updates()] == ["a", "b"]


def test_a_silent_site_is_missing(opened):
    opened.missing = {"b": "it was too late for the deadline"}
    records = opened.records()
    assert (records["a"].status, records["a"].reason) == ("missing", "no answer")
    assert records["b"].reason == "it was too late for the deadline"


def test_the_step_is_measured_against_the_model(opened):
    size = np.sqrt(6 + 24 + 3)
    for factor, reason in ((9.9, ""), (10.1, STEP)):
        step = factor * (1 + size) / np.sqrt(6)
        assert opened.accept(
            "a", replace(GOOD, **tensors(w=MODEL["w"] + np.float32(step), prototypes=MODEL["prototypes"]))
        ) in (
            reason,
            "it has answered before",
        )
        opened._answers.clear()


@pytest.mark.parametrize(
    ("best", "parts", "reason"),
    [
        (False, {"val", "test_last"}, ""),
        (True, {"val", "test_last", "test_best"}, ""),
        (True, {"val", "test_last"}, ASKED),
        (False, {"val", "test_last", "test_best"}, ASKED),
        (False, {"val"}, ASKED),
        (False, set(), ASKED),
    ],
)
def test_final_scores_are_complete(opened, best, parts, reason):
    task = replace(opened.task, kind="score", train=(), best=MODEL if best else {}, best_version=2 if best else None)
    scoring = OpenRound(task, opened.targets, opened.expected)
    answer = Answer("score", RUN, 4, samples=8, confusion=dict.fromkeys(parts, COUNTS), seconds=0.5)
    assert scoring.accept("a", answer) == reason
