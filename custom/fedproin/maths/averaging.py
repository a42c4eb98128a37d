"""Federated averaging of named tensors (eq. 5), one site and one tensor at a time."""

import math
from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

BatchNormVariance = Literal["average", "pooled"]

MEAN, VARIANCE = "running_mean", "running_var"


class WeightedMean:
    """Running weighted mean of the sites' tensors; the memory is one sum in float64, whatever the number of sites.

    Integer tensors, such as BatchNorm's counters of batches, take the maximum.

    Args:
        bn_var: what becomes of `*.running_var`: the `average` like any tensor, or the variance of the `pooled` sites,
            which adds the spread of their running means.

    Raises:
        ValueError: `bn_var` is neither.
    """

    def __init__(self, bn_var: BatchNormVariance = "average") -> None:
        if bn_var not in get_args(BatchNormVariance):
            raise ValueError(f"bn_var must be one of {get_args(BatchNormVariance)}, got {bn_var!r}")
        self._pooled = bn_var == "pooled"
        self._total = 0.0
        self._sums: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, named_tensors: Mapping[str, Tensor], weight: float) -> None:
        """Add one site's tensors; `weight` is its number of training images.

        Raises:
            ValueError: the weight is negative or not finite, or names or shapes differ from the sites before; the mean
                is of no use after that.
        """
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"a weight must be finite and not negative, got {weight}")
        if self._dtypes and (different := self._dtypes.keys() ^ named_tensors.keys()):
            raise ValueError(f"{len(different)} tensors are not common to all sites, such as {min(different)!r}")
        for name, tensor in named_tensors.items():
            term = self._second_moment(name, named_tensors) if self._is_pooled(name) else tensor
            self._accumulate(name, term, weight, tensor.dtype)
        self._total += weight

    def result(self) -> dict[str, Tensor]:
        """The mean of what was added, by name, in the dtype of the first site.

        Raises:
            ValueError: nothing was added, or only with weight 0.
        """
        if self._total <= 0:
            raise ValueError("the total weight is 0, so there is no mean")
        return {name: self._mean(name).to(dtype) for name, dtype in self._dtypes.items()}

    def _accumulate(self, name: str, term: Tensor, weight: float, dtype: torch.dtype) -> None:
        if name not in self._sums:
            self._dtypes[name] = dtype
            self._sums[name] = torch.zeros_like(term, dtype=torch.float64) if dtype.is_floating_point else term.clone()
        total = self._sums[name]
        if term.shape != total.shape:
            raise ValueError(f"the shape of {name!r} is {list(term.shape)}, at the sites before {list(total.shape)}")
        if dtype.is_floating_point:
            total.add_(term, alpha=weight)
        else:
            self._sums[name] = torch.maximum(total, term)

    def _mean(self, name: str) -> Tensor:
        if not self._dtypes[name].is_floating_point:
            return self._sums[name]
        mean = self._sums[name] / self._total
        if self._is_pooled(name):
            mean = (mean - self._mean(_mean_beside(name)) ** 2).clamp_min(0)  # cancellation may end just below 0
        return mean

    def _is_pooled(self, name: str) -> bool:
        return self._pooled and name.rpartition(".")[2] == VARIANCE

    @staticmethod
    def _second_moment(name: str, named_tensors: Mapping[str, Tensor]) -> Tensor:
        if (beside := _mean_beside(name)) not in named_tensors:
            raise ValueError(f"pooling {name!r} needs {beside!r}")
        return named_tensors[name].double() + named_tensors[beside].double() ** 2


def _mean_beside(name: str) -> str:
    return name.removesuffix(VARIANCE) + MEAN
