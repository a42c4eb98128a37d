"""The server with sites that are not there: each answers with numbers that depend on its name and the round alone."""

import json
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedproin.data.location import Location
from fedproin.errors import SettingsError, UserError
from fedproin.federation.messages import Answer
from fedproin.federation.opening import new_record, open_server
from fedproin.federation.participation import draw, require_sites
from fedproin.federation.server import Server
from fedproin.federation.tracking import Tracker
from fedproin.seeds import derive_seed
from fedproin.settings import FederationSettings
from fedproin.tensor_file import load_tensors

CLASSES = ("a", "b", "c")
SITES = [f"site-{number}" for number in range(1, 5)]


class Stopped(Exception):
    """The server's process was killed."""


@pytest.fixture
def open_(tmp_path, make_settings):
    """A server in a directory; the same name again goes on with the same run."""

    def make(name="run", sites=SITES, log=None, data="table", partition="", method=None, **changes):
        changes["federation"] = {"rounds": 4, **changes.get("federation", {})}
        settings = make_settings(
            data={"classes": list(CLASSES)}, method={"name": "fedproin", **(method or {})}, **changes
        )
        require_sites(settings.federation, sites)
        fresh = new_record(settings, sites, partition, synthetic=data == "synthetic")
        return Server(settings, tmp_path / name, fresh, None, drop if log is None else log.append)

    return make


def drop(line):
    pass


def answer(server, task, site, change=None):
    """What a good site says."""
    rng = np.random.default_rng(derive_seed(0, site, task.round, task.kind))
    counts = {"val": rng.integers(0, 9, (3, 3))} if task.validate else {}
    if task.kind == "score":
        counts |= {part: rng.integers(0, 9, (3, 3)) for part in ("test_last", *(["test_best"] if task.best else []))}
    made = Answer(task.kind, task.run_id, task.round, samples=20, confusion=counts, seconds=0.5)
    if site in task.train:
        made = replace(
            made,
            trained=True,
            tensors={
                name: np.asarray(array + rng.normal(0, 0.01, array.shape), array.dtype)
                for name, array in sorted(task.model.items())
            },
            extras={"influence": rng.integers(1, 5, (3, server._expected.extras["influence"].shape[1]))},
            samples=int(rng.integers(15, 60)),
            steps=3,
            presentations=100,
            losses={"total": [1.0], "task": [1.0]},
        )
    return change(made, site, task) if change else made


def exchange(server, change=None, order=None, stop_after=None, seen=None):
    """Every target answers at once; `change` may alter an answer, or make it none."""

    def send(task, targets):
        if stop_after is not None and task.round > stop_after:
            raise Stopped
        if seen is not None:
            seen.append(task)
        for site in order(list(targets)) if order else targets:
            made = answer(server, task, site, change)
            if made is not None:
                server.accept(site, made)
        return {}

    return send


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


# drawing sites


def test_central_training_has_one_update_a_round():
    with pytest.raises(SettingsError, match=r"quorum is 2 and 1 of 4 sites train in a round; lower it\.$"):
        require_sites(FederationSettings(quorum=2), SITES, "union")
    require_sites(FederationSettings(quorum=1), SITES, "union")


def test_a_draw_is_a_function_of_seed_and_round():
    draws = [draw(0, round_, SITES, 0.5) for round_ in range(50)]
    assert draws == [draw(0, round_, SITES[::-1], 0.5) for round_ in range(50)]
    assert draws[::-1] == [draw(0, round_, SITES, 0.5) for round_ in reversed(range(50))]
    assert draws != [draw(1, round_, SITES, 0.5) for round_ in range(50)]
    assert {len(drawn) for drawn in draws} == {2}
    assert len(set(draws)) == 6  # every pair comes


@pytest.mark.parametrize(
    ("sites", "share", "count"), [(10, 0.5, 5), (10, 1.0, 10), (10, 0.01, 1), (3, 0.5, 2), (2, 0.5, 1)]
)
def test_how_many_are_drawn(sites, share, count):
    assert len(draw(0, 0, [f"site-{number}" for number in range(sites)], share)) == count


def test_sites_are_drawn_equally_often():
    names = [f"site-{number}" for number in range(10)]
    counts = dict.fromkeys(names, 0)
    for round_ in range(1000):
        for site in draw(7, round_, names, 0.5):
            counts[site] += 1
    assert all(430 < count < 570 for count in counts.values())


def test_only_drawn_sites_get_a_round_without_validation(open_):
    server, seen = open_(federation={"validate_every": 2}), []
    server.run(exchange(server, seen=seen))
    record = server.run_record
    assert [task.validate for task in seen] == [False, False, True, False, True]
    assert [sorted(past.sites) for past in record.rounds] == [
        sorted(past.participants) if past.round % 2 else (SITES if past.round else sorted(past.participants))
        for past in record.rounds
    ]
    assert [bool(past.validation) for past in record.rounds] == [False, False, True, False]
    assert seen[-1].kind == "score"
    assert seen[-1].round == 4


# order, quorum and failures


def test_the_order_of_arrival_changes_no_bit(open_):
    models = []
    for name, order in (("forward", sorted), ("backward", lambda sites: sorted(sites)[::-1])):
        server = open_(name, federation={"participation": 1.0})
        record = server.run(exchange(server, order=order))
        models.append((server.global_model(), [past.confusion for past in record.rounds], record.last))
    assert same(models[0][0], models[1][0])
    assert models[0][1:] == models[1][1:]


def test_merging_is_of_the_drawn_sites(open_):
    server, seen = open_(federation={"rounds": 1}), []
    server.run(exchange(server, seen=seen))
    answers = [answer(server, seen[0], site) for site in seen[0].train]
    total = sum(a.samples for a in answers)
    for name in ("encoder.conv1.weight", "encoder.bn1.running_var"):
        mean = sum(a.samples / total * a.tensors[name].astype(np.float64) for a in answers)
        assert np.allclose(server.global_model()[name], mean, atol=1e-6)
    influence = np.stack([a.extras["influence"] for a in answers])[..., None]
    proto = np.stack([a.tensors["prototypes"] for a in answers])
    assert np.allclose(server.global_model()["prototypes"], (influence * proto).sum(0) / influence.sum(0), atol=1e-6)


def fail_in_round_1(made, site, task):
    return replace(made, tensors=dict.fromkeys(made.tensors, np.ones(1))) if task.round == 1 and made.trained else made


def test_degenerate_no_valid_result_keeps_the_model_and_records_the_round(open_):
    lines: list[str] = []
    server, seen = open_(log=lines), []
    record = server.run(exchange(server, fail_in_round_1, seen=seen))
    assert [past.counted for past in record.rounds] == [True, False, True, True]
    assert {site.status for site in record.rounds[1].sites.values()} == {"refused", "validated"}
    assert same(seen[1].model, seen[2].model)
    assert not same(seen[2].model, seen[3].model)
    assert any("NOT COUNTED" in line for line in lines)


def test_degenerate_below_the_quorum_keeps_the_model(open_):
    def one_is_missing(made, site, task):
        return None if task.round == 2 and site == task.train[0] else made

    server, seen = open_(federation={"quorum": 2}), []
    record = server.run(exchange(server, one_is_missing, seen=seen))
    assert [past.counted for past in record.rounds] == [True, True, False, True]
    assert record.rounds[2].sites[record.rounds[2].participants[0]].status == "missing"
    assert same(seen[2].model, seen[3].model)


def test_degenerate_site_with_nan_is_out_of_every_sum(open_):
    def nan(made, site, task):
        if site != "site-2" or not made.trained:
            return made
        return replace(made, tensors={**made.tensors, "prototypes": made.tensors["prototypes"] * np.float32(np.nan)})

    def silent(made, site, task):
        return None if site == "site-2" and made.trained else made

    models = []
    for name, change in (("nan", nan), ("silent", silent)):
        server = open_(name, federation={"participation": 1.0, "rounds": 1})
        server.run(exchange(server, change))
        models.append(server.global_model())
        assert all(np.isfinite(array).all() for array in models[-1].values())
    assert same(*models)


def test_degenerate_empty_site_is_excluded(open_):
    def empty(made, site, task):
        if site != "site-1" or not made.trained:
            return made
        return replace(made, trained=False, tensors={}, extras={}, losses={}, samples=0, steps=0, presentations=0)

    server = open_(federation={"participation": 1.0, "rounds": 1})
    record = server.run(exchange(server, empty))
    assert record.rounds[0].sites["site-1"].status == "validated"
    assert record.rounds[0].counted
    assert sum(site.status == "trained" for site in record.rounds[0].sites.values()) == 3


def test_degenerate_class_absent_from_all_participants_keeps_its_prototype(open_):
    def absent(made, site, task):
        if not made.trained:
            return made
        influence = made.extras["influence"].copy()
        influence[1] = 0
        return replace(made, extras={"influence": influence})

    server, seen = open_(federation={"rounds": 1}, method={"prototypes_per_class": 2}), []
    record = server.run(exchange(server, absent, seen=seen))
    before, after = seen[0].model["prototypes"], server.global_model()["prototypes"]
    assert np.array_equal(before[1], after[1])
    assert not np.any(before[[0, 2]] == after[[0, 2]])
    assert record.rounds[0].unused == [[False, False], [True, True], [False, False]]


def test_degenerate_nobody_can_do_anything_in_the_first_round(open_):
    def failed(made, site, task):
        return Answer(made.kind, made.run_id, made.round, error="This site has no data configured.")

    server = open_()
    with pytest.raises(UserError, match=r"No site could take part .* This site has no data configured\."):
        server.run(exchange(server, failed))


def test_degenerate_a_round_that_nobody_answers_is_not_scored(open_):
    def silent(made, site, task):
        return None if task.round == 2 and task.kind == "round" else made

    record = (server := open_()).run(exchange(server, silent))
    assert record.rounds[2].validation == {}
    assert record.rounds[2].confusion == []
    assert record.best.version != 2
    assert not record.rounds[2].counted


def test_degenerate_a_run_whose_final_scores_nobody_gives_can_be_finished_later(open_):
    def silent(made, site, task):
        return None if task.kind == "score" else made

    lines: list[str] = []
    server = open_(log=lines)
    with pytest.raises(UserError, match="No site scored the final model"):
        server.run(exchange(server, silent))
    assert sum(line.startswith("final scores") for line in lines) == 4
    seen: list = []
    again = open_()
    assert again.run_record.rounds
    record = again.run(exchange(again, seen=seen))
    assert [task.kind for task in seen] == ["score"]
    assert record.last.test["accuracy"] > 0


def test_final_scores_are_of_the_sites_that_gave_them(open_):
    def silent(made, site, task):
        return None if task.kind == "score" and site == "site-3" else made

    lines: list[str] = []
    server = open_(log=lines)
    record = server.run(exchange(server, silent))
    assert sorted(record.last.sites) == ["site-1", "site-2", "site-4"]
    assert "final scores  site-3  missing: no answer" in lines


def test_answers_outside_of_a_round_are_refused(open_):
    server, seen = open_(), []
    server.run(exchange(server, seen=seen))
    assert server.accept("site-1", answer(server, seen[0], "site-1")) == "no round is open"
    assert server.refuse("site-1", "it is not a message") == "it is not a message"


# the best model


def scoring(accuracies):
    """Validation with the given accuracy of every model version."""

    def change(made, site, task):
        if "val" not in made.confusion:
            return made
        hits = accuracies[task.round]
        return replace(made, confusion={**made.confusion, "val": np.array([[hits, 10 - hits, 0], [0] * 3, [0] * 3])})

    return change


@pytest.mark.parametrize(
    ("accuracies", "version"),
    [
        ([None, 3, 7, 5, 4], 2),
        ([None, 3, 7, 7, 4], 3),  # of equals the longer trained one
        ([None, 3, 7, 7, 7], 4),
        ([None, 0, 0, 0, 0], 4),
        ([None, 9, 1, 1, 1], 1),
    ],
)
def test_the_best_model_is_the_best_validated_one(open_, tmp_path, accuracies, version):
    server, seen = open_(federation={"best_score": "accuracy"}), []
    record = server.run(exchange(server, scoring(accuracies), seen=seen))
    assert record.best.version == version
    assert record.best.validation["accuracy"] == accuracies[version] / 10
    assert record.last.version == 4
    assert record.last.validation["accuracy"] == accuracies[4] / 10
    best, header = load_tensors(tmp_path / "run" / "best_model.safetensors")
    last, _ = load_tensors(tmp_path / "run" / "last_model.safetensors")
    models = {task.round: task.model for task in seen}
    assert header["version"] == version
    assert same({name: tensor.numpy() for name, tensor in best.items()}, models[version])
    assert same({name: tensor.numpy() for name, tensor in last.items()}, models[4])
    if version == 4:
        assert record.best == record.last
    else:
        assert same(seen[-1].best, models[version])


# going on


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_run_goes_on_with_the_same_bits(open_, after):
    whole, tasks = open_("whole"), []
    whole.run(exchange(whole, seen=tasks))
    first = open_("stopped")
    with pytest.raises(Stopped):
        first.run(exchange(first, stop_after=after))
    second, later = open_("stopped"), []
    assert second.run_record.rounds
    record = second.run(exchange(second, seen=later))
    assert [task.round for task in later] == list(range(after + 1, 5))
    assert [task.train for task in later] == [task.train for task in tasks[after + 1 :]]
    assert same(second.global_model(), whole.global_model())
    assert [past.participants for past in record.rounds] == [past.participants for past in whole.run_record.rounds]
    assert record.last == whole.run_record.last
    assert record.best == whole.run_record.best
    assert record.run_id == first.run_record.run_id != whole.run_record.run_id


def test_a_stop_in_the_first_round_starts_anew(open_):
    server = open_()
    with pytest.raises(Stopped):
        server.run(exchange(server, stop_after=-1))
    assert not open_().run_record.rounds


def test_a_disk_that_cannot_be_written_to_is_one_sentence_and_the_run_can_go_on(open_, tmp_path):
    with pytest.raises(Stopped):
        (first := open_("stopped")).run(exchange(first, stop_after=0))
    second = open_("stopped")
    results = tmp_path / "stopped" / "results.json"
    results.unlink()
    results.mkdir()
    with pytest.raises(UserError, match=r"^The server's disk cannot be written to \(Is a directory\): .* round\.$"):
        second.run(exchange(second))
    results.rmdir()
    third = open_("stopped")
    third.run(exchange(third))
    (whole := open_("whole")).run(exchange(whole))
    assert same(third.global_model(), whole.global_model())


@pytest.fixture
def no_space(monkeypatch):
    """Let a method of the tracker find the disk full, while the context lasts."""

    @contextmanager
    def make(method):
        def full(tracker, run=None, prototypes=None):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(Tracker, method, full)
            yield

    return make


def test_a_disk_that_is_full_at_the_end_lets_the_run_be_finished(open_, no_space):
    first = open_()
    with no_space("final"), pytest.raises(UserError, match=r"No space left on device.*submit the job again"):
        first.run(exchange(first))
    second = open_()
    assert second.run(exchange(second)).last is not None


def test_what_went_wrong_first_is_what_is_said(open_, no_space):
    server = open_()
    with no_space("close"), pytest.raises(Stopped):
        server.run(exchange(server, stop_after=0))


def test_a_broken_connection_is_not_called_a_full_disk(open_):
    def broken(task, targets):
        raise ConnectionResetError("peer")

    with pytest.raises(ConnectionResetError):
        open_().run(broken)


def test_a_finished_run_is_refused(open_):
    server = open_()
    server.run(exchange(server))
    with pytest.raises(UserError, match=r"Run 'fedproin' is finished; choose another name"):
        open_()


def test_other_settings_are_refused(open_):
    server = open_()
    with pytest.raises(Stopped):
        server.run(exchange(server, stop_after=1))
    with pytest.raises(UserError, match="other settings"):
        open_(training={"learning_rate": 0.5})


def test_a_file_of_another_kind_is_one_sentence(open_, tmp_path):
    server = open_()
    server.run(exchange(server))
    (tmp_path / "other").mkdir()
    for content in ((tmp_path / "run" / "last_model.safetensors").read_bytes(), b"nothing"):
        (tmp_path / "other" / "checkpoint.safetensors").write_bytes(content)
        with pytest.raises(UserError, match="damaged"):
            open_("other")


def test_what_a_run_leaves_is_private_and_readable(open_, tmp_path):
    server = open_()
    server.run(exchange(server))
    folder = tmp_path / "run"
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in ("checkpoint.safetensors", "last_model.safetensors", "best_model.safetensors", "results.json"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    results = json.loads((folder / "results.json").read_text())
    assert len(results["rounds"]) == 4
    assert results["method"] == "fedproin"


# what cannot work


def test_too_few_sites(open_):
    with pytest.raises(SettingsError, match=r"at least 2 sites and there are 1; start it with more \(-n 2\)"):
        open_(sites=["site-1"])
    with pytest.raises(SettingsError, match="at least 5 sites and there are 4"):
        open_(federation={"quorum": 5, "participation": 1.0})


def test_a_quorum_that_no_round_can_reach(open_):
    with pytest.raises(SettingsError, match=r"quorum is 3 and 2 of 4 sites"):
        open_(federation={"quorum": 3, "participation": 0.5})
    open_(federation={"quorum": 2, "participation": 0.5})


def test_no_site_is_called_global(open_):
    with pytest.raises(SettingsError, match="'global'"):
        open_(sites=["global", "site-1"])


def test_hospitals_need_named_classes(tmp_path, make_settings):
    with pytest.raises(SettingsError, match=r"must name data\.classes"):
        open_server(make_settings(), SITES, None, tmp_path, drop)


def test_a_method_need_not_be_named(tmp_path, make_settings):
    settings = make_settings(data={"classes": list(CLASSES)}, method={"prototypes_per_class": 2})
    assert open_server(settings, SITES, None, tmp_path, drop).run_record.method == "fedproin"


@pytest.mark.parametrize(("simulated", "deadline"), [(False, 60.0), (True, None)])
def test_a_simulation_has_no_deadline(tmp_path, make_settings, simulated, deadline):
    settings = make_settings(data={"synthetic": True}, federation={"deadline_seconds": 60.0, "rounds": 1})
    location = Location(source=None, cache=tmp_path / "cache", simulated=simulated)
    server, seen = open_server(settings, SITES[:2], location, tmp_path / "run", drop), []

    def stop(task, targets):
        seen.append(task.deadline_seconds)
        raise Stopped

    with pytest.raises(Stopped):
        server.run(stop)
    assert seen == [deadline]


def test_a_mixture_of_real_and_synthetic_pictures_is_refused(open_):
    def mixed(made, site, task):
        return replace(made, synthetic=site != "site-1")

    record = (server := open_(federation={"participation": 1.0})).run(exchange(server, mixed))
    assert [site.status for site in record.rounds[0].sites.values()] == ["trained", "refused", "refused", "refused"]


def test_the_first_model_depends_on_the_seed_alone(open_):
    torch.manual_seed(5)
    one = open_("one").global_model()
    torch.manual_seed(6)
    drawn = torch.randn(1)
    torch.manual_seed(6)
    other = open_("other").global_model()
    assert same(one, other)
    assert torch.equal(torch.randn(1), drawn)  # the caller's generator is as it was
    assert not same(one, open_("seed", seed=1).global_model())


def test_a_run_does_not_go_on_with_other_sites(open_):
    server = open_()
    with pytest.raises(Stopped):
        server.run(exchange(server, stop_after=1))
    with pytest.raises(UserError, match="other sites"):
        open_(sites=SITES[:3])


def test_each_task_names_the_sites_that_should_remember_something(open_):
    """Those whose update was accepted; site-2's never is."""
    server, seen = open_(federation={"participation": 1.0}), []

    def fail(made, site, task):
        return replace(made, samples=-1) if site == "site-2" else made

    server.run(exchange(server, fail, seen=seen))
    assert [task.trained_before for task in seen] == [(), *[("site-1", "site-3", "site-4")] * 4]
