"""Numbers come from explicit numpy loops with finite differences (spec/vectors.py) unless a line says "by hand"."""

import pytest
import torch
from torch import Tensor

from fedproin.maths.prototypes import (
    class_distances,
    gmcl_loss,
    influence_counts,
    mce_loss,
    mcl_loss,
    merge_prototypes,
    merge_prototypes_literal,
    nearest_own_and_rival,
    prototype_distances,
)

FEATURES = [[1, 0], [3, 2], [4, 3], [7, 1]]  # sample 1 is misclassified, sample 2 sits exactly on a prototype
LABELS = [0, 0, 1, 2]
PROTOTYPES = [[[0, 0], [4, 0]], [[0, 3], [4, 3]], [[8, 0], [8, 6]]]

SITES = [[[[1, 0], [9, 9]], [[2, 2], [5, 5]]], [[[5, 4], [7, 7]], [[4, 4], [8, 2]]]]
INFLUENCE = [[[3, 0], [1, 0]], [[1, 0], [0, 2]]]
PREVIOUS = [[[0, 1], [6, 6]], [[1, 1], [3, 3]]]

both_precisions = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-4)], ids=["float64", "float32"]
)
LOSSES = {"mce": mce_loss, "mcl": mcl_loss, "gmcl": gmcl_loss}


def example(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    z_BD = torch.tensor(FEATURES, dtype=dtype, requires_grad=True)
    proto_CMD = torch.tensor(PROTOTYPES, dtype=dtype, requires_grad=True)
    return z_BD, proto_CMD, torch.tensor(LABELS)


def assert_close(actual: Tensor, expected: object, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), atol=tolerance, rtol=tolerance)


@both_precisions
def test_nearest_own_and_rival_distances(dtype, tolerance):
    z_BD, proto_CMD, y_B = example(dtype)
    own_B, rival_B = nearest_own_and_rival(prototype_distances(z_BD, proto_CMD), y_B)
    assert_close(own_B, [1.0, 2.23606797749979, 0.0, 1.4142135623730951], tolerance)
    assert_close(rival_B, [3.1622776601683795, 1.4142135623730951, 3.0, 3.1622776601683795], tolerance)
    assert_close((own_B**2).mean(), 2.0, tolerance)  # the regulariser PL of CPL


@both_precisions
@pytest.mark.parametrize(
    ("name", "power", "options", "expected"),
    [
        ("mce", 1, {}, 0.24838418339062954),
        ("mce", 1, {"slope": 0.5}, 0.33286057065188474),
        ("mce", 2, {}, 0.23828906652621806),
        ("mcl", 1, {}, 0.33046360378167366),
        ("mcl", 2, {}, 0.875),
        ("gmcl", 1, {}, 0.21079555382607718),
        ("gmcl", 2, {}, 0.23214285714285715),
    ],
)
def test_task_losses(name, power, options, expected, dtype, tolerance):
    z_BD, proto_CMD, y_B = example(dtype)
    assert_close(LOSSES[name](prototype_distances(z_BD, proto_CMD) ** power, y_B, **options), expected, tolerance)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (mce_loss, [0.10318948298460044, 0.6946298391195519, 0.04742587317756679, 0.14829153828079908]),
        (mcl_loss, [0.0, 1.3218544151266947, 0.0, 0.0]),
    ],
)
def test_task_loss_of_single_samples(loss, expected):
    z_BD, proto_CMD, y_B = example()
    dist_BCM = prototype_distances(z_BD, proto_CMD)
    assert_close(torch.stack([loss(dist_BCM[b : b + 1], y_B[b : b + 1]) for b in range(4)]), expected)


GRADIENTS = {
    ("mce", 1): (
        [
            [0.015819312275909835, 0.021948123361748968],
            [0.013782085329715102, 0.08492903653783773],
            [0.0, -0.011294164932728036],
            [-0.05228205108455744, 0.012342118059072158],
        ],
        [
            [[-0.023135353396492826, 0.0], [0.05367060017182151, -0.026152152616315733]],
            [[0.00731604112058299, -0.021948123361748968], [-0.03749773573242265, -0.03749773573242265]],
            [[0.02232710131544348, -0.02232710131544348], [0.0, 0.0]],
        ],
    ),
    ("mce", 2): (
        [
            [0.0, 0.00018506902464727337],
            [0.0, 0.067764989596368],
            [0.0, -0.00018506902464727337],
            [-0.0006704753415129486, 0.0],
        ],
        [
            [[-6.168967488242445e-05, 0.0], [0.02309118637159071, -0.044823971870886485]],
            [[6.168967488242445e-05, -0.00018506902464727337], [-0.022588329865456, -0.022588329865456]],
            [[0.00016761883537823715, -0.00016761883537823715], [0.0, 0.0]],
        ],
    ),
    ("mcl", 1): (
        [[0.0, 0.0], [0.06497329642164738, 0.4003834930466158], [0.0, 0.0], [0.0, 0.0]],
        [
            [[0.0, 0.0], [0.11180339887498948, -0.22360679774997896]],
            [[0.0, 0.0], [-0.17677669529663687, -0.17677669529663687]],
            [[0.0, 0.0], [0.0, 0.0]],
        ],
    ),
    ("mcl", 2): (
        [[0.0, 0.0], [0.0, 1.5], [0.0, 0.0], [0.0, 0.0]],
        [[[0.0, 0.0], [0.5, -1.0]], [[0.0, 0.0], [-0.5, -0.5]], [[0.0, 0.0], [0.0, 0.0]]],
    ),
}


@both_precisions
@pytest.mark.parametrize(("name", "power"), list(GRADIENTS))
def test_task_loss_gradients(name, power, dtype, tolerance):
    z_BD, proto_CMD, y_B = example(dtype)
    LOSSES[name](prototype_distances(z_BD, proto_CMD) ** power, y_B).backward()
    expected_z, expected_proto = GRADIENTS[name, power]
    assert_close(z_BD.grad, expected_z, tolerance)
    assert_close(proto_CMD.grad, expected_proto, tolerance)


@pytest.mark.parametrize("loss", list(LOSSES.values()))
@pytest.mark.parametrize("power", [1, 2])
def test_feature_on_its_own_and_on_a_rival_prototype_gives_a_zero_gradient(loss, power):
    z_BD = torch.ones(1, 3, requires_grad=True)
    proto_CMD = torch.ones(2, 2, 3, requires_grad=True)
    loss(prototype_distances(z_BD, proto_CMD) ** power, torch.tensor([0])).backward()
    assert_close(z_BD.grad, [[0.0] * 3])
    assert not proto_CMD.grad.any()


def test_gradient_reaches_one_own_and_one_rival_prototype_even_in_a_tie():
    z_BD = torch.zeros(1, 1)
    proto_CMD = torch.tensor([[[1.0], [-1.0]], [[2.0], [-2.0]]], requires_grad=True)
    mce_loss(prototype_distances(z_BD, proto_CMD), torch.tensor([0])).backward()
    assert (proto_CMD.grad != 0).flatten().tolist() == [True, False, True, False]


def test_distances_are_exact_where_the_matmul_form_cancels():
    z_BD = torch.full((1, 512), 1000.0)
    proto_CMD = z_BD.expand(30, 1, 512).clone()
    proto_CMD[:, 0, 0] += 0.5
    assert_close(prototype_distances(z_BD, proto_CMD), [[[0.5]] * 30], 0)


def test_distances_of_an_empty_batch():
    assert prototype_distances(torch.zeros(0, 4), torch.zeros(3, 2, 4)).shape == (0, 3, 2)


def test_a_class_is_as_far_as_its_nearest_prototype():
    z_BD, proto_CMD, _ = example()
    dist_BCM = prototype_distances(z_BD, proto_CMD)
    assert torch.equal(class_distances(dist_BCM), dist_BCM.amin(dim=2))
    assert class_distances(dist_BCM).argmin(dim=1).tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("scope", "expected"), [("true_class", [[1, 1], [0, 1], [1, 0]]), ("all", [[1, 0], [0, 1], [1, 0]])]
)
def test_influence_counts(scope, expected):
    z_BD, proto_CMD, y_B = example()
    counts_CM = influence_counts(prototype_distances(z_BD, proto_CMD), y_B, scope)
    assert counts_CM.tolist() == expected
    assert counts_CM.dtype == torch.int64


def test_a_tie_counts_for_the_lowest_prototype():
    dist_BCM = prototype_distances(torch.tensor([[2.0, 0.0]]), torch.tensor(PROTOTYPES, dtype=torch.float32))
    assert influence_counts(dist_BCM, torch.tensor([0])).tolist() == [[1, 0], [0, 0], [0, 0]]


def test_influence_rows_of_the_true_class_add_up_to_its_presentations():
    y_B = torch.randint(5, (64,), generator=torch.Generator().manual_seed(0))
    dist_BCM = torch.rand(64, 5, 3, generator=torch.Generator().manual_seed(1))
    assert influence_counts(dist_BCM, y_B).sum(dim=1).tolist() == torch.bincount(y_B, minlength=5).tolist()


def test_an_unknown_scope_is_refused():
    with pytest.raises(ValueError, match="scope"):
        influence_counts(torch.zeros(1, 2, 1), torch.tensor([0]), "own")


def sites(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    return torch.tensor(SITES, dtype=dtype), torch.tensor(INFLUENCE), torch.tensor(PREVIOUS, dtype=dtype)


@both_precisions
def test_merge_keeps_a_prototype_that_nobody_used(dtype, tolerance):
    merged_CMD = merge_prototypes(*sites(dtype))
    assert_close(merged_CMD, [[[2.0, 1.0], [6.0, 6.0]], [[2.0, 2.0], [8.0, 2.0]]], tolerance)
    assert merged_CMD.dtype == dtype


@both_precisions
def test_literal_merge_sends_an_unused_prototype_to_the_origin(dtype, tolerance):
    proto_KCMD, influence_KCM, _ = sites(dtype)
    expected = [[[1.999999995, 0.9999999975], [0.0, 0.0]], [[1.99999998, 1.99999998], [7.99999996, 1.99999999]]]
    assert_close(merge_prototypes_literal(proto_KCMD, influence_KCM), expected, tolerance)


@pytest.mark.parametrize(
    ("influence", "expected"),
    [
        pytest.param([1, 1], 2.0, id="equal use is the plain mean"),
        pytest.param([3, 1], 1.5, id="used three times as often"),
        pytest.param([0, 2], 3.0, id="used by one site only"),
        pytest.param([0, 0], 9.0, id="unused keeps the previous value"),  # by hand: p = (1, 3), previous 9
    ],
)
def test_merge_of_one_prototype(influence, expected):
    proto_KCMD = torch.tensor([1.0, 3.0]).reshape(2, 1, 1, 1)
    merged_CMD = merge_prototypes(proto_KCMD, torch.tensor(influence).reshape(2, 1, 1), torch.full((1, 1, 1), 9.0))
    assert merged_CMD.item() == expected


def test_merge_of_one_site_returns_its_used_prototypes():
    proto_KCMD, influence_KCM, previous_CMD = sites(torch.float32)
    merged_CMD = merge_prototypes(proto_KCMD[:1], influence_KCM[:1], previous_CMD)
    assert merged_CMD.tolist() == [[[1, 0], [6, 6]], [[2, 2], [3, 3]]]


def random_sites() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    proto_KCMD = torch.randn(4, 5, 2, 3, generator=generator)
    influence_KCM = torch.randint(4, (4, 5, 2), generator=generator)
    return proto_KCMD, influence_KCM, torch.randn(5, 2, 3, generator=generator)


def test_merge_does_not_depend_on_the_order_of_the_sites():
    proto_KCMD, influence_KCM, previous_CMD = random_sites()
    order_K = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(
        merge_prototypes(proto_KCMD[order_K], influence_KCM[order_K], previous_CMD),
        merge_prototypes(proto_KCMD, influence_KCM, previous_CMD),
    )


def test_merge_does_not_depend_on_the_scale_of_the_influences():
    proto_KCMD, influence_KCM, previous_CMD = random_sites()
    torch.testing.assert_close(
        merge_prototypes(proto_KCMD, influence_KCM * 1_000_003, previous_CMD),
        merge_prototypes(proto_KCMD, influence_KCM, previous_CMD),
    )


def test_merge_with_one_prototype_and_equal_influence_is_the_plain_mean():
    proto_KCMD, _, previous_CMD = random_sites()
    merged_CMD = merge_prototypes(proto_KCMD[:, :, :1], torch.full((4, 5, 1), 7), previous_CMD[:, :1])
    torch.testing.assert_close(merged_CMD, proto_KCMD[:, :, :1].mean(dim=0))
