"""One mean vector a class: of a site's features, merged over sites, as target of training and as classifier.

B batch, C classes, D feature size, K sites, N samples.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from fedproin.maths.prototypes import merge_prototypes, prototype_distances

MergeRule = Literal["count", "uniform", "paper_literal"]


def class_sums(z_ND: Tensor, y_N: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Sum of the vectors of each class, float64 ``[C, D]``, and how many there are, int64 ``[C]``."""
    sum_CD = torch.zeros(classes, z_ND.shape[1], dtype=torch.float64, device=z_ND.device)
    return sum_CD.index_add_(0, y_N, z_ND.double()), torch.bincount(y_N, minlength=classes)


def class_means(z_ND: Tensor, y_N: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mean of the vectors of each class, ``[C, D]`` in their dtype, 0 for one without any, and counts int64 ``[C]``."""
    sum_CD, count_C = class_sums(z_ND, y_N, classes)
    return (sum_CD / count_C.clamp_min(1).unsqueeze(1)).to(z_ND.dtype), count_C


def merge_class_means(mean_KCD: Tensor, count_KC: Tensor, previous_CD: Tensor, rule: MergeRule = "count") -> Tensor:
    """The sites' class means as one (FedProto), ``[C, D]`` in their dtype; a class that no site has keeps what it had.

    Args:
        mean_KCD: means; those of classes that a site does not have are not used.
        count_KC: samples behind them, int64.
        previous_CD: the means before.
        rule: weights by `count`; `uniform` over the sites that have the class (all published code); `paper_literal`
            divides the mean by count once more by the number of those sites (eq. 6 as printed), which shrinks it.

    Raises:
        ValueError: the rule is none of these.
    """
    if rule not in get_args(MergeRule):
        raise ValueError(f"rule must be one of {get_args(MergeRule)}, got {rule!r}")
    owner_KC = count_KC > 0
    weight_KC = owner_KC.to(count_KC.dtype) if rule == "uniform" else count_KC
    merged_CD = merge_prototypes(mean_KCD.unsqueeze(2), weight_KC.unsqueeze(2), previous_CD.unsqueeze(1)).squeeze(1)
    owners_C1 = owner_KC.sum(dim=0).unsqueeze(1)
    return merged_CD / owners_C1.clamp_min(1) if rule == "paper_literal" else merged_CD


def regression_to_means(z_BD: Tensor, y_B: Tensor, mean_CD: Tensor, mask_C: Tensor) -> Tensor:
    """Mean squared difference, over all entries, to the mean of the sample's class (FedProto, FedTGP).

    A sample whose class has no mean adds 0 and stays in the denominator, as in the published code.
    """
    known_B1 = mask_C[y_B].unsqueeze(1)
    return ((z_BD - mean_CD[y_B].detach()) * known_B1).square().mean()


def distances_to_means(z_BD: Tensor, mean_CD: Tensor, mask_C: Tensor) -> Tensor:
    """Distance to the mean of each class, ``[B, C]``, infinite where there is none."""
    dist_BC = prototype_distances(z_BD, mean_CD.unsqueeze(1)).squeeze(2)
    return dist_BC.masked_fill(~mask_C, torch.inf)
