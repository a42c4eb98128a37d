"""Contrastive terms of the compared methods: MOON, FedProc, FedTGP and FedPLVM.

B batch, C classes, D feature size, N vectors, P size of a projection.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

MarginRule = Literal["max_of_min", "max_pair"]

EPS = 1e-8  # of a cosine: a zero vector is similar to nothing
SMALLEST_COSINE = 1e-6  # below it a power of the cosine counts as 0: its slope grows without bound


def model_contrast(q_BP: Tensor, q_global_BP: Tensor, previous: Sequence[Tensor], temperature: float = 0.5) -> Tensor:
    """MOON's term (eq. 3): closer to the global model's projection than to those of the site's previous models.

    Without a previous model it is 0; where previous and global are the same it is log 2, without gradient.

    Args:
        q_BP: projections of the model in training.
        q_global_BP: of the received model.
        previous: of the site's earlier models, each ``[B, P]``; neither these nor the global ones get a gradient.
        temperature: of the softmax over cosines.
    """
    others = [other.detach() for other in (q_global_BP, *previous)]
    cosine_BN = torch.stack([nn.functional.cosine_similarity(q_BP, other, dim=1, eps=EPS) for other in others], dim=1)
    return nn.functional.cross_entropy(
        cosine_BN / temperature, torch.zeros(len(q_BP), dtype=torch.int64).to(q_BP.device)
    )


def centre_contrast(q_BP: Tensor, y_B: Tensor, centre_CP: Tensor, mask_C: Tensor) -> Tensor:
    """FedProc's global prototypical contrast of each sample, ``[B]``; 0 where the class has no centre.

    Cross-entropy over the cosines to all centres, without a temperature, as published.

    Args:
        q_BP: projections of unit length.
        y_B: classes, int64.
        centre_CP: centres of the classes, of any length.
        mask_C: whether a class has a centre, true for at least one; the others are no negatives either.
    """
    cosine_BC = q_BP @ nn.functional.normalize(centre_CP, dim=1).T
    log_share_BC = cosine_BC.masked_fill(~mask_C, -torch.inf).log_softmax(dim=1)
    loss_B = nn.functional.nll_loss(log_share_BC, y_B, reduction="none")
    return torch.where(mask_C[y_B], loss_B, torch.zeros_like(loss_B))


def adaptive_margin(centre_CD: Tensor, limit: float, rule: MarginRule = "max_of_min") -> float:
    """FedTGP's margin: one number for all classes, from the distances between their centres.

    Args:
        centre_CD: centres of the classes that were uploaded; with fewer than two there is no margin.
        limit: the paper's tau.
        rule: `max_of_min` takes the class whose nearest neighbour is farthest (published code), `max_pair` the
            farthest pair (eq. 9).

    Raises:
        ValueError: the rule is neither.
    """
    if rule not in get_args(MarginRule):
        raise ValueError(f"rule must be one of {get_args(MarginRule)}, got {rule!r}")
    if len(centre_CD) < 2:
        return 0.0
    dist_CC = _distances(centre_CD, centre_CD)
    if rule == "max_of_min":
        dist_CC = dist_CC.fill_diagonal_(torch.inf).min(dim=1).values
    return min(dist_CC.max().item(), limit)


def margin_contrast(z_ND: Tensor, y_N: Tensor, proto_CD: Tensor, margin: float) -> Tensor:
    """FedTGP's adaptive-margin contrastive loss (ACL, eq. 7): mean over the uploaded vectors.

    Cross-entropy over negative distances, with the margin added to the distance to the own class.
    """
    own_NC = nn.functional.one_hot(y_N, len(proto_CD)).to(z_ND.dtype)
    return nn.functional.cross_entropy(-(_distances(z_ND, proto_CD) + margin * own_NC), y_N)


def cluster_contrast(
    z_BD: Tensor, y_B: Tensor, cluster_ND: Tensor, cluster_class_N: Tensor, alpha: float = 0.25, tau: float = 0.07
) -> Tensor:
    """FedPLVM's alpha-sparsity contrast: mean over the samples whose class has clusters, 0 if there are none.

    Args:
        z_BD: features.
        y_B: classes, int64.
        cluster_ND: global clusters, at least one.
        cluster_class_N: their classes, int64.
        alpha: power of the cosine; the smaller, the more alike are clusters of one class.
        tau: temperature.
    """
    cosine_BN = nn.functional.cosine_similarity(z_BD.unsqueeze(1), cluster_ND.unsqueeze(0), dim=2, eps=EPS)
    power_BN = cosine_BN.clamp_min(SMALLEST_COSINE) ** alpha
    logit_BN = torch.where(cosine_BN > SMALLEST_COSINE, power_BN, torch.zeros_like(power_BN)) / tau
    own_BN = cluster_class_N == y_B.unsqueeze(1)
    known_B1 = own_BN.any(dim=1, keepdim=True)
    # a sample without clusters takes all of them for its own: its value and gradient are exactly 0
    own_B = logit_BN.masked_fill(~own_BN & known_B1, -torch.inf).logsumexp(dim=1)
    return (logit_BN.logsumexp(dim=1) - own_B).sum() / known_B1.sum().clamp_min(1)


def cluster_correction(z_BD: Tensor, y_B: Tensor, centre_CD: Tensor, mask_C: Tensor) -> Tensor:
    """FedPLVM's correction: twice the mean of (cosine to the class's mean cluster - 1)^2, as published.

    Args:
        z_BD: features.
        y_B: classes, int64.
        centre_CD: mean of each class's clusters.
        mask_C: whether a class has any; samples of the others do not count.
    """
    cosine_B = nn.functional.cosine_similarity(z_BD, centre_CD[y_B], dim=1, eps=EPS)
    known_B = mask_C[y_B]
    return 2 * ((cosine_B - 1) ** 2 * known_B).sum() / known_B.sum().clamp_min(1)


def _distances(a_ND: Tensor, b_CD: Tensor) -> Tensor:
    return torch.cdist(a_ND, b_CD, compute_mode="donot_use_mm_for_euclid_dist")
