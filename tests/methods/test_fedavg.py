"""FedAvg, and what all methods with logits have from it; central training, which is FedAvg at one site."""

import pytest
import torch
from rounds import LABELS, Pictures, gradient, step

from fedproin.methods import create_method
from fedproin.methods.base import ServerState, Update


def update(site, samples, **tensors):
    return Update(site, samples, {name: torch.tensor(value) for name, value in tensors.items()}, {})


def test_average_over_the_participants_alone(begin_round):
    """Vector group `fedavg`."""
    method, _, _ = begin_round("fedavg")
    updates = [update("a", 30, w=[1.0, 2.0]), update("b", 10, w=[3.0, -2.0]), update("c", 60, w=[0.0, 1.0])]
    public = method.merge(ServerState({"w": torch.zeros(2), "kept": torch.ones(1)}), updates).public
    torch.testing.assert_close(public["w"], torch.tensor([0.6, 1.0]))
    assert public["kept"].item() == 1  # what nobody shares, such as local BatchNorm


def test_loss_is_cross_entropy_and_the_largest_logit_decides(begin_round):
    method, model, ctx = begin_round("fedavg")
    data = Pictures(LABELS)
    with torch.no_grad():
        logits = model(data.images)
    loss = method.loss(ctx, model, data.images, data.labels)
    assert loss.terms.keys() == {"task"}
    assert loss.total.item() == torch.nn.functional.cross_entropy(logits, LABELS).item()
    model.eval()
    with torch.no_grad():
        assert torch.equal(method.scores(ctx, model, data.images), model(data.images))


def test_feature_divergence_is_that_of_fedproin(begin_round):
    """The same encoder and the same pictures, so the same value after the same change of the encoder."""
    data, values = Pictures(LABELS), []
    for name in ("fedavg", "fedproin"):
        method, model, ctx = begin_round(name, lambda_fdl=0.5)
        assert method.loss(ctx, model, data.images, data.labels).terms["fdl"].item() == 0
        with torch.no_grad():
            model.encoder.conv1.weight += 0.1 * torch.linspace(-1, 1, model.encoder.conv1.weight.numel()).view_as(
                model.encoder.conv1.weight
            )
        loss = method.loss(ctx, model, data.images, data.labels)
        assert gradient(loss.terms["fdl"], model) > 0
        values.append(loss.terms["fdl"].item())
        if name == "fedavg":
            assert loss.total.item() == pytest.approx(loss.terms["task"].item() + 0.5 * values[0], rel=1e-6)
    assert values[0] == values[1] > 0


@pytest.mark.parametrize(
    "name", ["fedavg", "fedprox", "moon", "fedproc", "fedplvm", "balancefl", "solo", "fedproto", "fedtgp"]
)
def test_degenerate_one_class_only_and_a_batch_of_one(begin_round, name):
    for labels in (torch.tensor([1, 1, 1]), torch.tensor([2])):
        data = Pictures(labels)
        method, model, ctx = begin_round(name, data=data)
        model.train(len(labels) > 1)
        for _ in range(2):
            loss = step(method, model, ctx, data)
        assert all(term.isfinite() for term in (loss.total, *loss.terms.values()))
        result = method.end_round(ctx, model, data)
        assert all(value.double().isfinite().all() for value in (*result.shared.values(), *result.extras.values()))


@pytest.mark.parametrize("name", ["fedavg", "moon"])
def test_degenerate_a_classifier_needs_two_classes(make_settings, name):
    with pytest.raises(ValueError, match="at least 2 classes"):
        create_method(make_settings(method={"name": name})).build()


def test_degenerate_all_weights_zero_is_no_mean(begin_round):
    method, _, _ = begin_round("fedavg")
    with pytest.raises(ValueError, match="total weight is 0"):
        method.merge(ServerState({}), [update("a", 0, w=[1.0])])
