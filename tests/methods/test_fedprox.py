import pytest
import torch
from rounds import LABELS, Pictures, gradient, step

from fedproin.methods import create_method


def test_the_term_is_zero_at_the_first_step_and_grows(begin_round):
    method, model, ctx = begin_round("fedprox", mu=0.5)
    data, start = Pictures(LABELS), {name: p.detach().clone() for name, p in model.named_parameters()}
    first = method.loss(ctx, model, data.images, data.labels)
    assert (first.terms["proximal"].item(), gradient(first.terms["proximal"], model)) == (0.0, 0.0)
    step(method, model, ctx, data)
    second = method.loss(ctx, model, data.images, data.labels)
    moved = sum(((p - start[name]) ** 2).sum() for name, p in model.named_parameters()) / 2
    assert second.terms["proximal"].item() == pytest.approx(moved.item(), rel=1e-4)
    assert second.total.item() == pytest.approx((second.terms["task"] + 0.5 * moved).item(), rel=1e-5)
    assert gradient(second.terms["proximal"], model) > 0


def test_buffers_are_not_held(begin_round):
    method, model, ctx = begin_round("fedprox")
    assert not any("running" in name for name in ctx.constants)
    with torch.no_grad():
        model.encoder.bn1.running_mean += 5
    data = Pictures(LABELS)
    assert method.loss(ctx, model, data.images, data.labels).terms["proximal"].item() == 0


def test_weight_zero_has_no_term(begin_round):
    method, model, ctx = begin_round("fedprox", mu=0)
    assert method.loss(ctx, model, Pictures(LABELS).images, LABELS).terms.keys() == {"task"}
    assert ctx.constants == {}


def test_the_default_weight(make_settings):
    assert create_method(make_settings(method={"name": "fedprox"})).options.mu == 0.01
