"""Values of the first table come from spec/vectors.py; scikit-learn is the reference for everything else."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics
from torch import Tensor

from fedproin.maths.scores import per_class_recall, scores

TRUE = [0, 0, 0, 0, 1, 1, 2, 2]


def confusion(true: list[int], predicted: list[int], classes: int) -> Tensor:
    return torch.from_numpy(metrics.confusion_matrix(true, predicted, labels=list(range(classes))).astype(np.int64))


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [
        pytest.param(
            [0, 0, 0, 1, 1, 2, 2, 0],
            {"accuracy": 0.625, "f1_weighted": 0.625, "f1_macro": 0.5833333333333333, "mcc": 0.4},
            id="main",
        ),
        pytest.param(
            [0] * 8,
            {"accuracy": 0.5, "f1_weighted": 0.3333333333333333, "f1_macro": 0.2222222222222222, "mcc": 0.0},
            id="constant prediction",
        ),
        pytest.param(
            [0, 0, 0, 3, 1, 1, 2, 2],
            {
                "accuracy": 0.875,
                "f1_weighted": 0.9285714285714286,
                "f1_macro": 0.7142857142857143,
                "mcc": 0.8392543274162825,
            },
            id="a class that is only predicted",
        ),
    ],
)
def test_scores(predicted, expected):
    actual = scores(confusion(TRUE, predicted, 4))
    assert {name: actual[name] for name in expected} == pytest.approx(expected, abs=1e-6)


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 5).flatmap(lambda C: st.lists(st.tuples(*[st.integers(0, C - 1)] * 2), min_size=1, max_size=40)))
def test_scores_agree_with_scikit_learn(pairs):
    true, predicted = [list(column) for column in zip(*pairs, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns about classes without support
        expected = {
            "accuracy": metrics.accuracy_score(true, predicted),
            "f1_weighted": metrics.f1_score(true, predicted, average="weighted", zero_division=0),
            "f1_macro": metrics.f1_score(true, predicted, average="macro", zero_division=0),
            "balanced_accuracy": metrics.balanced_accuracy_score(true, predicted),
            "mcc": metrics.matthews_corrcoef(true, predicted),
        }
    assert scores(confusion(true, predicted, 5)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("classes", [0, 1, 3])
def test_scores_of_nothing_are_zero(classes):
    actual = scores(torch.zeros(classes, classes, dtype=torch.int64))
    assert actual == {"accuracy": 0.0, "f1_weighted": 0.0, "f1_macro": 0.0, "balanced_accuracy": 0.0, "mcc": 0.0}
    assert all(type(value) is float for value in actual.values())


def test_scores_of_a_single_true_class():
    assert scores(torch.tensor([[5, 0], [0, 0]])) == {
        "accuracy": 1.0,
        "f1_weighted": 1.0,
        "f1_macro": 1.0,
        "balanced_accuracy": 1.0,
        "mcc": 0.0,
    }


def test_scores_do_not_depend_on_the_scale_of_big_counts():
    small = torch.tensor([[900_001, 3, 1], [2, 70_000, 5], [0, 1, 11]])
    assert scores(small * 10**11) == pytest.approx(scores(small), rel=1e-12)  # squares overflow int64


def test_a_constant_prediction_has_no_correlation_however_many_images():
    assert scores(torch.tensor([[3 * 10**15 + 1, 0], [10**15 + 3, 0]]))["mcc"] == 0.0


def test_summed_matrices_score_as_the_pooled_images():
    first, second = confusion(TRUE, [0] * 8, 3), confusion([2, 1, 0], [2, 1, 1], 3)
    assert scores(first + second) == scores(confusion([*TRUE, 2, 1, 0], [*[0] * 8, 2, 1, 1], 3))


def test_per_class_recall():
    assert per_class_recall(torch.tensor([[3, 1, 0], [0, 0, 0], [2, 0, 0]])) == [0.75, None, 0.0]


@pytest.mark.parametrize("function", [scores, per_class_recall])
def test_a_matrix_that_is_not_square_is_refused(function):
    with pytest.raises(ValueError, match="square"):
        function(torch.zeros(2, 3, dtype=torch.int64))


def test_perfect_predictions_of_several_classes_score_one():
    assert all(math.isclose(value, 1.0) for value in scores(torch.diag(torch.tensor([4, 1, 9]))).values())
