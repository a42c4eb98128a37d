"""Partitions are those of spec/vectors.json (group finch), compared up to the numbering of clusters."""

import pytest
import torch

from fedproin.maths.clusters import finch_levels, finch_means

COSINE = [
    [1.0, 0.0],
    [0.984807753012208, 0.17364817766693033],
    [0.9063077870366499, 0.42261826174069944],
    [0.17364817766693041, 0.984807753012208],
    [0.03489949670250108, 0.9993908270190958],
    [-0.984807753012208, 0.17364817766693028],
]
EUCLIDEAN = [[0.0, 0.0], [1.0, 0.0], [1.5, 0.0], [10.0, 0.0], [10.0, 1.0], [20.0, 20.0]]
LINE = [[x, 0.0] for x in (0, 1, 4, 5, 20, 21, 24, 25.5, 100, 101)]


def renumbered(labels):
    """Clusters numbered by first appearance."""
    order = list(dict.fromkeys(labels))
    return [order.index(label) for label in labels]


@pytest.mark.parametrize(
    ("points", "metric", "expected"),
    [
        pytest.param(COSINE, "cosine", [[0, 0, 0, 1, 1, 1]], id="cosine"),
        pytest.param(EUCLIDEAN, "euclidean", [[0, 0, 0, 1, 1, 1]], id="euclidean"),
        pytest.param(
            LINE,
            "euclidean",
            [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4], [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]],
            id="two levels, fine to coarse",
        ),
        pytest.param([[3.0, 4.0]], "cosine", [[0]], id="one point"),
        pytest.param([[3.0, 4.0], [-1.0, 0.0]], "cosine", [[0, 0]], id="two points are one cluster"),
        pytest.param([[0.0, 0.0]] * 3, "cosine", [[0, 0, 0]], id="zero vectors"),
    ],
)
def test_levels(points, metric, expected, recwarn):
    levels = finch_levels(torch.tensor(points), metric)
    assert levels.dtype == torch.int64
    assert [renumbered(level) for level in levels.T.tolist()] == expected
    assert not recwarn.list


def test_means_are_of_the_original_points_on_the_coarsest_level():
    means = finch_means(torch.tensor(LINE), "euclidean")
    assert means.dtype == torch.float32
    assert sorted(means[:, 0].tolist()) == pytest.approx([2.5, (20 + 21 + 24 + 25.5 + 100 + 101) / 6])
