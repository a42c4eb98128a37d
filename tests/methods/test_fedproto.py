import pytest
import torch
from rounds import LABELS, Pictures, features, gradient, step

from fedproin.methods.base import Memory, ServerState, Update

PROTOS = torch.arange(3.0).unsqueeze(1).expand(3, 32).contiguous()
MESSAGE = {"protos": PROTOS, "mask": torch.tensor([True, True, False])}


def upload(site, samples, protos, counts):
    extras = {"protos": torch.tensor(protos), "class_count": torch.tensor(counts)}
    return Update(site, samples, {}, extras)


UPLOADS = [
    upload("a", 40, [[1.0, 0.0], [0.0, 2.0], [0.0, 0.0], [0.0, 0.0]], [10, 30, 0, 0]),
    upload("b", 50, [[3.0, 4.0], [0.0, 0.0], [5.0, 5.0], [0.0, 0.0]], [30, 0, 20, 0]),
]


def test_degenerate_first_round_has_no_term_and_the_head_decides(begin_round):
    method, model, ctx = begin_round("fedproto")
    data = Pictures(LABELS)
    assert method.loss(ctx, model, data.images, LABELS).terms.keys() == {"task"}
    model.eval()
    with torch.no_grad():
        assert torch.equal(method.scores(ctx, model, data.images), model(data.images))


def test_the_term_is_the_mean_squared_difference_of_known_classes(begin_round):
    method, model, ctx = begin_round("fedproto", 1, message=MESSAGE, weight=0.5)
    data = Pictures(LABELS)
    with torch.no_grad():
        z = model.encoder(data.images)
    loss = method.loss(ctx, model, data.images, LABELS)
    expected = (((z - PROTOS[LABELS]) ** 2) * (LABELS != 2).unsqueeze(1)).mean()
    assert loss.terms["prototype"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert loss.total.item() == pytest.approx((loss.terms["task"] + 0.5 * expected).item(), rel=1e-5)
    assert gradient(loss.terms["prototype"], model) > 0


@pytest.mark.parametrize(("inference", "by_prototypes"), [("prototype", True), ("head", False)])
def test_inference(begin_round, inference, by_prototypes):
    method, model, ctx = begin_round("fedproto", 1, message=MESSAGE, inference=inference)
    data = Pictures(LABELS)
    z = features(method, model, data)
    nearest = torch.cdist(z, PROTOS)[:, :2].argmin(dim=1)  # never class 2, which nobody knows
    with torch.no_grad():
        expected = nearest if by_prototypes else model.logits(z).argmax(dim=1)
        assert torch.equal(method.scores(ctx, model, data.images).argmax(dim=1), expected)


def test_uploads_are_class_means_of_all_images_after_training(begin_round):
    data = Pictures(torch.tensor([0, 0, 2, 2, 2]))
    method, model, ctx = begin_round("fedproto", data=data)
    step(method, model, ctx, data)
    result = method.end_round(ctx, model, data)
    z = features(method, model, data)
    assert result.shared == {}
    assert result.extras["class_count"].tolist() == [2, 0, 3]
    torch.testing.assert_close(result.extras["protos"], torch.stack([z[:2].mean(0), 0 * z[0], z[2:].mean(0)]))
    assert result.remember.keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    ("rule", "class_0"), [("count", [2.5, 3.0]), ("uniform", [2.0, 2.0]), ("paper_literal", [1.25, 1.5])]
)
def test_merging(begin_round, rule, class_0):
    """Vector group `fedproto`; class 3 is nobody's."""
    method, _, _ = begin_round("fedproto", aggregation=rule)
    public = method.merge(ServerState({}), UPLOADS).public
    torch.testing.assert_close(public["protos"][:3], torch.tensor([class_0, [0.0, 2.0], [5.0, 5.0]]))
    assert public["mask"].tolist() == [True, True, True, False]


def test_degenerate_a_class_that_nobody_reports_keeps_its_prototype(begin_round):
    method, _, _ = begin_round("fedproto")
    first = method.merge(ServerState({}), UPLOADS)
    second = method.merge(first, [upload("a", 5, [[7.0, 7.0]] * 4, [5, 0, 0, 0])]).public
    torch.testing.assert_close(second["protos"][1:], first.public["protos"][1:])
    assert second["protos"][0].tolist() == [7, 7]
    assert second["mask"].tolist() == [True, True, True, False]


def test_a_site_goes_on_with_its_own_model(begin_round):
    method, model, _ = begin_round("fedproto")
    own = {name: torch.full_like(value, 3) for name, value in model.state_dict().items()}
    method.receive(model, MESSAGE, Memory(0, own))
    assert all((value == 3).all() for value in model.state_dict().values())
