import pytest
import torch
from rounds import LABELS, Pictures, features, gradient, step

from fedproin.maths import balance

LONG_TAIL = torch.tensor([0, 0, 0, 0, 0, 1])  # class 2 is absent


def test_what_the_round_begins_with(begin_round):
    _, model, ctx = begin_round("balancefl", data=Pictures(LONG_TAIL))
    assert ctx.constants["present"].tolist() == [True, True, False]
    torch.testing.assert_close(ctx.constants["probability"], torch.tensor([0.0, 0.8, 1.0]))
    assert ctx.constants["noise"].shape == (500, 32)
    assert not ctx.frozen["teacher"].training
    assert model.head.bias is None


def test_terms_with_the_classes_of_the_client(begin_round):
    data = Pictures(torch.tensor([0, 0, 0, 0]))  # one present class, never noisy; two absent ones
    method, model, ctx = begin_round("balancefl", data=data)
    step(method, model, ctx, data)
    loss = method.loss(ctx, model, data.images, data.labels)
    with torch.no_grad():
        logits = 2.0 * model.encoder(data.images) @ model.head.weight.T
        teacher = ctx.frozen["teacher"]
        expected = balance.absent_distillation(logits, teacher(data.images), torch.tensor([False, True, True]))
    assert loss.terms["task"].item() == loss.terms["entropy"].item() == 0  # among one class nothing is uncertain
    assert loss.terms["inheritance"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert gradient(loss.terms["inheritance"], model) > 0


def test_degenerate_one_or_no_absent_class_has_no_inheritance(begin_round):
    for labels in (LONG_TAIL, LABELS):
        data = Pictures(labels)
        method, model, ctx = begin_round("balancefl", data=data)
        term = method.loss(ctx, model, data.images, labels).terms["inheritance"]
        assert (term.item(), gradient(term, model)) == (0.0, 0.0)


def test_classes_of_the_batch_are_an_option(begin_round):
    method, model, ctx = begin_round("balancefl", class_scope="batch")
    loss = method.loss(ctx, model, Pictures(LABELS).images[:2], LABELS[:2])  # of class 0 only
    assert loss.terms["task"].item() == 0
    assert loss.terms["inheritance"].item() > 0


def test_noise_falls_on_rare_classes_only_and_is_drawn_anew(begin_round):
    data = Pictures(LONG_TAIL)
    tasks = []
    for _ in range(2):
        method, model, ctx = begin_round("balancefl", data=data)
        model.eval()
        tasks.append([method.loss(ctx, model, data.images, LONG_TAIL).terms["task"].item() for _ in range(6)])
    assert tasks[0] == tasks[1]  # from the round's own generator
    assert len(set(tasks[0])) > 1
    common = Pictures(torch.tensor([0, 0, 1, 1]))
    method, model, ctx = begin_round("balancefl", data=common)
    model.eval()
    assert len({method.loss(ctx, model, common.images, common.labels).total.item() for _ in range(3)}) == 1


def test_entropy_is_a_sum_or_a_mean_for_a_full_batch(begin_round):
    values = {}
    for reduction in ("sum", "mean"):
        method, model, ctx = begin_round("balancefl", entropy_reduction=reduction, training={"batch_size": 16})
        values[reduction] = method.loss(ctx, model, Pictures(LABELS).images, LABELS).terms["entropy"].item()
    assert values["mean"] == pytest.approx(2 * values["sum"], rel=1e-5)  # half a batch was shown


def test_the_noise_is_of_the_received_encoders_features(begin_round):
    data = Pictures(LABELS)
    method, model, ctx = begin_round("balancefl", data=data)
    ctx._generators.clear()
    expected = balance.within_class_noise(features(method, model, data), LABELS, 500, ctx.generator("noise"))
    torch.testing.assert_close(ctx.constants["noise"], expected)


def test_the_teacher_never_moves(begin_round):
    method, model, ctx = begin_round("balancefl")
    before = {name: value.clone() for name, value in ctx.frozen["teacher"].state_dict().items()}
    step(method, model, ctx, Pictures(LABELS))
    assert all(torch.equal(value, before[name]) for name, value in ctx.frozen["teacher"].state_dict().items())
