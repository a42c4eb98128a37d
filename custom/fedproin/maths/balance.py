"""BalanceFL: losses on the classes that a site has and has not, and noise for the features of its rare classes.

Source: "BalanceFL: Addressing Class Imbalance in Long-Tail Federated Learning" and its published code.
B batch, C classes, D feature size, N samples. A mask over the classes is bool ``[C]``.
"""

import torch
from torch import Tensor, nn


def present_cross_entropy(logits_BC: Tensor, y_B: Tensor, present_C: Tensor) -> Tensor:
    """Cross-entropy among the present classes, to which all labels must belong; 0 where there is one only."""
    return nn.functional.cross_entropy(logits_BC.masked_fill(~present_C, -torch.inf), y_B)


def absent_distillation(logits_BC: Tensor, teacher_BC: Tensor, absent_C: Tensor, temperature: float = 2.0) -> Tensor:
    """Knowledge inheritance: cross-entropy to the teacher's softmax among the absent classes, mean over the batch.

    No factor of the squared temperature, as published. With no absent class it is 0, and with exactly one it is
    constant, 0 with zero gradient.
    """
    some = absent_C.any()
    among_C = absent_C | ~some  # a softmax over nothing is NaN
    share_BC = _log_softmax(teacher_BC.detach() / temperature, among_C).exp()
    log_share_BC = _log_softmax(logits_BC / temperature, among_C).masked_fill(~among_C, 0.0)
    return -(share_BC * log_share_BC).sum(dim=1).mean() * some


def present_entropy(logits_BC: Tensor, present_C: Tensor) -> Tensor:
    """Entropy of each sample's softmax among the present classes, ``[B]``."""
    log_share_BC = _log_softmax(logits_BC, present_C)
    return -(log_share_BC.exp() * log_share_BC.masked_fill(~present_C, 0.0)).sum(dim=1)


def within_class_noise(z_ND: Tensor, y_N: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """Gaussian vectors with the mean covariance inside the classes, ``[draws, D]`` in the features' dtype.

    The covariance of a class counts by its share of the samples, and is 0 for a single one. The vectors are random sums
    of the deviations themselves: the same distribution as by way of the D x D covariance, which is singular for fewer
    than D samples and costs D^3.
    """
    count_N = y_N.bincount()[y_N].double()
    sum_CD = torch.zeros(int(y_N.max()) + 1, z_ND.shape[1], dtype=torch.float64).index_add_(0, y_N, z_ND.double())
    deviation_ND = z_ND.double() - sum_CD[y_N] / count_N.unsqueeze(1)
    scale_N = (count_N / (len(y_N) * (count_N - 1).clamp_min(1))).sqrt()
    weights = torch.randn(draws, len(y_N), dtype=torch.float64, generator=generator)
    return (weights @ (scale_N.unsqueeze(1) * deviation_ND)).to(z_ND.dtype)


def _log_softmax(logits_BC: Tensor, mask_C: Tensor) -> Tensor:
    return logits_BC.masked_fill(~mask_C, -torch.inf).log_softmax(dim=1)
