"""Numbers come from explicit numpy loops with finite differences (spec/vectors.py)."""

import pytest
import torch
from torch import Tensor

from fedproin.maths.drift import feature_divergence, prototype_contrast, proximal_distance

LOCAL = [[[2.0, 0.0]], [[0.0, 1.5]], [[0.0, 0.0]]]  # the third equals the global one: its hinge is off
GLOBAL = [[[0.0, 0.0]], [[0.0, 0.0]], [[0.0, 0.0]]]
PREVIOUS = [[[4.0, 0.0]], [[0.0, 2.0]], [[3.0, 4.0]]]

both_precisions = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-4)], ids=["float64", "float32"]
)
both_reductions = pytest.mark.parametrize("reduction", ["per_prototype", "tensor"])


def leaf(values: object, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def assert_close(actual: Tensor, expected: object, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), atol=tolerance, rtol=tolerance)


@both_precisions
@pytest.mark.parametrize(
    ("reduction", "expected", "gradient"),
    [("mean", 7.25, [[0.0, 1.0], [1.5, 2.0]]), ("sum", 14.5, [[0.0, 2.0], [3.0, 4.0]])],
)
def test_feature_divergence(reduction, expected, gradient, dtype, tolerance):
    z_BD, z_global_BD = leaf([[1, 2], [3, 4]], dtype), leaf([[1, 0], [0, 0]], dtype)
    loss = feature_divergence(z_BD, z_global_BD, reduction)
    loss.backward()
    assert_close(loss, expected, tolerance)
    assert_close(z_BD.grad, gradient, tolerance)
    assert z_global_BD.grad is None


def test_the_reductions_of_the_divergence_differ_by_the_feature_size():
    z_BD, z_global_BD = torch.randn(2, 3, 512, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        feature_divergence(z_BD, z_global_BD, "sum"), 512 * feature_divergence(z_BD, z_global_BD)
    )


@both_precisions
@pytest.mark.parametrize(
    ("reduction", "expected"), [("per_prototype", 0.49999999916666665), ("tensor", 0.1322449815945842)]
)
def test_prototype_contrast(reduction, expected, dtype, tolerance):
    local_CMD, global_CMD, previous_CMD = (leaf(values, dtype) for values in (LOCAL, GLOBAL, PREVIOUS))
    loss = prototype_contrast(local_CMD, global_CMD, previous_CMD, reduction=reduction)
    loss.backward()
    assert_close(loss, expected, tolerance)
    assert global_CMD.grad is None
    assert previous_CMD.grad is None


@both_precisions
def test_gradient_of_the_prototype_contrast(dtype, tolerance):
    local_CMD = leaf(LOCAL, dtype)
    prototype_contrast(local_CMD, leaf(GLOBAL, dtype), leaf(PREVIOUS, dtype)).backward()
    assert_close(local_CMD.grad, [[[0.16666666625, 0.0]], [[0.0, 0.3333333316666667]], [[0.0, 0.0]]], tolerance)


@both_reductions
def test_a_step_moves_prototypes_towards_the_global_and_away_from_the_previous_ones(reduction):
    local_CMD, global_CMD, previous_CMD = leaf(LOCAL), leaf(GLOBAL), leaf(PREVIOUS)
    prototype_contrast(local_CMD, global_CMD, previous_CMD, reduction=reduction).backward()
    stepped_CMD = local_CMD.detach() - 0.01 * local_CMD.grad
    assert (stepped_CMD - global_CMD).norm() < (local_CMD - global_CMD).norm()
    assert (stepped_CMD - previous_CMD).norm() > (local_CMD - previous_CMD).norm()


@both_reductions
def test_a_round_starts_with_zero_contrast_even_when_the_server_changed_nothing(reduction):
    local_CMD = leaf(GLOBAL)
    for previous in (PREVIOUS, PREVIOUS):  # a second round with the same global prototypes
        loss = prototype_contrast(local_CMD, leaf(GLOBAL), leaf(previous), reduction=reduction)
        loss.backward()
        assert loss.item() == 0
        assert not local_CMD.grad.any()


@both_reductions
@pytest.mark.parametrize(
    ("local", "global_", "previous"),
    [
        pytest.param(GLOBAL, GLOBAL, GLOBAL, id="all equal"),
        pytest.param(LOCAL, PREVIOUS, PREVIOUS, id="the only user last time: global is previous"),
    ],
)
def test_without_a_direction_the_contrast_is_the_margin_and_has_no_gradient(local, global_, previous, reduction):
    local_CMD = leaf(local)
    loss = prototype_contrast(local_CMD, leaf(global_), leaf(previous), 0.3, reduction)
    loss.backward()
    assert loss.item() == pytest.approx(0.3)
    assert not local_CMD.grad.any()


@both_reductions
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e-30, 1e-8, 1.0, 1e6])
@pytest.mark.parametrize("margin", [0.5, 1.5])
def test_the_gradient_is_finite_everywhere(offset, margin, dtype, reduction):
    points = [torch.zeros(2, 1, 3, dtype=dtype), torch.full((2, 1, 3), offset, dtype=dtype)]
    for local_CMD in [*points, -points[1]]:
        for global_CMD in points:
            for previous_CMD in points:
                moving_CMD = local_CMD.clone().requires_grad_()
                prototype_contrast(moving_CMD, global_CMD, previous_CMD, margin, reduction).backward()
                assert moving_CMD.grad.isfinite().all()


@pytest.mark.parametrize(("distance", "active"), [(0.99 / 3, False), (1.01 / 3, True)])
def test_the_hinge_starts_at_a_third_of_the_previous_distance(distance, active):
    local_CMD, global_CMD = leaf([[[0.0]]]), torch.tensor([[[distance]]], dtype=torch.float64)
    assert (prototype_contrast(local_CMD, global_CMD, torch.tensor([[[-1.0]]])).item() > 0) is active


@pytest.mark.parametrize("loss", [feature_divergence, prototype_contrast])
def test_an_unknown_reduction_is_refused(loss):
    tensors = [torch.zeros(1, 1, 1)] * (2 if loss is feature_divergence else 3)
    with pytest.raises(ValueError, match="reduction"):
        loss(*tensors, reduction="median")


# FedProx


@both_precisions
def test_proximal_distance(dtype, tolerance):
    """Vector group `fedprox`: w = (1, 2), b = -1, global (0, 0) and 1, mu = 0.1."""
    w, b = leaf([1.0, 2.0], dtype), leaf([-1.0], dtype)
    term = 0.1 * proximal_distance([w, b], [torch.zeros(2, dtype=dtype), torch.ones(1, dtype=dtype)])
    term.backward()
    assert_close(term, 0.45, tolerance)
    assert_close(w.grad, [0.1, 0.2], tolerance)
    assert_close(b.grad, [-0.2], tolerance)


def test_proximal_distance_starts_at_zero_with_zero_gradient():
    w = leaf([1.0, 2.0])
    term = proximal_distance([w], [w.detach().clone()])
    term.backward()
    assert (term.item(), w.grad.tolist()) == (0.0, [0.0, 0.0])
