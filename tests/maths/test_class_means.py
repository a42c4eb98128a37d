"""Numbers are those of spec/vectors.json (group fedproto), made with numpy alone."""

import pytest
import torch

from fedproin.maths.class_means import (
    class_means,
    class_sums,
    distances_to_means,
    merge_class_means,
    regression_to_means,
)

MEANS = torch.tensor(
    [[[1.0, 0.0], [0.0, 2.0], [9.0, 9.0], [9.0, 9.0]], [[3.0, 4.0], [9.0, 9.0], [5.0, 5.0], [9.0, 9.0]]]
)
COUNTS = torch.tensor([[10, 30, 0, 0], [30, 0, 20, 0]])  # class 3 is nobody's, and a 9 must never be seen
PREVIOUS = torch.full((4, 2), 7.0)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("count", [[2.5, 3.0], [0.0, 2.0], [5.0, 5.0]]),
        ("uniform", [[2.0, 2.0], [0.0, 2.0], [5.0, 5.0]]),
        ("paper_literal", [[1.25, 1.5], [0.0, 2.0], [5.0, 5.0]]),
    ],
)
def test_merge_rules_and_a_class_that_nobody_has_keeps_its_mean(rule, expected):
    merged = merge_class_means(MEANS, COUNTS, PREVIOUS, rule)
    torch.testing.assert_close(merged, torch.tensor([*expected, [7.0, 7.0]]))
    torch.testing.assert_close(merge_class_means(MEANS.flip(0), COUNTS.flip(0), PREVIOUS, rule), merged)


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="rule must be one of"):
        merge_class_means(MEANS, COUNTS, PREVIOUS, "median")


def test_regression_counts_a_sample_without_mean_in_the_denominator_only():
    z = torch.tensor([[1.0, 1.0], [0.0, 0.0], [2.0, 3.0]], requires_grad=True)
    means, mask = merge_class_means(MEANS, COUNTS, PREVIOUS, "uniform"), torch.tensor([True, True, True, False])
    loss = regression_to_means(z, torch.tensor([0, 1, 3]), means, mask)
    loss.backward()
    assert loss.item() == pytest.approx(1.0, abs=1e-6)
    assert z.grad[2].tolist() == [0, 0]
    assert z.grad[:2].abs().sum() > 0


def test_a_mean_that_there_is_not_is_infinitely_far():
    query = torch.tensor([[2.2, 1.9], [0.1, 1.5], [4.0, 6.0], [7.0, 7.0]])
    means, mask = merge_class_means(MEANS, COUNTS, PREVIOUS, "uniform"), torch.tensor([True, True, True, False])
    dist_BC = distances_to_means(query, means, mask)
    assert torch.equal(dist_BC[:, 3], torch.full((4,), torch.inf))
    assert torch.allclose(dist_BC[:, :3], torch.cdist(query, means)[:, :3])
    assert dist_BC.argmin(dim=1).tolist() == [0, 1, 2, 2]
    assert distances_to_means(query[3:], means, ~mask | mask).argmin(dim=1).tolist() == [3]


def test_sums_and_means_of_classes():
    z, labels = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 5.0]]), torch.tensor([2, 2, 0])
    sums, counts = class_sums(z, labels, 4)
    assert sums.dtype == torch.float64
    assert sums.tolist() == [[5, 5], [0, 0], [4, 6], [0, 0]]
    assert counts.tolist() == [1, 0, 2, 0]
    means, _ = class_means(z, labels, 4)
    assert means.tolist() == [[5, 5], [0, 0], [2, 3], [0, 0]]
    assert means.dtype == z.dtype
