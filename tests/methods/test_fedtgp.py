from dataclasses import replace

import pytest
import torch
from rounds import LABELS, Pictures, gradient, step

from fedproin.maths.contrast import margin_contrast
from fedproin.methods.base import ServerState, Update, initial_model

FEATURES = torch.randn(3, 32, generator=torch.Generator().manual_seed(1)) * 3


def upload(site, *classes: int, shift=0.0):
    mask = torch.zeros(3, dtype=torch.bool)
    mask[list(classes)] = True
    return Update(site, 9, {}, {"protos": (FEATURES + shift) * mask.unsqueeze(1), "mask": mask})


def same(one, other):
    return all(torch.equal(one.public[n], other.public[n]) for n in one.public) and all(
        torch.equal(one.private[n], other.private[n]) for n in one.private
    )


@pytest.fixture
def server(begin_round):
    """A method and the server's first state."""

    def make(**options):
        method, model, _ = begin_round("fedtgp", **options)
        return method, method.initial(model)

    return make


def test_before_the_first_training_nothing_is_sent(server):
    method, state = server()
    assert state.public == {}
    assert state.private["embedding"].shape == (3, 32)
    assert state.private["trainings"] == 0
    torch.manual_seed(77)
    assert same(state, method.initial(initial_model(method)))  # whatever else was drawn


def test_training_brings_its_prototypes_to_the_uploaded_ones(server):
    method, state = server(server_epochs=300)
    uploads = [upload("a", 0, 1), upload("b", 1, 2, shift=0.1)]
    trained = method.merge(state, uploads)
    assert trained.public.keys() == {"protos"}
    model = method._server_model(32)
    model.load_state_dict({name: value for name, value in state.private.items() if name != "trainings"})
    vectors, labels = torch.cat([FEATURES[:2], FEATURES[1:] + 0.1]), torch.tensor([0, 1, 1, 2])
    before, after = (
        margin_contrast(vectors, labels, p, 5.0).item() for p in (model().detach(), trained.public["protos"])
    )
    assert after < 0.7 * before
    assert torch.cdist(vectors, trained.public["protos"]).argmin(dim=1).tolist() == labels.tolist()
    assert trained.private["trainings"] == 1


def test_training_is_pure_repeatable_and_goes_on_from_its_own_state(server):
    method, state = server(server_epochs=3)
    uploads = [upload("a", 0, 1), upload("b", 1, 2)]
    copies = {name: value.clone() for name, value in state.private.items()}
    torch.manual_seed(1)
    first = method.merge(state, uploads)
    torch.manual_seed(2)
    assert same(first, method.merge(state, uploads))
    assert all(torch.equal(state.private[name], copies[name]) for name in copies)
    second = method.merge(first, uploads)
    assert second.private["trainings"] == 2
    assert not torch.equal(second.public["protos"], first.public["protos"])
    restored = ServerState({}, {name: value.clone() for name, value in first.private.items()})
    assert same(second, method.merge(restored, uploads))


def test_degenerate_one_class_in_all_trains_without_a_margin(server, monkeypatch):
    margins = []
    from fedproin.methods import fedtgp

    def watched(z, y, protos, margin):
        margins.append(margin)
        return margin_contrast(z, y, protos, margin)

    monkeypatch.setattr(fedtgp, "margin_contrast", watched)
    method, state = server(server_epochs=1)
    assert method.merge(state, [upload("a", 1), upload("b", 1)]).public["protos"].isfinite().all()
    assert margins == [0.0]
    method.merge(state, [upload("a", 0, 1)])
    assert margins[1] > 0


def test_degenerate_no_upload_changes_nothing(server):
    method, state = server()
    assert method.merge(state, [upload("a")]) is state


def test_what_a_site_says_of_absent_classes_is_not_used(server):
    method, state = server(server_epochs=2)
    honest = upload("a", 0, 1)
    noisy = replace(
        honest, extras={**honest.extras, "protos": honest.extras["protos"] + 9.0 * ~honest.extras["mask"].unsqueeze(1)}
    )
    assert same(method.merge(state, [honest]), method.merge(state, [noisy]))


def test_degenerate_first_round_has_no_term_and_later_all_classes_have_prototypes(begin_round):
    method, model, ctx = begin_round("fedtgp")
    data = Pictures(LABELS)
    assert method.loss(ctx, model, data.images, LABELS).terms.keys() == {"task"}
    method, model, ctx = begin_round("fedtgp", 1, message={"protos": FEATURES})
    term = method.loss(ctx, model, data.images, LABELS).terms["prototype"]
    with torch.no_grad():
        expected = ((model.encoder(data.images) - FEATURES[LABELS]) ** 2).mean()
    assert term.item() == pytest.approx(expected.item(), rel=1e-5)
    assert gradient(term, model) > 0


def test_uploads_are_means_and_a_mask(begin_round):
    data = Pictures(torch.tensor([0, 0, 2]))
    method, model, ctx = begin_round("fedtgp", data=data)
    step(method, model, ctx, data)
    extras = method.end_round(ctx, model, data).extras
    assert extras["mask"].tolist() == [True, False, True]
    assert not extras["protos"][1].any()
    assert extras["protos"][0].any()
