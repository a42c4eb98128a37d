"""Classifiers: an encoder with what turns its features into a decision.

B batch, H and W height and width in pixels, C classes, M prototypes a class, D feature size.
"""

import torch
from torch import Tensor, nn

from fedproin.maths.prototypes import prototype_distances
from fedproin.models.encoders import Encoder


class PrototypeClassifier(nn.Module):
    """An encoder and learnable prototypes; the nearest prototype's class is the prediction (FedProIn, section III).

    The prototypes are drawn from N(0, 1) by torch's global generator.

    Attributes:
        encoder: images to features.
        prototypes: parameter ``[C, M, D]``, in units of the features.

    Raises:
        ValueError: fewer than two classes (there would be no rival), or no prototype.
    """

    def __init__(self, encoder: Encoder, classes: int, per_class: int = 1) -> None:
        super().__init__()
        if classes < 2 or per_class < 1:
            raise ValueError(f"at least 2 classes and 1 prototype a class, got {classes} and {per_class}")
        self.encoder = encoder
        self.prototypes = nn.Parameter(torch.randn(classes, per_class, encoder.feature_size))

    def forward(self, images: Tensor) -> Tensor:
        """Distances ``[B, C, M]`` of the images' features to all prototypes, for images ``[B, 3, H, W]``."""
        z_BD = self.encoder(images).to(self.prototypes.dtype)  # under autocast the encoder may answer in bfloat16
        return prototype_distances(z_BD, self.prototypes)
