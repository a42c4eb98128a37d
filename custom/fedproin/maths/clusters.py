"""FINCH: clusters by first neighbours, without a parameter (Sarfraz et al., CVPR 2019), by the authors' package.

N points, D their size.
"""

import warnings
from typing import Literal

import torch
from torch import Tensor

Metric = Literal["cosine", "euclidean"]


def finch_levels(points_ND: Tensor, metric: Metric = "cosine") -> Tensor:
    """The cluster of every point on every level, int64 ``[N, L]``, from the finest level to the coarsest.

    The coarsest kept level is the last one before everything is one cluster or a level merges no more than one pair.
    Long links are not cut (`ensure_early_exit` is off), as in all published federated uses. Neighbours are exact.
    """
    from threadpoolctl import threadpool_limits

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "pynndescent is not installed")  # for approximate neighbours
        from finch import FINCH

    points = points_ND.numpy()
    with threadpool_limits(1):  # sums of distances, and so ties, differ in the last bits with the number of cores
        levels, _, _ = FINCH(points, distance=metric, ensure_early_exit=False, ann_threshold=len(points))
    return torch.as_tensor(levels, dtype=torch.int64)


def finch_means(points_ND: Tensor, metric: Metric = "cosine") -> Tensor:
    """Means of the points of each cluster on the coarsest level, ``[k, D]`` in their dtype; for at least one point."""
    label_N = finch_levels(points_ND, metric)[:, -1]
    count_k = label_N.bincount()
    sum_kD = torch.zeros(len(count_k), points_ND.shape[1], dtype=torch.float64).index_add_(
        0, label_N, points_ND.double()
    )
    return (sum_kD / count_k.unsqueeze(1)).to(points_ND.dtype)
