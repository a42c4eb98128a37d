import pytest
import torch
from rounds import LABELS, Pictures, gradient, step

from fedproin.maths.contrast import centre_contrast
from fedproin.methods.base import ServerState, Update

CENTRES = torch.randn(3, 256, generator=torch.Generator().manual_seed(3))


def message(*known: bool):
    return {"centres": CENTRES, "mask": torch.tensor(known)}


def upload(sums, counts):
    extras = {"class_sum": torch.tensor(sums, dtype=torch.float64), "class_count": torch.tensor(counts)}
    return Update("a", 9, {"w": torch.ones(1)}, extras)


@pytest.mark.parametrize(
    ("round_", "rounds", "constant", "share"),
    [(0, 50, None, 0.0), (10, 50, None, 0.2), (49, 50, None, 0.98), (49, 50, 100, 0.49), (60, 80, 50, 1.0)],
)
def test_schedule_of_the_cross_entropy(begin_round, round_, rounds, constant, share):
    method, _, _ = begin_round("fedproc", rounds=rounds, schedule_rounds=constant)
    assert method.task_weight(round_) == pytest.approx(share)


def test_degenerate_without_centres_it_is_cross_entropy_alone(begin_round):
    method, model, ctx = begin_round("fedproc")
    loss = method.loss(ctx, model, Pictures(LABELS).images, LABELS)
    assert loss.terms.keys() == {"task"}
    assert loss.total == loss.terms["task"]


def test_the_total_follows_the_schedule(begin_round):
    method, model, ctx = begin_round("fedproc", 2, message=message(True, True, True))
    data = Pictures(LABELS)
    with torch.no_grad():
        q = model.project(model.encoder(data.images))
    loss = method.loss(ctx, model, data.images, LABELS)
    contrast = centre_contrast(q, LABELS, CENTRES, torch.tensor([True] * 3)).mean()
    assert loss.terms["contrast"].item() == pytest.approx(contrast.item(), rel=1e-5)
    assert loss.total.item() == pytest.approx((0.8 * contrast + 0.2 * loss.terms["task"]).item(), rel=1e-5)
    assert gradient(loss.terms["contrast"], model) > 0
    torch.testing.assert_close(q.norm(dim=1), torch.ones(8))


def test_degenerate_samples_of_a_class_without_centre_have_their_whole_cross_entropy(begin_round):
    labels = torch.tensor([2, 2, 2, 2])
    method, model, ctx = begin_round("fedproc", 2, message=message(True, True, False))
    loss = method.loss(ctx, model, Pictures(labels).images, labels)
    assert loss.terms["contrast"].item() == 0
    assert loss.total.item() == pytest.approx(loss.terms["task"].item())


def test_uploads_are_sums_of_projections_after_training(begin_round):
    data = Pictures(torch.tensor([0, 0, 2, 2, 2]))
    method, model, ctx = begin_round("fedproc", data=data)
    step(method, model, ctx, data)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    extras = method.end_round(ctx, model, data).extras
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())  # BatchNorm too
    with torch.no_grad():
        q = model.project(model.encoder(data.images)).double()
    torch.testing.assert_close(
        extras["class_sum"], torch.stack([q[:2].sum(0), 0 * q[0], q[2:].sum(0)]), atol=1e-6, rtol=1e-6
    )
    assert extras["class_count"].tolist() == [2, 0, 3]


def test_centres_are_the_sums_over_the_counts(begin_round):
    method, _, _ = begin_round("fedproc")
    uploads = [
        upload([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [4, 0, 0]),
        upload([[1.0, 3.0], [0.0, 1.0], [0.0, 0.0]], [2, 1, 0]),
    ]
    public = method.merge(ServerState({"w": torch.zeros(1)}), uploads).public
    torch.testing.assert_close(public["centres"], torch.tensor([[0.5, 0.5], [0.0, 1.0], [0.0, 0.0]]))
    assert public["mask"].tolist() == [True, True, False]
    assert public["w"].item() == 1
    later = method.merge(ServerState(public), [upload([[0.0, 0.0], [0.0, 0.0], [0.0, 6.0]], [0, 0, 2])]).public
    torch.testing.assert_close(later["centres"], torch.tensor([[0.5, 0.5], [0.0, 1.0], [0.0, 3.0]]))  # the old are kept
    assert later["mask"].tolist() == [True, True, True]
