import torch
from rounds import LABELS, Pictures, step

from fedproin.methods.base import Memory, ServerState, Update


def test_nothing_of_the_model_leaves_the_site(begin_round):
    method, model, ctx = begin_round("solo")
    data = Pictures(LABELS)
    step(method, model, ctx, data)
    result = method.end_round(ctx, model, data)
    assert (result.shared, result.extras) == ({}, {})
    assert result.remember.keys() == model.state_dict().keys()
    assert method.merge(ServerState({}), [Update("site-1", 8, {}, {})]) == ServerState({})


def test_a_site_goes_on_with_its_own_model_or_begins_with_the_first(begin_round):
    method, model, _ = begin_round("solo")
    first = {name: value.clone() for name, value in model.state_dict().items()}
    own = {name: torch.full_like(value, 3) for name, value in first.items()}
    method.receive(model, first, Memory(0, own))
    assert all((value == 3).all() for value in model.state_dict().values())
    method.receive(model, first, None)
    assert all(torch.equal(value, first[name]) for name, value in model.state_dict().items())
