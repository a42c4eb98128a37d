import pytest
import torch
from rounds import LABELS, Pictures, gradient, step

from fedproin.maths.contrast import model_contrast
from fedproin.methods.base import Memory


def memory_of(model, round_=0, shift=0.0):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["l2.bias"] += shift
    return Memory(round_, state)


def test_degenerate_no_previous_model_no_term(begin_round):
    for memory in (None, Memory(0, {"optimizer.0.step": torch.zeros(())})):
        method, model, ctx = begin_round("moon", 1, memory)
        assert method.loss(ctx, model, Pictures(LABELS).images, LABELS).terms.keys() == {"task"}
        assert ctx.frozen == {}


def test_the_term_is_that_of_both_frozen_models_in_evaluation_mode(begin_round):
    _, fresh, _ = begin_round("moon")
    memory = memory_of(fresh, shift=torch.linspace(-1, 1, 256))
    method, model, ctx = begin_round("moon", 1, memory, mu=3.0, temperature=0.7)
    data = Pictures(LABELS)
    step(method, model, ctx, data)
    loss = method.loss(ctx, model, data.images, LABELS)
    with torch.no_grad():
        fresh.eval()
        q_global = fresh.project(fresh.encoder(data.images))
        fresh.load_state_dict(memory.tensors)
        q_previous = fresh.project(fresh.encoder(data.images))
        expected = model_contrast(model.project(model.encoder(data.images)), q_global, [q_previous], 0.7)
    assert loss.terms["contrast"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert loss.total.item() == pytest.approx((loss.terms["task"] + 3 * expected).item(), rel=1e-5)
    assert gradient(loss.terms["contrast"], model) > 0


def test_degenerate_previous_equals_global_is_log_2_without_gradient(begin_round):
    _, fresh, _ = begin_round("moon")
    method, model, ctx = begin_round("moon", 1, memory_of(fresh))
    term = method.loss(ctx, model, Pictures(LABELS).images, LABELS).terms["contrast"]
    assert term.item() == pytest.approx(0.6931472, abs=1e-6)
    assert gradient(term, model) < 1e-6


def test_the_frozen_models_never_move(begin_round):
    _, fresh, _ = begin_round("moon")
    method, model, ctx = begin_round("moon", 1, memory_of(fresh, shift=1.0))
    before = {name: memory_of(frozen).tensors for name, frozen in ctx.frozen.items()}
    step(method, model, ctx, Pictures(LABELS))
    for name, frozen in ctx.frozen.items():
        assert all(torch.equal(value, before[name][key]) for key, value in frozen.state_dict().items())
        assert not any(parameter.requires_grad for parameter in frozen.parameters())


@pytest.mark.parametrize(("oldest", "used"), [(None, True), (3, True), (2, False)])
def test_degenerate_a_previous_model_older_than_the_limit_counts_as_absent(begin_round, oldest, used):
    _, fresh, _ = begin_round("moon")
    _, _, ctx = begin_round("moon", 7, memory_of(fresh, 4), prev_max_age=oldest)
    assert bool(ctx.frozen) == used


def test_the_whole_model_is_remembered_and_only_the_servers_is_received(begin_round):
    method, model, ctx = begin_round("moon")
    data = Pictures(LABELS)
    step(method, model, ctx, data)
    result = method.end_round(ctx, model, data)
    assert result.remember.keys() == result.shared.keys() == model.state_dict().keys()
    message = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    method.receive(model, message, Memory(0, result.remember))
    assert not any(value.any() for value in model.state_dict().values())


@pytest.mark.parametrize(("head_on", "size"), [("projection", 10), ("features", 32)])
def test_where_the_classifier_sits(begin_round, head_on, size):
    _, model, _ = begin_round("moon", projection=10, head_on=head_on)
    assert model.head.weight.shape == (3, size)
    assert model.project(torch.ones(2, 32)).shape == (2, 10)
    assert model(Pictures(LABELS).images).shape == (8, 3)
