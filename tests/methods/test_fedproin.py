"""The method alone, on random pictures: B batch, C classes, M prototypes a class, D feature size."""

from dataclasses import replace

import pytest
import torch
from rounds import LABELS, Pictures, step

from fedproin.maths import prototypes as maths
from fedproin.methods import create_method
from fedproin.methods.base import Memory, RoundContext, ServerState, Update
from fedproin.methods.fedproin import FedProInOptions


@pytest.fixture
def begin(make_settings):
    """A method, its model and a round that has begun."""

    def make(round_=0, memory=None, training=None, data=None, **options):
        settings = make_settings(
            data={"classes": ["a", "b", "c"]}, training=training or {}, method={"name": "fedproin", **options}
        )
        torch.manual_seed(0)
        method = create_method(settings)
        model = method.build("site-1").train()
        if memory == "other prototypes":
            memory = Memory(round_ - 1, {"prototypes": model.prototypes.detach() + 1.0})
        elif memory == "same prototypes":
            memory = Memory(round_ - 1, {"prototypes": model.prototypes.detach().clone()})
        ctx = RoundContext(settings, round_, torch.device("cpu"), memory=memory)
        method.begin_round(ctx, model, data or Pictures(LABELS))
        return method, model.train(), ctx

    return make


# FDL


def test_fdl_is_exactly_zero_at_the_first_step_and_grows(begin):
    method, model, ctx = begin()
    data = Pictures(LABELS)
    assert step(method, model, ctx, data).terms["fdl"].item() == 0.0
    assert step(method, model, ctx, data).terms["fdl"].item() > 0


def test_fdl_against_running_statistics_is_not_zero_at_the_first_step(begin):
    method, model, ctx = begin(fdl_reference_bn="running")
    assert step(method, model, ctx, Pictures(LABELS)).terms["fdl"].item() > 0.01


@pytest.mark.parametrize("reference", ["batch", "running"])
def test_the_frozen_encoder_never_moves(begin, reference):
    method, model, ctx = begin(fdl_reference_bn=reference)
    frozen = ctx.frozen["encoder"]
    names = [name for name, value in frozen.state_dict().items() if value.is_floating_point()]
    before = {name: frozen.state_dict()[name].clone() for name in names}
    for _ in range(3):
        step(method, model, ctx, Pictures(LABELS))
    assert all(torch.equal(frozen.state_dict()[name], before[name]) for name in names)
    assert not torch.equal(model.encoder.bn1.running_mean, before["bn1.running_mean"])
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


def test_fdl_reductions_differ_by_the_feature_size(begin):
    values = {}
    for reduction in ("mean", "sum"):
        method, model, ctx = begin(fdl_reduction=reduction, fdl_reference_bn="running")
        values[reduction] = method.loss(ctx, model, Pictures(LABELS).images, LABELS).terms["fdl"].item()
    assert values["sum"] == pytest.approx(32 * values["mean"], rel=1e-5)


@pytest.mark.parametrize(("weight", "forwards"), [(0, 1), (0.5, 2)])
def test_weight_zero_skips_the_frozen_forward(begin, weight, forwards, monkeypatch):
    method, model, ctx = begin(lambda_fdl=weight)
    calls, encode = [], ctx.encode
    monkeypatch.setattr(ctx, "encode", lambda encoder, images: calls.append(encoder) or encode(encoder, images))
    terms = method.loss(ctx, model, Pictures(LABELS).images, LABELS).terms
    assert len(calls) == forwards
    assert ("fdl" in terms) == ("encoder" in ctx.frozen) == (weight > 0)


# PCL


def test_degenerate_first_participation_or_lost_state_has_no_pcl(begin):
    for memory in (None, Memory(0, {"optimizer.0.step": torch.zeros(())})):
        method, model, ctx = begin(1, memory)
        loss = method.loss(ctx, model, Pictures(LABELS).images, LABELS)
        assert loss.terms.keys() == {"task", "fdl"}
        assert loss.total == loss.terms["task"] + loss.terms["fdl"]


def test_pcl_starts_at_zero_without_gradient(begin):
    method, model, ctx = begin(1, "other prototypes")
    pcl = method.loss(ctx, model, Pictures(LABELS).images, LABELS).terms["pcl"]
    assert pcl.item() == 0.0
    assert not torch.autograd.grad(pcl, model.prototypes)[0].any()


def test_pcl_stays_at_its_start_value_in_a_second_round_without_server_change(begin):
    """Global and previous prototypes are the same: the hinge is the margin, whatever the site does; gradient zero."""
    method, model, ctx = begin(1, "same prototypes", pcl_margin=0.5)
    for _ in range(3):
        pcl = method.loss(ctx, model, Pictures(LABELS).images, LABELS).terms["pcl"]
        assert pcl.item() == 0.5
        assert not torch.autograd.grad(pcl, model.prototypes, retain_graph=True)[0].any()
        step(method, model, ctx, Pictures(LABELS))


def test_pcl_pulls_to_the_global_prototypes_once_it_is_active(begin):
    method, model, ctx = begin(1, "other prototypes", lambda_pcl=2.0)
    with torch.no_grad():
        model.prototypes += 0.5
    loss = method.loss(ctx, model, Pictures(LABELS).images, LABELS)
    assert loss.terms["pcl"].item() == pytest.approx(0.5)  # as far from one as from the other
    assert loss.total == loss.terms["task"] + loss.terms["fdl"] + 2 * loss.terms["pcl"]
    assert (torch.autograd.grad(loss.terms["pcl"], model.prototypes)[0] > 0).all()


def test_weight_zero_skips_pcl(begin):
    method, model, ctx = begin(1, "other prototypes", lambda_pcl=0)
    assert "pcl" not in method.loss(ctx, model, Pictures(LABELS).images, LABELS).terms


@pytest.mark.parametrize(("oldest", "used"), [(None, True), (3, True), (2, False)])
def test_degenerate_previous_prototypes_older_than_the_limit_count_as_absent(begin, oldest, used):
    memory = Memory(4, {"prototypes": torch.zeros(3, 1, 32)})
    _, _, ctx = begin(7, memory, prev_max_age=oldest)
    assert ("previous" in ctx.constants) == used


# task loss and options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, lambda dist: maths.mce_loss(dist, LABELS, 1.0)),
        ({"slope": 0.2}, lambda dist: maths.mce_loss(dist, LABELS, 0.2)),
        ({"distance": "squared", "slope": 0.01}, lambda dist: maths.mce_loss(dist**2, LABELS, 0.01)),
        ({"task_loss": "mcl"}, lambda dist: maths.mcl_loss(dist, LABELS, 0.5)),
        ({"task_loss": "mcl", "distance": "squared", "margin": 2}, lambda dist: maths.mcl_loss(dist**2, LABELS, 2.0)),
        ({"task_loss": "gmcl", "margin": 0.3}, lambda dist: maths.gmcl_loss(dist, LABELS, 0.3)),
    ],
)
def test_task_losses(begin, options, expected):
    method, model, ctx = begin(prototypes_per_class=2, **options)
    data = Pictures(LABELS)
    with torch.no_grad():
        dist_BCM = maths.prototype_distances(model.encoder(data.images), model.prototypes)
    assert method.loss(ctx, model, data.images, LABELS).terms["task"].item() == expected(dist_BCM).item()


@pytest.mark.parametrize(("task_loss", "weights"), [("mce", (1.0, 0.1)), ("mcl", (0.1, 0.01)), ("gmcl", (0.1, 0.01))])
def test_default_weights_belong_to_the_task_loss(task_loss, weights):
    options = FedProInOptions(task_loss=task_loss)
    assert (options.lambda_fdl, options.lambda_pcl) == weights
    assert FedProInOptions(task_loss=task_loss, lambda_fdl=0.0).lambda_fdl == 0.0


def test_predicts_the_class_of_the_nearest_prototype(begin):
    method, model, ctx = begin(prototypes_per_class=2)
    model.eval()
    images = Pictures(LABELS).images
    with torch.no_grad():
        features = model.encoder(images)
        model.prototypes[2, 1] = features[0]
        model.prototypes[0, 0] = features[1]
        scores = method.scores(ctx, model, images)
    assert scores.shape == (len(images), 3)
    assert scores[:2].argmax(dim=1).tolist() == [2, 0]


@pytest.mark.parametrize(("distance", "power"), [("euclidean", 1), ("squared", 2)])
@pytest.mark.parametrize(("task_loss", "scale"), [("mce", 0.5), ("mcl", 1.0)])
def test_scores_are_in_units_of_the_task_loss(begin, task_loss, scale, distance, power):
    method, model, ctx = begin(prototypes_per_class=2, distance=distance, slope=0.5, task_loss=task_loss)
    data = Pictures(LABELS)
    model.eval()
    with torch.no_grad():
        own, rival = maths.nearest_own_and_rival(model(data.images) ** power, LABELS)
        scores = method.scores(ctx, model, data.images)
    true_B1 = LABELS.unsqueeze(1)
    true = scores.gather(1, true_B1).squeeze(1)
    best_other = scores.scatter(1, true_B1, -torch.inf).amax(dim=1)
    assert torch.allclose(best_other - true, scale * (own - rival))


# influence


def influence(method, model, ctx, data, epochs=1):
    for ctx.epoch in range(epochs):
        method.loss(ctx, model, data.images, data.labels)
    counts = method.end_round(ctx, model, data).extras["influence"]
    assert counts.dtype == torch.int64
    return counts


@pytest.mark.parametrize(("source", "times"), [("last_epoch", 1), ("all_epochs", 3), ("dataset", 1)])
def test_influence_sources(begin, source, times):
    method, model, ctx = begin(
        training={"local_epochs": 3}, prototypes_per_class=2, influence_source=source, prototype_init="normal"
    )
    counts = influence(method, model, ctx, Pictures(LABELS), epochs=3)
    assert counts.shape == (3, 2)
    assert counts.sum(dim=1).tolist() == [3 * times, 3 * times, 2 * times]


def test_influence_of_the_data_set_is_counted_after_training_with_running_statistics(begin):
    method, model, ctx = begin(prototypes_per_class=2, influence_source="dataset")
    data = Pictures(LABELS)
    step(method, model, ctx, data, learning_rate=1.0)
    counts = method.end_round(ctx, model, data).extras["influence"]
    model.eval()
    with torch.no_grad():
        dist_BCM = maths.prototype_distances(model.encoder(data.images), model.prototypes)
    assert torch.equal(counts, maths.influence_counts(dist_BCM, LABELS))


def test_scope_all_does_not_count_what_is_nearest_to_a_rival(begin):
    counts = {}
    for scope in ("true_class", "all"):
        method, model, ctx = begin(influence_scope=scope)
        with torch.no_grad():
            model.prototypes[0] = 1e3
        counts[scope] = influence(method, model, ctx, Pictures(LABELS)).sum(dim=1).tolist()
    assert counts["true_class"] == [3, 3, 2]
    assert counts["all"][0] == 0


def test_each_round_counts_from_zero(begin):
    method, model, ctx = begin()
    first = influence(method, model, ctx, Pictures(LABELS))
    method.begin_round(ctx, model, Pictures(LABELS))
    assert torch.equal(influence(method, model, ctx, Pictures(LABELS)), first)


# prototype_init


def test_prototypes_can_start_at_the_features(begin):
    data = Pictures(torch.tensor([0, 0, 2, 0]))
    method, model, _ = begin(prototype_init="feature_mean", data=data)
    untouched = method.build("site-1")  # another draw, so that class 1 is told apart from the fresh one below
    model.eval()
    with torch.no_grad():
        features = model.encoder(data.images)
    assert torch.allclose(model.prototypes[0, 0], features[[0, 1, 3]].mean(dim=0), atol=1e-5)
    assert torch.allclose(model.prototypes[2, 0], features[2], atol=1e-5)
    _, normal, _ = begin()
    assert torch.equal(model.prototypes[1], normal.prototypes[1])
    assert not torch.equal(model.prototypes[1], untouched.prototypes[1])


def test_only_in_the_first_round(begin):
    _, later, _ = begin(1, prototype_init="feature_mean")
    _, normal, _ = begin(1)
    assert torch.equal(later.prototypes, normal.prototypes)


def test_fewer_images_than_prototypes_leave_the_others_as_they_were(begin):
    data = Pictures(torch.tensor([0, 1, 1, 1]))
    _, model, _ = begin(prototype_init="feature_mean", prototypes_per_class=2, data=data)
    _, normal, _ = begin(prototypes_per_class=2)
    moved = (model.prototypes != normal.prototypes).any(dim=2)
    assert moved.tolist() == [[True, False], [True, True], [False, False]]


# merging


def updates_and_previous(seed=0, sites=3, per_class=2):
    g = torch.Generator().manual_seed(seed)
    updates = [
        Update(
            f"site-{index}",
            int(torch.randint(1, 50, (), generator=g)),
            {
                "encoder.w": torch.randn(4, generator=g),
                "encoder.bn.num_batches_tracked": torch.tensor(index),
                "prototypes": torch.randn(3, per_class, 5, generator=g),
            },
            {"influence": torch.randint(1, 9, (3, per_class), generator=g)},
        )
        for index in range(sites)
    ]
    previous = {
        **{k: torch.zeros_like(v) for k, v in updates[0].shared.items()},
        "prototypes": torch.full((3, 2, 5), 7.0),
    }
    return updates, ServerState(previous)


def merged(begin, updates, previous, **options):
    method, _, _ = begin(prototypes_per_class=2, **options)
    return method.merge(previous, updates).public


def test_encoder_is_averaged_by_samples_and_prototypes_by_influence(begin):
    updates, previous = updates_and_previous()
    public = merged(begin, updates, previous)
    total = sum(update.samples for update in updates)
    mean = sum(update.samples / total * update.shared["encoder.w"] for update in updates)
    assert torch.allclose(public["encoder.w"], mean, atol=1e-6)
    assert public["encoder.bn.num_batches_tracked"] == 2
    weight = torch.stack([update.extras["influence"] for update in updates]).unsqueeze(3)
    proto = torch.stack([update.shared["prototypes"] for update in updates])
    assert torch.allclose(public["prototypes"], (weight * proto).sum(0) / weight.sum(0), atol=1e-6)
    assert {value.dtype for value in public.values()} == {torch.float32, torch.int64}


@pytest.mark.parametrize(("merge", "expected"), [("nia", 7.0), ("nia_literal", 0.0)])
def test_degenerate_class_absent_from_all_participants(begin, merge, expected):
    updates, previous = updates_and_previous()
    for update in updates:
        update.extras["influence"][1] = 0
        update.extras["influence"][2, 1] = 0
    public = merged(begin, updates, previous, prototype_merge=merge)
    assert (public["prototypes"][1] == expected).all()
    assert (public["prototypes"][2, 1] == expected).all()
    assert (public["prototypes"][2, 0] != expected).all()


def test_fedavg_averages_prototypes_by_samples_whatever_the_influence(begin):
    updates, previous = updates_and_previous()
    updates[0].extras["influence"].zero_()
    public = merged(begin, updates, previous, prototype_merge="fedavg")
    total = sum(update.samples for update in updates)
    mean = sum(update.samples / total * update.shared["prototypes"] for update in updates)
    assert torch.allclose(public["prototypes"], mean, atol=1e-6)


@pytest.mark.parametrize("merge", ["nia", "nia_literal", "fedavg"])
def test_names_of_sites_and_their_order_change_nothing(begin, merge):
    updates, previous = updates_and_previous()
    forward = merged(begin, updates, previous, prototype_merge=merge)
    backward = merged(begin, updates[::-1], previous, prototype_merge=merge)
    assert all(torch.allclose(forward[name], backward[name], atol=1e-6) for name in forward)


def test_only_ratios_of_influence_matter(begin):
    updates, previous = updates_and_previous()
    scaled = [replace(update, extras={"influence": update.extras["influence"] * 10}) for update in updates]
    one, ten = merged(begin, updates, previous), merged(begin, scaled, previous)
    assert torch.allclose(one["prototypes"], ten["prototypes"], atol=1e-6)


def test_merging_is_pure(begin):
    updates, previous = updates_and_previous()
    copies, copy_of_previous = updates_and_previous()
    merged(begin, updates, previous)
    for one, other in zip([*updates, previous], [*copies, copy_of_previous], strict=True):
        tensors, others = ((x.public if isinstance(x, ServerState) else x.shared) for x in (one, other))
        assert all(torch.equal(tensors[name], others[name]) for name in tensors)


def test_the_variance_of_batchnorm_can_be_pooled(begin):
    method, _, _ = begin(training={"bn_variance": "pooled"})
    updates, _ = updates_and_previous(sites=2, per_class=1)
    for update, mean in zip(updates, (0.0, 2.0), strict=True):
        update.shared.update({"encoder.bn.running_mean": torch.tensor(mean), "encoder.bn.running_var": torch.ones(())})
    updates = [replace(update, samples=5) for update in updates]
    assert method.merge(ServerState(dict(updates[0].shared)), updates).public["encoder.bn.running_var"] == 2.0


# local BatchNorm


def test_local_batchnorm_shares_no_entry_and_comes_back(begin):
    method, model, ctx = begin(training={"bn_mode": "local"})
    batchnorm = {name for name in model.state_dict() if ".bn" in name or "downsample.1." in name}
    assert len(batchnorm) == 5 * 20
    step(method, model, ctx, Pictures(LABELS))
    result = method.end_round(ctx, model, Pictures(LABELS))
    assert set(result.shared) == set(model.state_dict()) - batchnorm
    assert set(result.remember) == batchnorm | {"prototypes"}

    remember = {name: tensor.detach().clone() for name, tensor in result.remember.items()}
    fresh = method.build()
    message = {name: tensor.clone() for name, tensor in fresh.state_dict().items()}
    received = method.build("site-1")
    method.receive(received, message, Memory(0, remember))
    state = received.state_dict()
    assert all(torch.equal(state[name], remember[name]) for name in batchnorm)
    assert all(torch.equal(state[name], message[name]) for name in set(message) - batchnorm)  # prototypes too


def test_local_batchnorm_need_not_be_in_the_message(begin):
    method, model, _ = begin(training={"bn_mode": "local"})
    before = model.encoder.bn1.weight.detach().clone()
    shared = {name: torch.full_like(model.state_dict()[name], 2) for name in method.shared_names(model)}
    method.receive(model, shared, None)
    assert torch.equal(model.encoder.bn1.weight, before)
    assert (model.prototypes == 2).all()


def test_average_batchnorm_shares_everything_and_remembers_only_prototypes(begin):
    method, model, ctx = begin()
    result = method.end_round(ctx, model, Pictures(LABELS))
    assert set(result.shared) == set(model.state_dict())
    assert set(result.remember) == {"prototypes"}


def test_degenerate_a_message_that_lacks_tensors_is_refused(begin):
    method, model, _ = begin()
    message = dict(model.state_dict())
    del message["prototypes"]
    with pytest.raises(ValueError, match="lacks 1 tensors"):
        method.receive(model, message, None)


def test_degenerate_another_number_of_prototypes_is_refused(begin):
    method, model, _ = begin()
    other = begin(prototypes_per_class=2)[1].state_dict()
    with pytest.raises(RuntimeError, match="prototypes"):
        method.receive(model, other, None)


# degenerate cases of methods.md section 9


def test_degenerate_class_absent_at_a_site_is_a_rival_without_influence(begin):
    method, model, ctx = begin(lambda_fdl=0)
    before = model.prototypes.detach().clone()
    with torch.no_grad():
        model.prototypes[1] = model.encoder(Pictures(LABELS).images).mean(dim=0)  # the nearest rival
        model.train()
        before[1] = model.prototypes[1]
    data = Pictures(torch.tensor([0, 2, 0, 2]))
    loss = step(method, model, ctx, data)
    assert loss.total.isfinite()
    assert not torch.equal(model.prototypes[1], before[1])
    assert method.end_round(ctx, model, data).extras["influence"][1].item() == 0


def test_degenerate_one_class_only(begin):
    method, model, ctx = begin()
    data = Pictures(torch.tensor([1, 1, 1]))
    for _ in range(2):
        loss = step(method, model, ctx, data)
    assert all(term.isfinite() for term in loss.terms.values())
    assert method.end_round(ctx, model, data).extras["influence"].flatten().tolist() == [0, 6, 0]


def test_degenerate_a_classifier_needs_two_classes(make_settings):
    method = create_method(make_settings())  # no classes named yet
    with pytest.raises(ValueError, match="at least 2 classes"):
        method.build()


def test_degenerate_feature_exactly_on_a_prototype(begin):
    method, model, ctx = begin(lambda_fdl=0)
    data = Pictures(LABELS)
    with torch.no_grad():
        model.prototypes[0, 0] = model.encoder(data.images)[0]
    loss = method.loss(ctx, model, data.images, data.labels)
    loss.total.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_degenerate_batch_of_one_uses_running_statistics(begin):
    method, model, ctx = begin()
    model.eval()
    data = Pictures(torch.tensor([2]))
    loss = method.loss(ctx, model, data.images, data.labels)
    assert loss.terms["fdl"].item() == 0.0  # the frozen encoder does so, too
    assert loss.total.isfinite()
    assert ctx.counters["influence"].sum() == 1


def test_degenerate_all_weights_zero_is_no_mean(begin):
    updates, previous = updates_and_previous()
    with pytest.raises(ValueError, match="total weight is 0"):
        merged(begin, [replace(update, samples=0) for update in updates], previous)
