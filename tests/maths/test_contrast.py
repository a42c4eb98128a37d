"""Numbers are those of spec/vectors.json (groups moon, fedproc, fedtgp and fedplvm), made with numpy alone."""

import pytest
import torch
from torch import Tensor

from fedproin.maths.class_means import class_means
from fedproin.maths.contrast import (
    adaptive_margin,
    centre_contrast,
    cluster_contrast,
    cluster_correction,
    margin_contrast,
    model_contrast,
)

both_precisions = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-4)], ids=["float64", "float32"]
)


def leaf(values: object, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def assert_close(actual: Tensor, expected: object, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), atol=tolerance, rtol=tolerance)


# MOON

Q, Q_GLOBAL, Q_PREVIOUS = [[1.0, 0.0], [0.0, 2.0]], [[1.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 1.0]]


@both_precisions
def test_model_contrast(dtype, tolerance):
    q, q_global, q_previous = leaf(Q, dtype), leaf(Q_GLOBAL, dtype), leaf(Q_PREVIOUS, dtype)
    term = model_contrast(q, q_global, [q_previous], 0.5)
    assert_close(term, 0.33008465006013193, tolerance)
    assert_close(5 * term, 1.6504232503006597, 5 * tolerance)
    singles = [model_contrast(q[[n]], q_global[[n]], [q_previous[[n]]], 0.5) for n in range(2)]
    assert_close(torch.stack(singles), [0.21762172158174375, 0.4425475785385201], tolerance)
    term.backward()
    assert q.grad.abs().sum() > 0
    assert q_global.grad is q_previous.grad is None


def test_degenerate_previous_equals_global_is_log_2_without_gradient():
    q, same = leaf(Q), torch.tensor(Q_GLOBAL, dtype=torch.float64)
    term = model_contrast(q, same, [same])
    term.backward()
    assert_close(term, 0.6931471805599453)
    assert q.grad.abs().max() < 1e-15


def test_degenerate_no_previous_model_is_zero():
    q = leaf(Q)
    term = model_contrast(q, torch.tensor(Q_GLOBAL, dtype=torch.float64), [])
    term.backward()
    assert term.item() == 0
    assert not q.grad.any()


def test_degenerate_zero_vectors_have_a_finite_gradient():
    q, other = leaf([[0.0, 0.0], [1.0, 0.0]]), torch.zeros(2, 2, dtype=torch.float64)
    model_contrast(q, other, [other + 1]).backward()
    assert q.grad.isfinite().all()


# FedProc

CENTRES, SEEN = [[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]], torch.tensor([True, True, False])


@both_precisions
def test_centre_contrast(dtype, tolerance):
    q = torch.nn.functional.normalize(torch.tensor([[2.0, 0.0], [3.0, 4.0]], dtype=dtype), dim=1)
    centres, labels = torch.tensor(CENTRES, dtype=dtype), torch.tensor([0, 1])
    masked = centre_contrast(q, labels, centres, SEEN)
    assert_close(masked, [0.3132616875182228, 0.5981388693815919], tolerance)
    assert_close(0.8 * masked.mean() + 0.2 * 0.7, 0.5045602227599258, tolerance)  # round 10 of 50, cross-entropy 0.7
    kept = centre_contrast(q, labels, centres, torch.ones(3, dtype=torch.bool))  # the published code's extra negative
    assert_close(kept, [0.5514447139320509, 0.8189247158518507], tolerance)


def test_degenerate_sample_of_a_class_without_centre_costs_nothing():
    q = leaf([[0.6, 0.8], [1.0, 0.0]])
    loss = centre_contrast(q, torch.tensor([2, 0]), torch.tensor(CENTRES, dtype=torch.float64), SEEN)
    loss.sum().backward()
    assert loss[0].item() == 0
    assert q.grad[0].tolist() == [0, 0]
    assert q.grad[1].abs().sum() > 0


# FedTGP

UPLOADED, CLASSES = [[0.0, 0.0], [1.0, 4.0], [2.0, 0.0], [7.0, 0.0]], [0, 1, 0, 2]
SERVER = [[1.0, 1.0], [1.0, 3.0], [6.0, 0.0]]


@pytest.mark.parametrize(
    ("rule", "limit", "expected"),
    [("max_of_min", 100.0, 6.0), ("max_pair", 100.0, 7.211102550927978), ("max_of_min", 2.0, 2.0)],
)
def test_adaptive_margin(rule, limit, expected):
    centres, counts = class_means(torch.tensor(UPLOADED, dtype=torch.float64), torch.tensor(CLASSES), 4)
    assert_close(centres[:3], [[1.0, 0.0], [1.0, 4.0], [7.0, 0.0]])
    assert adaptive_margin(centres[counts > 0], limit, rule) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("classes", [0, 1])
@pytest.mark.parametrize("rule", ["max_of_min", "max_pair"])
def test_degenerate_margin_of_one_class_is_zero(classes, rule):
    assert adaptive_margin(torch.ones(classes, 3), 100.0, rule) == 0


@both_precisions
@pytest.mark.parametrize(
    ("margin", "expected"),
    [(0.0, 0.1330552552689831), (6.0, 3.642761355205799), (7.211102550927978, 4.807541356491284)],
)
def test_margin_contrast(margin, expected, dtype, tolerance):
    uploaded, server = torch.tensor(UPLOADED, dtype=dtype), leaf(SERVER, dtype)
    loss = margin_contrast(uploaded, torch.tensor(CLASSES), server, margin)
    assert_close(loss, expected, 4 * tolerance)
    loss.backward()
    assert server.grad.abs().sum() > 0
    singles = [margin_contrast(uploaded[[n]], torch.tensor([CLASSES[n]]), server, 6.0) for n in range(4)]
    expected_each = [4.322203795877994, 4.0502983648686754, 4.621381064978269, 1.577162195098258]
    assert_close(torch.stack(singles), expected_each, 4 * tolerance)


def test_degenerate_upload_on_the_servers_prototype_has_a_finite_gradient():
    server = leaf(SERVER)
    margin_contrast(server.detach()[[0]], torch.tensor([0]), server, 1.0).backward()
    assert server.grad.isfinite().all()


# FedPLVM

FEATURES, LABELS = [[1.0, 0.0], [1.0, 2.0]], torch.tensor([0, 1])
CLUSTERS, CLUSTER_CLASS = [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], torch.tensor([0, 0, 1])


@both_precisions
@pytest.mark.parametrize(
    ("alpha", "tau", "each"),
    [
        (0.25, 0.07, [4.786311884296825e-07, 0.8495004396540575]),
        (0.5, 1.0, [0.18110553882070438, 1.0248648497389412]),
    ],
)
def test_cluster_contrast(alpha, tau, each, dtype, tolerance):
    z, clusters = torch.tensor(FEATURES, dtype=dtype), torch.tensor(CLUSTERS, dtype=dtype)
    singles = [cluster_contrast(z[[n]], LABELS[[n]], clusters, CLUSTER_CLASS, alpha, tau) for n in range(2)]
    assert_close(torch.stack(singles), each, tolerance)
    assert_close(cluster_contrast(z, LABELS, clusters, CLUSTER_CLASS, alpha, tau), sum(each) / 2, tolerance)


@both_precisions
def test_cluster_correction(dtype, tolerance):
    centres, counts = class_means(torch.tensor(CLUSTERS, dtype=dtype), CLUSTER_CLASS, 2)
    term = cluster_correction(torch.tensor(FEATURES, dtype=dtype), LABELS, centres, counts > 0)
    assert_close(term, 0.022291236000336497, tolerance)


def test_degenerate_samples_whose_class_has_no_clusters_do_not_count():
    z, clusters = leaf([[1.0, 2.0], [1.0, 0.0]]), torch.tensor(CLUSTERS, dtype=torch.float64)
    one = cluster_contrast(z[[0]], LABELS[[1]], clusters, CLUSTER_CLASS, 0.5, 1.0)
    both = cluster_contrast(z, torch.tensor([1, 2]), clusters, CLUSTER_CLASS, 0.5, 1.0)
    assert_close(both, one.item())
    none = cluster_contrast(z, torch.tensor([2, 2]), clusters, CLUSTER_CLASS)
    none += cluster_correction(z, torch.tensor([2, 2]), torch.ones(3, 2).double(), torch.tensor([True, True, False]))
    none.backward()
    assert none.item() == 0
    assert not z.grad.any()


def test_degenerate_cosines_of_zero_and_below_have_a_finite_gradient():
    z = leaf([[0.0, 0.0], [-1.0, -1.0], [1.0, 0.0], [1e-7, 1.0]])
    loss = cluster_contrast(z, torch.tensor([0, 0, 1, 0]), torch.tensor(CLUSTERS, dtype=torch.float64), CLUSTER_CLASS)
    loss.backward()
    assert loss.isfinite()
    assert z.grad.isfinite().all()
