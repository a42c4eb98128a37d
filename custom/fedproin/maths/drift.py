"""Terms that hold a site close to the federation: the two of FedProIn, and FedProx's.

B batch, C classes, M prototypes a class, D feature size.
"""

from collections.abc import Iterable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

DivergenceReduction = Literal["mean", "sum"]
ContrastReduction = Literal["per_prototype", "tensor"]

EPS = 1e-8  # of eq. 3


def feature_divergence(z_BD: Tensor, z_global_BD: Tensor, reduction: DivergenceReduction = "mean") -> Tensor:
    """Feature divergence loss (FDL, eq. 2): squared distance to the features of the received, frozen encoder.

    Args:
        z_BD: features of the model in training.
        z_global_BD: features of the frozen encoder for the same images; they get no gradient.
        reduction: `mean` over samples and feature entries (the authors' code), or `sum` over the entries and mean over
            the samples (the paper), which is D times larger.

    Raises:
        ValueError: the reduction is neither.
    """
    _check(reduction, get_args(DivergenceReduction))
    mean = nn.functional.mse_loss(z_BD, z_global_BD.detach())
    return mean if reduction == "mean" else mean * z_BD.shape[1]


def prototype_contrast(
    local_CMD: Tensor,
    global_CMD: Tensor,
    previous_CMD: Tensor,
    margin: float = 0.5,
    reduction: ContrastReduction = "per_prototype",
) -> Tensor:
    """Prototype contrastive loss (PCL, eq. 3): closer to the global than to the site's previous prototypes.

    ``max(0, (a - b) / (a + b) + margin)`` with ``a`` the distance to the global and ``b`` the distance to the previous
    prototype. The gradient is finite everywhere, and zero where all three are equal.

    Args:
        local_CMD: prototypes in training; only they get a gradient.
        global_CMD: prototypes as received at the start of the round.
        previous_CMD: prototypes at the end of the site's most recent local training.
        margin: wanted relative lead of the global distance, in [0, 2].
        reduction: `per_prototype` is the mean over the C * M prototypes (the authors' code), `tensor` takes one
            distance over all of them (the paper as written).

    Raises:
        ValueError: the reduction is neither.
    """
    _check(reduction, get_args(ContrastReduction))
    dim = -1 if reduction == "per_prototype" else None
    # vector_norm has derivative 0 at distance 0, where sqrt(sum(x * x)) gives NaN
    to_global = torch.linalg.vector_norm(local_CMD - global_CMD.detach(), dim=dim)
    to_previous = torch.linalg.vector_norm(local_CMD - previous_CMD.detach(), dim=dim)
    delta = (to_global - to_previous) / (to_global + to_previous + EPS)
    return torch.relu(delta + margin).mean()


def proximal_distance(parameters: Iterable[Tensor], reference: Iterable[Tensor]) -> Tensor:
    """Half the squared distance between two lists of tensors (FedProx, eq. 2, without its factor mu).

    A sum of squares: its gradient is 0 where the two are equal, while that of a root is NaN.
    """
    squares = [((own - other.detach()) ** 2).sum() for own, other in zip(parameters, reference, strict=True)]
    return torch.stack(squares).sum() / 2


def _check(reduction: str, known: tuple[str, ...]) -> None:
    if reduction not in known:
        raise ValueError(f"reduction must be one of {known}, got {reduction!r}")
