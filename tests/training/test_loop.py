import itertools

import numpy as np
import pytest
import torch

from fedproin.methods import create_method
from fedproin.methods.base import Memory, RoundContext
from fedproin.training.batches import Part
from fedproin.training.loop import train_round

CPU = torch.device("cpu")
SHUFFLE = {"sampler": "shuffle"}


@pytest.fixture
def train(make_settings):
    """Train one round on pictures with the given labels; returns the result, the report, the context and the model."""

    def run(labels, round_=0, memory=None, site="site-1", seed=0, method=None, **training):
        settings = make_settings(
            seed=seed,
            data={"classes": ["a", "b", "c"]},
            training={"batch_size": 8, **training},
            method={"name": "fedproin", **(method or {})},
        )
        labels = torch.tensor(labels)
        noise = np.random.default_rng(0).integers(0, 128, (len(labels), 16, 16, 3))
        images = (noise + 40 * labels.numpy().reshape(-1, 1, 1, 1)).astype(np.uint8)
        part = Part(images, np.arange(len(labels)), labels, (0.5,) * 3, (0.2,) * 3, 8, CPU)
        torch.manual_seed(0)
        torch.use_deterministic_algorithms(True)
        created = create_method(settings)
        model = created.build("site-1")
        ctx = RoundContext(settings, round_, CPU, memory=memory, site=site)
        result, report = train_round(created, model, part, ctx)
        return result, report, ctx, model

    return run


def bits(result):
    return {name: tensor.detach().clone() for name, tensor in result.shared.items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


MANY = [0] * 16 + [1] * 6 + [2] * 2


def test_the_report_tells_steps_images_and_each_epochs_loss(train):
    _, report, ctx, _ = train(MANY, local_epochs=3, **SHUFFLE)
    assert (report.steps, report.presentations) == (9, 72)
    assert report.losses.keys() == {"total", "task", "fdl"}
    assert {len(means) for means in report.losses.values()} == {3}
    assert report.losses["total"] == pytest.approx(
        [task + fdl for task, fdl in zip(report.losses["task"], report.losses["fdl"], strict=True)], rel=1e-5
    )
    assert ctx.notes == []


def test_training_learns(train):
    _, report, _, _ = train(MANY, local_epochs=8, learning_rate=0.01, **SHUFFLE)
    assert report.losses["task"][-1] < 0.7 * report.losses["task"][0]


def test_a_loss_is_the_mean_over_images_not_over_batches(train):
    """Nothing moves at this rate, so any order and size of batches has the same mean, if BatchNorm were not there."""
    _, report, _, _ = train([0] * 10, learning_rate=1e-30, method={"lambda_fdl": 0}, **SHUFFLE)
    assert report.presentations == 10
    assert 0 < report.losses["task"][0] < 1


def test_prototypes_can_learn_at_a_rate_of_their_own(train):
    """Adam's first step is as long as the rate, whatever the gradient."""
    one_step = {"local_epochs": 1, "learning_rate": 1e-3, **SHUFFLE}
    unmoved, one, five = (
        bits(train([0, 1, 2, 0, 1, 2], method={"prototype_rate": factor}, **{**one_step, **change})[0])
        for factor, change in ((1.0, {"learning_rate": 1e-30}), (1.0, {}), (5.0, {}))
    )
    step = one["prototypes"] - unmoved["prototypes"]
    assert step.abs().max() == pytest.approx(1e-3, rel=0.01)
    assert torch.allclose(five["prototypes"] - unmoved["prototypes"], 5 * step, atol=1e-6)
    assert all(torch.equal(one[name], five[name]) for name in one.keys() - {"prototypes"})


def test_same_seed_same_bits(train):
    one, other = (bits(train(MANY, augmentation="adaptive", local_epochs=2)[0]) for _ in range(2))
    assert same(one, other)


@pytest.mark.parametrize("change", [{"seed": 1}, {"site": "site-2"}, {"round_": 1}])
def test_seed_site_and_round_each_give_other_draws(train, change):
    assert not same(bits(train(MANY)[0]), bits(train(MANY, **change)[0]))


def test_augmentation_has_an_effect_and_can_be_off(train):
    ways = [bits(train(MANY, augmentation=name)[0]) for name in ("none", "adaptive", "uniform")]
    assert not any(same(one, other) for one, other in itertools.combinations(ways, 2))


def test_class_balanced_draws_present_classes_equally(train):
    result, report, _, _ = train([0] * 100 + [2] * 3, sampler="class_balanced", epoch_length="max_times_present")
    assert report.presentations == 200
    shown = result.extras["influence"].sum(dim=1).tolist()
    assert shown[1] == 0
    assert abs(shown[0] - 100) < 30  # 4 standard deviations
    assert sum(shown) == 200


def test_epoch_length_of_the_data_set(train):
    assert train([0] * 100 + [2] * 3, sampler="class_balanced")[1].presentations == 103


def test_degenerate_trailing_batch_of_one_is_dropped(train):
    _, report, ctx, _ = train([0, 1, 2] * 3, **SHUFFLE)  # 9 images, batches of 8
    assert (report.steps, report.presentations) == (1, 8)
    assert ctx.notes == []


@pytest.mark.parametrize("sampler", ["shuffle", "class_balanced"])
def test_degenerate_single_image_site_trains_on_running_statistics_and_says_so(train, sampler):
    result, report, ctx, model = train([1], sampler=sampler, epoch_length="max_times_present", local_epochs=2)
    assert (report.steps, report.presentations) == (2, 2)
    assert ctx.notes == ["single_image_batch"]
    assert not model.encoder.bn1.running_mean.any()  # as it was built
    assert all(tensor.isfinite().all() for tensor in result.shared.values())
    assert result.extras["influence"].sum() == 1


def test_degenerate_batches_of_one_by_the_settings_say_so(train):
    _, report, ctx, _ = train([0, 1, 2], batch_size=1, **SHUFFLE)
    assert report.steps == 3
    assert ctx.notes == ["single_image_batch"]


def test_degenerate_one_class_site(train):
    result, report, _, _ = train([1] * 8)
    assert all(tensor.isfinite().all() for tensor in result.shared.values())
    assert result.extras["influence"].flatten().tolist() == [0, 8, 0]
    assert np.isfinite(report.losses["total"]).all()


def test_degenerate_prototype_that_is_never_nearest_has_no_influence(train):
    result, _, _, _ = train(MANY, method={"prototypes_per_class": 8, "influence_source": "dataset"})
    influence = result.extras["influence"]
    assert (influence == 0).any()
    assert influence.sum(dim=1).tolist() == [16, 6, 2]


# optimizer state


def two_rounds(train, mode, **method):
    """Two rounds at one site, the second from the same model: only the optimizer's state can differ."""
    first, report, _, _ = train(MANY, optimizer_state=mode, method=method, **SHUFFLE)
    memory = Memory(0, {name: tensor.detach().clone() for name, tensor in first.remember.items()})
    second, _, _, _ = train(MANY, round_=1, memory=memory, optimizer_state=mode, method=method, **SHUFFLE)
    return first, second, report.steps


def test_optimizer_starts_afresh_by_default(train):
    first, second, _ = two_rounds(train, "reset")
    assert set(first.remember) == {"prototypes"}
    without, _, _, _ = train(MANY, round_=1, memory=Memory(0, {"prototypes": first.remember["prototypes"]}), **SHUFFLE)
    assert same(bits(second), bits(without))


@pytest.mark.parametrize("prototype_rate", [1.0, 3.0])
def test_optimizer_that_persists_goes_on_where_it_was(train, prototype_rate):
    first, second, steps = two_rounds(train, "persist", prototype_rate=prototype_rate)
    counted = {name for name in first.remember if name.endswith(".step")}
    assert len(counted) > 10  # of the prototypes and of the encoder
    assert {first.remember[name].item() for name in counted} == {steps}
    assert {second.remember[name].item() for name in counted} == {2 * steps}
    assert not same(bits(second), bits(two_rounds(train, "reset")[1]))


def test_optimizer_that_persists_starts_afresh_when_its_state_is_lost(train):
    fresh, _, _, _ = train(MANY, round_=1, optimizer_state="reset", **SHUFFLE)
    lost, _, _, _ = train(MANY, round_=1, optimizer_state="persist", **SHUFFLE)
    assert same(bits(fresh), bits(lost))


def test_optimizer_state_survives_the_file(train, tmp_path):
    from fedproin.training.site_state import SiteState

    first, _, _, _ = train(MANY, optimizer_state="persist", **SHUFFLE)
    state = SiteState(tmp_path, "0" * 32)
    state.save(0, first.remember)
    direct = Memory(0, {name: tensor.detach().clone() for name, tensor in first.remember.items()})
    results = [
        bits(train(MANY, round_=1, memory=memory, optimizer_state="persist", **SHUFFLE)[0])
        for memory in (direct, state.load(before=1))
    ]
    assert same(*results)


def test_precision_concerns_the_encoder_only(train):
    _, report, ctx, model = train(MANY, **SHUFFLE)
    ctx.autocast_dtype = torch.bfloat16
    features = ctx.encode(model.encoder, torch.randn(2, 3, 16, 16))
    assert features.dtype == torch.float32
    ctx.autocast_dtype = None
    assert report.steps == 3
