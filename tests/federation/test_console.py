from pathlib import Path

import pytest

from fedproin.federation.console import final_table, opening_lines, round_line, site_line
from fedproin.federation.records import FinalRecord, RoundRecord, RunRecord, SiteRecord

SCORES = {"accuracy": 0.701, "f1_weighted": 0.69, "f1_macro": 0.5, "balanced_accuracy": 0.588, "mcc": 0.612}
LOSSES = {"total": [0.9, 0.412], "task": [0.8, 0.371], "fdl": [0.1, 0.032], "pcl": [0.0, 0.009]}
INFLUENCE = [[5, 3], [0, 1], *[[2, 2]] * 5]


def trained(**values):
    return SiteRecord("trained", "", 4.1, losses=LOSSES, influence=INFLUENCE, validation=SCORES, **values)


def a_round(round_=2, **values):
    sites = {"site-1": trained(), "site-2": SiteRecord("refused", "NaN"), "site-3": SiteRecord("missing")}
    return RoundRecord(round_, ["site-1", "site-2", "site-3"], sites, **{"counted": True, "seconds": 9.84} | values)


def a_run(**values):
    values = {"data": "table", "partition": "dirichlet, alpha 0.5", "seconds": 161.2} | values
    versions = {"fedproin": "0.1.0+3f9a1c2b7d04", "python": "3.11.7", "nvflare": "2.9.0"}
    sites, classes = ["site-1", "site-2"], ["nv", "melanoma in situ", "df"]
    return RunRecord("quick", "5ab2", "fedproin", 7, "0123456789abcdef", {}, versions, classes, sites, **values)


def ended(**values):
    confusion = [[1300, 20, 3], [40, 60, 0], [0, 0, 0]]
    last = FinalRecord(12, SCORES, SCORES, confusion, [0.9826, 0.6, None], {"site-1": SCORES, "site-2": SCORES})
    best = FinalRecord(9, SCORES, SCORES | {"accuracy": 1.0}, confusion, [1.0, 0.05, None], {})
    return a_run(last=last, best=best, **values)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        pytest.param(
            trained(),
            "round  3/12  site-7    4.1 s  loss 0.412 (task 0.371 fdl 0.032 pcl 0.009)"
            "  val mcc 0.612  prototypes 13/14",
            id="trained and validated",
        ),
        pytest.param(
            SiteRecord("trained", "", 161.4, losses={"total": [0.5], "task": [0.5]}, notes=["no_previous_state"]),
            "round  3/12  site-7     2:41  loss 0.500 (task 0.500)  [no previous state]",
            id="no prototypes, no validation, a note",
        ),
        pytest.param(
            SiteRecord("validated", "", 0.42, validation=SCORES),
            "round  3/12  site-7    0.4 s  val mcc 0.612",
            id="validated",
        ),
        pytest.param(
            SiteRecord("failed", "Out of memory; use a smaller batch_size."),
            "round  3/12  site-7   failed: Out of memory; use a smaller batch_size.",
            id="failed",
        ),
        pytest.param(SiteRecord("refused", "not finite"), "round  3/12  site-7   refused: not finite", id="refused"),
        pytest.param(SiteRecord("missing"), "round  3/12  site-7   missing", id="missing without a reason"),
    ],
)
def test_site_line(record, expected):
    assert site_line(2, 12, "site-7", record) == expected


def test_site_lines_align_when_the_longest_name_is_known():
    names = ["uk-erlangen", "a"]
    lines = [site_line(9, 12, name, trained(), width=11) for name in names]
    assert lines[0].index("loss") == lines[1].index("loss")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        pytest.param(
            a_round(validation=SCORES, unused=[[True, False]] * 7),
            "round  3/12  global    9.8 s  val mcc 0.612 (accuracy 0.701 f1_weighted 0.690 balanced_accuracy 0.588)"
            "  trained 1/3  refused 1  missing 1  unused prototypes 7/14  left 1:02:05",
            id="validated",
        ),
        pytest.param(
            a_round(counted=False),
            "round  3/12  global    9.8 s  trained 1/3  refused 1  missing 1"
            "  NOT COUNTED: too few updates, the model stays as it was  left 1:02:05",
            id="not counted",
        ),
        pytest.param(a_round(11), "round 12/12  global    9.8 s  trained 1/3  refused 1  missing 1", id="last round"),
    ],
)
def test_round_line(record, expected):
    assert round_line(record, 12, 3725.0) == expected


def test_opening_lines():
    assert opening_lines(a_run()) == [
        "fedproin 0.1.0+3f9a1c2b7d04 with python 3.11.7, nvflare 2.9.0",
        "run quick (5ab2), method fedproin, seed 7, settings 0123456789ab",
        "2 sites: site-1, site-2",
        "3 classes: nv, melanoma in situ, df",
        "data: table, dealt out over the sites: dirichlet, alpha 0.5",
    ]


def test_opening_lines_shout_about_synthetic_data_and_tell_of_a_resumed_run():
    lines = opening_lines(a_run(data="synthetic", partition="", rounds=[a_round(4)]))
    assert lines[4:6] == ["data: synthetic", "goes on after round 5 of an earlier job"]
    assert "SYNTHETIC" in lines[-2]
    assert lines[-1] == lines[-3] == "*" * len(lines[-2])


def test_final_table():
    assert final_table(ended(), Path("/srv/fed runs/quick")).splitlines() == [
        "test scores in percent, 1423 images of 2 sites together",
        "model                  accuracy  weighted F1   MCC  balanced accuracy",
        "last (after round 12)      70.1         69.0  61.2               58.8",
        "best (after round 9)      100.0         69.0  61.2               58.8",
        "",
        "recall of class   test images  last   best",
        "nv                       1323  98.3  100.0",
        "melanoma in situ          100  60.0    5.0",
        "df                          0     -      -",
        "",
        "last model   /srv/fed runs/quick/last_model.safetensors",
        "best model   /srv/fed runs/quick/best_model.safetensors",
        "results      /srv/fed runs/quick/results.json",
        "TensorBoard  tensorboard --logdir '/srv/fed runs/quick/tensorboard'",
        "time         2:41",
    ]


def test_final_table_of_synthetic_data_says_so_again():
    assert "SYNTHETIC" in final_table(ended(data="synthetic"), Path("out")).splitlines()[-1]


def test_final_table_of_a_run_that_did_not_end():
    table = final_table(a_run(), Path("out"))
    assert table.startswith("The run has no test scores.")
    assert "tensorboard --logdir out/tensorboard" in table
