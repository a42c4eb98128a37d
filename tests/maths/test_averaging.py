"""Numbers come from explicit numpy loops (spec/vectors.py)."""

import pytest
import torch
from torch import Tensor

from fedproin.maths.averaging import WeightedMean

N_SAMPLES = [30, 10, 60]
PARAMS = [[1.0, 2.0], [3.0, -2.0], [0.0, 1.0]]
BN_MEAN, BN_VAR = [0.0, 2.0, 1.0], [1.0, 4.0, 1.0]
STEPS = [7, 40, 12]

both_precisions = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-4)], ids=["float64", "float32"]
)


def site(k: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {
        "encoder.weight": torch.tensor(PARAMS[k], dtype=dtype),
        "encoder.bn.running_mean": torch.tensor([BN_MEAN[k]], dtype=dtype),
        "encoder.bn.running_var": torch.tensor([BN_VAR[k]], dtype=dtype),
        "encoder.bn.num_batches_tracked": torch.tensor(STEPS[k]),
    }


def mean_of_sites(mean: WeightedMean, dtype: torch.dtype = torch.float32, order=(0, 1, 2)) -> dict[str, Tensor]:
    for k in order:
        mean.add(site(k, dtype), N_SAMPLES[k])
    return mean.result()


@both_precisions
@pytest.mark.parametrize(("bn_var", "variance"), [("average", 1.3), ("pooled", 1.66)])
def test_weighted_mean(bn_var, variance, dtype, tolerance):
    result = mean_of_sites(WeightedMean(bn_var), dtype)
    assert result["encoder.weight"].tolist() == pytest.approx([0.6, 1.0], abs=tolerance)
    assert result["encoder.bn.running_mean"].item() == pytest.approx(0.8, abs=tolerance)
    assert result["encoder.bn.running_var"].item() == pytest.approx(variance, abs=tolerance)
    assert result["encoder.bn.num_batches_tracked"].item() == 40
    assert {name: tensor.dtype for name, tensor in result.items()} == {k: v.dtype for k, v in site(0, dtype).items()}


def test_prototypes_are_averaged_like_any_tensor():
    mean = WeightedMean()
    mean.add({"prototypes": torch.tensor([[[1.0, 0.0], [9.0, 9.0]], [[2.0, 2.0], [5.0, 5.0]]])}, 30)
    mean.add({"prototypes": torch.tensor([[[5.0, 4.0], [7.0, 7.0]], [[4.0, 4.0], [8.0, 2.0]]])}, 10)
    assert mean.result()["prototypes"].tolist() == [[[2.0, 1.0], [8.5, 8.5]], [[2.5, 2.5], [5.75, 4.25]]]


@pytest.mark.parametrize("bn_var", ["average", "pooled"])
def test_the_order_of_the_sites_changes_nothing(bn_var):
    forward, backward = mean_of_sites(WeightedMean(bn_var)), mean_of_sites(WeightedMean(bn_var), order=(2, 1, 0))
    for name, tensor in forward.items():
        torch.testing.assert_close(tensor, backward[name])


def test_sums_are_taken_in_float64():
    mean = WeightedMean()
    for value in (1e8, 1.0, -1e8):
        mean.add({"w": torch.tensor(value)}, 1)
    assert mean.result()["w"].item() == pytest.approx(1 / 3)


def test_a_single_site_and_weight_zero():
    mean = WeightedMean()
    mean.add(site(0), 30)
    mean.add(site(1), 0)
    assert mean.result()["encoder.weight"].tolist() == PARAMS[0]


def test_neither_the_sites_tensors_nor_an_earlier_result_are_changed():
    mean, first = WeightedMean(), site(0, torch.float64)
    mean.add(first, 1)
    before = mean.result()
    mean.add(site(1, torch.float64), 1)
    assert first["encoder.weight"].tolist() == PARAMS[0]
    assert before["encoder.bn.num_batches_tracked"].item() == STEPS[0]


def test_pooled_variance_of_equal_sites_is_never_negative():
    mean = WeightedMean("pooled")
    for weight in (3, 7, 11):
        mean.add({"running_mean": torch.tensor([1e5 / 3]), "running_var": torch.tensor([0.0])}, weight)
    assert 0 <= mean.result()["running_var"].item() < 1e-4


def test_pooling_needs_the_mean_beside_the_variance():
    with pytest.raises(ValueError, match=r"bn\.running_mean"):
        WeightedMean("pooled").add({"bn.running_var": torch.ones(2)}, 1)


@pytest.mark.parametrize("weights", [[], [0], [0, 0]])
def test_a_total_weight_of_zero_is_refused(weights):
    mean = WeightedMean()
    for weight in weights:
        mean.add(site(0), weight)
    with pytest.raises(ValueError, match="total weight"):
        mean.result()


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf")])
def test_a_weight_that_is_no_weight_is_refused(weight):
    with pytest.raises(ValueError, match="weight"):
        WeightedMean().add(site(0), weight)


@pytest.mark.parametrize(
    "second", [{"a": torch.ones(2)}, {"a": torch.ones(2), "c": torch.ones(2)}, {"a": torch.ones(2), "b": torch.ones(1)}]
)
def test_sites_that_disagree_in_names_or_shapes_are_refused(second):
    mean = WeightedMean()
    mean.add({"a": torch.ones(2), "b": torch.ones(2)}, 1)
    with pytest.raises(ValueError, match=r"'[bc]'"):
        mean.add(second, 1)


def test_an_unknown_rule_for_the_variance_is_refused():
    with pytest.raises(ValueError, match="bn_var"):
        WeightedMean("median")
