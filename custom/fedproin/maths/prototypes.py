"""Prototype classification: distances, task losses, influence and the merging of prototypes.

B batch, C classes, M prototypes a class, D feature size, K sites.

The task losses are those of convolutional prototype learning (Yang et al., CVPR 2018) with several prototypes a class;
equations are those of the FedProIn paper. All losses take distances, so a caller that wants the squared distance passes
``dist_BCM**2``.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

InfluenceScope = Literal["true_class", "all"]


def prototype_distances(z_BD: Tensor, proto_CMD: Tensor) -> Tensor:
    """Euclidean distance of every feature to every prototype, ``[B, C, M]``, in units of the features.

    Exact, not by the matmul form, which loses small distances; the derivative at distance 0 is 0.
    """
    dist_BN = torch.cdist(z_BD, proto_CMD.flatten(0, 1), compute_mode="donot_use_mm_for_euclid_dist")
    return dist_BN.reshape(len(z_BD), *proto_CMD.shape[:2])


def class_distances(dist_BCM: Tensor) -> Tensor:
    """Distance to the nearest prototype of each class, ``[B, C]``."""
    return dist_BCM.min(dim=2).values  # not amin, which spreads the gradient over a tie


def nearest_own_and_rival(dist_BCM: Tensor, y_B: Tensor) -> tuple[Tensor, Tensor]:
    """Distances to the nearest prototype of the sample's class and to the nearest one of any other, ``[B]`` each.

    A gradient reaches exactly one prototype of each kind: the one with the lowest class and index in a tie.
    """
    own_BC = _is_own_class(dist_BCM, y_B)
    nearest_BC = class_distances(dist_BCM)
    own_B = nearest_BC.masked_fill(~own_BC, torch.inf).min(dim=1).values
    rival_B = nearest_BC.masked_fill(own_BC, torch.inf).min(dim=1).values
    return own_B, rival_B


def mce_loss(dist_BCM: Tensor, y_B: Tensor, slope: float = 1.0) -> Tensor:
    """Minimum classification error (MCEL of FedProIn), in [0, 1]: batch mean of ``sigmoid(slope * (own - rival))``."""
    own_B, rival_B = nearest_own_and_rival(dist_BCM, y_B)
    return torch.sigmoid(slope * (own_B - rival_B)).mean()


def mcl_loss(dist_BCM: Tensor, y_B: Tensor, margin: float = 0.5) -> Tensor:
    """Margin-based loss (MCL): batch mean of ``max(0, own - rival + margin)``, margin in units of the distance."""
    own_B, rival_B = nearest_own_and_rival(dist_BCM, y_B)
    return torch.relu(own_B - rival_B + margin).mean()


def gmcl_loss(dist_BCM: Tensor, y_B: Tensor, margin: float = 0.5) -> Tensor:
    """Generalised MCL: batch mean of ``max(0, (own - rival) / (own + rival) + margin)``, margin in (0, 1).

    A sample that sits on an own and on a rival prototype at once costs the margin and has no gradient.
    """
    own_B, rival_B = nearest_own_and_rival(dist_BCM, y_B)
    relative_B = (own_B - rival_B) / (own_B + rival_B).clamp_min(1e-8)
    return torch.relu(relative_B + margin).mean()


def influence_counts(dist_BCM: Tensor, y_B: Tensor, scope: InfluenceScope = "true_class") -> Tensor:
    """How often each prototype was nearest to a sample of its own class (eq. 6), int64 ``[C, M]``.

    Args:
        dist_BCM: distances or their squares.
        y_B: classes of the samples, int64.
        scope: `true_class` looks for the nearest among the prototypes of the sample's class, so every sample counts
            once; `all` looks among all prototypes and counts only samples whose nearest belongs to their class.

    Raises:
        ValueError: the scope is neither.
    """
    if scope not in get_args(InfluenceScope):
        raise ValueError(f"scope must be one of {get_args(InfluenceScope)}, got {scope!r}")
    _, C, M = dist_BCM.shape
    if scope == "true_class":
        dist_BCM = dist_BCM.masked_fill(~_is_own_class(dist_BCM, y_B).unsqueeze(2), torch.inf)
    nearest_B = dist_BCM.flatten(1).argmin(dim=1)  # in [C * M]; the first of equals
    counted_B = nearest_B[nearest_B.div(M, rounding_mode="floor") == y_B]
    return torch.bincount(counted_B, minlength=C * M).reshape(C, M)


def merge_prototypes(proto_KCMD: Tensor, influence_KCM: Tensor, previous_CMD: Tensor) -> Tensor:
    """Influence-weighted mean of the sites' prototypes (eq. 7), ``[C, M, D]`` in their dtype; sums are float64.

    A prototype that no site used keeps its previous value: eq. 7 as printed sends it to the origin, where it becomes
    the nearest prototype of most features.
    """
    sum_CMD, total_CM1 = _influence_sums(proto_KCMD, influence_KCM)
    mean_CMD = (sum_CMD / total_CM1.clamp_min(1)).to(proto_KCMD.dtype)
    return torch.where(total_CM1 > 0, mean_CMD, previous_CMD)


def merge_prototypes_literal(proto_KCMD: Tensor, influence_KCM: Tensor, eps: float = 1e-8) -> Tensor:
    """Eq. 7 as printed, ``[C, M, D]``, for parity with the authors' code: an unused prototype becomes zero."""
    sum_CMD, total_CM1 = _influence_sums(proto_KCMD, influence_KCM)
    return (sum_CMD / (total_CM1 + eps)).to(proto_KCMD.dtype)


def _influence_sums(proto_KCMD: Tensor, influence_KCM: Tensor) -> tuple[Tensor, Tensor]:
    weight_KCM1 = influence_KCM.double().unsqueeze(-1)
    return (weight_KCM1 * proto_KCMD).sum(dim=0), weight_KCM1.sum(dim=0)


def _is_own_class(dist_BCM: Tensor, y_B: Tensor) -> Tensor:
    return y_B.unsqueeze(1) == torch.arange(dist_BCM.shape[1], device=y_B.device)
