import pytest
import torch
from rounds import LABELS, Pictures, features, gradient, step

from fedproin.errors import SettingsError
from fedproin.maths.clusters import finch_means
from fedproin.methods.base import ServerState, Update

CLUSTERS = torch.rand(4, 32, generator=torch.Generator().manual_seed(2))
MESSAGE = {"clusters": CLUSTERS, "cluster_class": torch.tensor([0, 0, 1, 1])}
LINE = [[1.0, 0.0], [1.0, 0.02], [1.0, 1.0], [1.0, 1.02], [0.0, 1.0], [0.02, 1.0]]  # three directions


def upload(site, samples, points, classes, w=0.0):
    extras = {
        "clusters": torch.tensor(points).reshape(-1, 2),
        "cluster_class": torch.tensor(classes, dtype=torch.int64),
    }
    return Update(site, samples, {"w": torch.tensor([w])}, extras)


def by_class(public):
    return {int(c): sorted(public["clusters"][public["cluster_class"] == c].tolist()) for c in public["cluster_class"]}


def test_degenerate_without_clusters_it_is_cross_entropy_alone(begin_round):
    for message in ({}, {"clusters": CLUSTERS[:0], "cluster_class": torch.zeros(0, dtype=torch.int64)}):
        method, model, ctx = begin_round("fedplvm", message=message)
        assert method.loss(ctx, model, Pictures(LABELS).images, LABELS).terms.keys() == {"task"}


def test_the_terms_have_gradients_and_a_class_without_clusters_costs_nothing(begin_round):
    method, model, ctx = begin_round("fedplvm", 1, message=MESSAGE)
    data = Pictures(LABELS)
    loss = method.loss(ctx, model, data.images, LABELS)
    assert loss.terms.keys() == {"task", "contrast", "correction"}
    for name in ("contrast", "correction"):
        assert loss.terms[name].item() > 0
        assert gradient(loss.terms[name], model) > 0
    expected = loss.terms["task"] + 100 * (loss.terms["contrast"] + loss.terms["correction"])
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-5)
    only_2 = method.loss(ctx, model, data.images[:2], torch.tensor([2, 2]))
    assert only_2.terms["contrast"].item() == only_2.terms["correction"].item() == 0


def test_uploads_are_clusters_of_each_class(begin_round):
    labels = torch.tensor([2, 0, 0, 0, 0, 2, 0, 0])
    data = Pictures(labels)
    method, model, ctx = begin_round("fedplvm", data=data)
    step(method, model, ctx, data)
    extras = method.end_round(ctx, model, data).extras
    z = features(method, model, data)
    expected = torch.cat([finch_means(z[labels == c]) for c in (0, 2)])
    torch.testing.assert_close(extras["clusters"], expected)
    assert extras["cluster_class"].tolist() == [0] * (len(expected) - 1) + [2]  # two images are one cluster
    torch.testing.assert_close(extras["clusters"][-1], z[labels == 2].mean(dim=0))


def test_the_server_clusters_clusters(begin_round):
    method, _, _ = begin_round("fedplvm")
    uploads = [upload("a", 30, LINE[::2], [1, 1, 1], 1.0), upload("b", 10, LINE[1::2], [1, 1, 1], 3.0)]
    public = method.merge(ServerState({"w": torch.zeros(1)}), uploads).public
    pairs = [torch.tensor(LINE[n : n + 2]).mean(dim=0).tolist() for n in (0, 2, 4)]
    torch.testing.assert_close(torch.tensor(by_class(public)[1]), torch.tensor(sorted(pairs)))
    assert public["w"].item() == 1.5
    equal, _, _ = begin_round("fedplvm", site_weights="equal")
    assert equal.merge(ServerState({}), uploads).public["w"].item() == 2.0


def test_degenerate_a_class_that_no_participant_has_keeps_its_clusters(begin_round):
    method, _, _ = begin_round("fedplvm")
    first = method.merge(ServerState({}), [upload("a", 9, [[1.0, 0.0], [0.0, 1.0]], [0, 2])])
    later = by_class(method.merge(first, [upload("b", 9, [[5.0, 5.0]], [2])]).public)
    assert later == {0: [[1.0, 0.0]], 2: [[5.0, 5.0]]}
    nothing = method.merge(first, [upload("b", 9, [], [])]).public
    assert by_class(nothing) == by_class(first.public)


def test_without_finch_the_job_says_what_to_install(begin_round, monkeypatch):
    from fedproin.methods import fedplvm

    monkeypatch.setattr(fedplvm, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'fedproin\[clustering\]'"):
        begin_round("fedplvm")
