"""Classifiers: an encoder with what turns its features into a decision.

B batch, H and W height and width in pixels, C classes, M prototypes a class, D feature size, P size of a projection.
"""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from fedproin.maths.prototypes import prototype_distances
from fedproin.models.encoders import Encoder


class Classifier(nn.Module):
    """An encoder, under the name `encoder`, and what decides on its features.

    Raises:
        ValueError: fewer than two classes, between which there is nothing to decide.
    """

    def __init__(self, encoder: Encoder, classes: int) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"at least 2 classes, got {classes}")
        self.encoder = encoder


class PrototypeClassifier(Classifier):
    """An encoder and learnable prototypes; the nearest prototype's class is the prediction (FedProIn, section III).

    The prototypes are drawn from N(0, 1) by torch's global generator.

    Attributes:
        encoder: images to features.
        prototypes: parameter ``[C, M, D]``, in units of the features.

    Raises:
        ValueError: fewer than two classes (there would be no rival), or no prototype.
    """

    def __init__(self, encoder: Encoder, classes: int, per_class: int = 1) -> None:
        super().__init__(encoder, classes)
        if per_class < 1:
            raise ValueError(f"at least 1 prototype a class, got {per_class}")
        self.prototypes = nn.Parameter(torch.randn(classes, per_class, encoder.feature_size))

    def forward(self, images: Tensor) -> Tensor:
        """Distances ``[B, C, M]`` of the images' features to all prototypes, for images ``[B, 3, H, W]``."""
        z_BD = self.encoder(images).to(self.prototypes.dtype)  # under autocast the encoder may answer in bfloat16
        return prototype_distances(z_BD, self.prototypes)


class LogitClassifier(Classifier):
    """A classifier that decides by the largest of C logits."""

    @abstractmethod
    def logits(self, z_BD: Tensor) -> Tensor:
        """Logits ``[B, C]`` of encoder features ``[B, D]``."""

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[B, C]`` of images ``[B, 3, H, W]``."""
        return self.logits(self.encoder(images).float())


class LinearClassifier(LogitClassifier):
    """A linear layer on the features (FedAvg and its kin; BalanceFL without bias and with a factor).

    Attributes:
        head: ``[C, D]`` and, unless there is none, its bias ``[C]``.
        scale: the logits are multiplied by it.
    """

    def __init__(self, encoder: Encoder, classes: int, bias: bool = True, scale: float = 1.0) -> None:
        super().__init__(encoder, classes)
        self.head = nn.Linear(encoder.feature_size, classes, bias=bias)
        self.scale = scale

    def logits(self, z_BD: Tensor) -> Tensor:
        """Logits ``[B, C]`` of encoder features ``[B, D]``."""
        logits_BC: Tensor = self.head(z_BD)
        return logits_BC if self.scale == 1 else self.scale * logits_BC


class ProjectionClassifier(LogitClassifier):
    """A two-layer projection of the features, and a linear layer on it (MOON, FedProc).

    Args:
        projection: P.
        normalise: give the projection unit length (FedProc).
        head_on: what the last linear layer sees; MOON's published code puts it on the projection.

    Attributes:
        l1, l2: D to D, ReLU, D to P.
        head: to the C logits.
    """

    def __init__(
        self, encoder: Encoder, classes: int, projection: int, normalise: bool = False, head_on: str = "projection"
    ) -> None:
        super().__init__(encoder, classes)
        size = encoder.feature_size
        self.l1, self.l2 = nn.Linear(size, size), nn.Linear(size, projection)
        self.head = nn.Linear(projection if head_on == "projection" else size, classes)
        self.normalise, self.head_on = normalise, head_on

    def project(self, z_BD: Tensor) -> Tensor:
        """Projection ``[B, P]`` of encoder features ``[B, D]``."""
        q_BP: Tensor = self.l2(torch.relu(self.l1(z_BD)))
        return nn.functional.normalize(q_BP, dim=1) if self.normalise else q_BP

    def logits(self, z_BD: Tensor) -> Tensor:
        """Logits ``[B, C]`` of encoder features ``[B, D]``."""
        logits_BC: Tensor = self.head(self.project(z_BD) if self.head_on == "projection" else z_BD)
        return logits_BC
