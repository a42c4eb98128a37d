"""Adaptive augmentation: whole batches in [0, 1], on the device of the model, between `to_unit` and `normalise`.

Letters: B batch, C classes; pictures are square, ``[B, 3, S, S]`` in [0, 1].

The recipe is the one of the authors' code (G0) in a batched form, which differs from torchvision's per-image transforms
in three ways. Rotation, flips and affine transform are composed into one bilinear sampling with zeros outside, so that
nothing is interpolated or cut off twice. The four colour changes come in a fixed order. Hue turns the chroma plane of
YIQ, where torchvision shifts the hue of HSV: that keeps luma and is one matrix product for the whole batch.

Every random number comes from a transform's own generator on the CPU; only then does it go to the device. So the same
seed gives the same draws on every device, and no step waits for a GPU to answer.
"""

# mypy: disallow-subclassing-any=False

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from monai.transforms import Compose, RandomizableTransform
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample
from torchvision.transforms.v2 import functional as tv

RGB_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])


@dataclass(frozen=True, slots=True)
class Batch:
    """What the transforms of the recipe hand on: images ``[B, 3, S, S]`` and ``[B]`` for those that toss a coin."""

    images: Tensor
    probability: Tensor


class BatchTransform(RandomizableTransform):
    """A random transform of whole batches that uses ``draws`` uniform numbers per image.

    Subclasses define ``_apply(batch, *draws_B) -> images``.
    """

    draws = 1

    def randomize(self, data: Batch) -> None:
        """Draw ``uniform``, float32 ``[draws, B]`` in [0, 1), for this batch."""
        self.uniform = uniform(self.R, (self.draws, len(data.images)), data.images.device)

    def _apply(self, batch: Batch, *draws_B: Tensor) -> Tensor:
        raise NotImplementedError

    def __call__(self, data: Batch) -> Batch:
        """Transform a batch; the probabilities stay."""
        self.randomize(data)
        return replace(data, images=self._apply(data, *self.uniform))


class RandGeometry(BatchTransform):
    """Rotate about the centre, flip, shift and scale, in this order, as one bilinear sampling with zeros outside.

    Args:
        degrees: largest angle.
        translate: largest shift along each axis, as a fraction of the side.
        scale: largest relative change of the size.
    """

    draws = 6

    def __init__(self, degrees: float = 15, translate: float = 0.1, scale: float = 0.1) -> None:
        super().__init__()
        self.degrees, self.translate, self.scale = degrees, translate, scale

    def _apply(self, batch: Batch, *draws_B: Tensor) -> Tensor:
        turn, flip_x, flip_y, shift_x, shift_y, grow = draws_B
        return warp(
            batch.images,
            angle_B=torch.deg2rad(_symmetric(turn, self.degrees)),
            mirror_B2=1.0 - 2.0 * torch.stack([flip_x < batch.probability, flip_y < batch.probability], dim=1),
            shift_B2=torch.stack([_symmetric(shift_x, self.translate), _symmetric(shift_y, self.translate)], dim=1),
            scale_B=1.0 + _symmetric(grow, self.scale),
        )


class RandColourJitter(BatchTransform):
    """Brightness, contrast and saturation by factors in ``1 +- strength``, then hue by up to ``hue`` turns."""

    draws = 4

    def __init__(self, strength: float = 0.2, hue: float = 0.1) -> None:
        super().__init__()
        self.strength, self.hue = strength, hue

    def _apply(self, batch: Batch, *draws_B: Tensor) -> Tensor:
        brightness_B, contrast_B, saturation_B = (1.0 + _symmetric(draw_B, self.strength) for draw_B in draws_B[:3])
        images = adjust_brightness(batch.images, brightness_B)
        images = adjust_saturation(adjust_contrast(images, contrast_B), saturation_B)
        return rotate_hue(images, _symmetric(draws_B[3], self.hue))


class RandSharpness(BatchTransform):
    """Sharpen by `factor` with the probability of the image."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = factor

    def _apply(self, batch: Batch, *draws_B: Tensor) -> Tensor:
        sharp = adjust_sharpness(batch.images, self.factor)
        return _where(draws_B[0] < batch.probability, sharp, batch.images)


class RandAutocontrast(BatchTransform):
    """Stretch each channel to [0, 1] with the probability of the image."""

    def _apply(self, batch: Batch, *draws_B: Tensor) -> Tensor:
        return _where(draws_B[0] < batch.probability, tv.autocontrast(batch.images), batch.images)


class ForSomeImages(Compose):
    """A Compose that fires as a whole, for each image with the probability of its class; the others pass untouched.

    Args:
        transforms: of a :class:`Batch`.
        class_probability_C: in [0, 1].
        inner_probability: for the transforms that toss a coin of their own; None: the probability of the class again.
    """

    def __init__(
        self,
        transforms: Sequence[BatchTransform],
        class_probability_C: ArrayLike,
        inner_probability: float | None = None,
    ) -> None:
        super().__init__(transforms)
        self.class_probability_C = torch.tensor(np.asarray(class_probability_C), dtype=torch.float32)
        self.inner_probability = inner_probability

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Augment float images ``[B, 3, S, S]`` in [0, 1] with int64 labels ``[B]``, both on the same device."""
        self.class_probability_C = self.class_probability_C.to(images.device)
        class_B = self.class_probability_C[labels]
        inner_B = class_B if self.inner_probability is None else torch.full_like(class_B, self.inner_probability)
        fires_B = uniform(self.R, (len(images),), images.device) < class_B
        augmented: Batch = super().__call__(Batch(images, inner_B))
        return _where(fires_B, augmented.images, images)


def augmentation(class_probability_C: ArrayLike, flip_probability: float | None = None) -> ForSomeImages:
    """Return the recipe of methods.md 1.5; call it with images ``[B, 3, S, S]`` in [0, 1] and labels ``[B]``.

    ``set_random_state(seed)`` makes it reproducible. Inside the list, flips, sharpness and autocontrast toss a coin of
    their own, with `flip_probability` or, as in G0, with the class probability again: so they fire with its square.
    """
    recipe = [RandGeometry(), RandColourJitter(), RandSharpness(), RandAutocontrast()]
    return ForSomeImages(recipe, class_probability_C, flip_probability)


def class_probabilities(labels: ArrayLike, classes: int) -> NDArray[np.float64]:
    """``p_c = 1 - n_c / max n``, shape ``[C]``: the largest class is never augmented, an absent one would always be."""
    counts = np.bincount(np.asarray(labels, dtype=np.int64), minlength=classes)
    probability: NDArray[np.float64] = 1.0 - counts / max(counts.max(), 1)
    return probability


def uniform_probabilities(labels: ArrayLike, classes: int) -> NDArray[np.float64]:
    """The mean of ``class_probabilities`` over the classes present, for every class, shape ``[C]``."""
    present = np.unique(np.asarray(labels, dtype=np.int64))
    return np.full(classes, class_probabilities(labels, classes)[present].mean())


def warp(images: Tensor, angle_B: Tensor, mirror_B2: Tensor, shift_B2: Tensor, scale_B: Tensor) -> Tensor:
    """Rotate (clockwise, radians), mirror (+-1 along x, y), scale and shift (fractions of the side) square images."""
    cos, sin = angle_B.cos(), angle_B.sin()
    rotation_B22 = torch.stack([cos, -sin, sin, cos], dim=1).view(-1, 2, 2)
    # out = scale * mirror * rotation * in + shift, so in = rotation^T * mirror / scale * (out - shift)
    inverse_B22 = rotation_B22.transpose(1, 2) * (mirror_B2 / scale_B[:, None])[:, None, :]
    offset_B21 = -2.0 * inverse_B22 @ shift_B2[:, :, None]  # the sampling grid is two units wide
    grid = affine_grid(torch.cat([inverse_B22, offset_B21], dim=2), list(images.shape), align_corners=False)
    return grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def adjust_brightness(images: Tensor, factor_B: Tensor) -> Tensor:
    """Multiply each image by its own factor."""
    return (images * factor_B.view(-1, 1, 1, 1)).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor_B: Tensor) -> Tensor:
    """Blend each image with the mean of its luma."""
    return _blend(images, tv.rgb_to_grayscale(images).mean(dim=(1, 2, 3), keepdim=True), factor_B)


def adjust_saturation(images: Tensor, factor_B: Tensor) -> Tensor:
    """Blend each image with its luma."""
    return _blend(images, tv.rgb_to_grayscale(images), factor_B)


def adjust_sharpness(images: Tensor, factor: float) -> Tensor:
    """Move every image away from its 3x3 smoothing (centre 5/13, neighbours 1/13); the outermost pixels stay."""
    inner = images[..., 1:-1, 1:-1]
    rows = images[..., :-2, :] + images[..., 1:-1, :] + images[..., 2:, :]  # sums take a tenth of a convolution's time
    smooth = (rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4.0 * inner) / 13.0
    sharp = images.clone()
    sharp[..., 1:-1, 1:-1] = torch.lerp(smooth, inner, factor).clamp_(0, 1)
    return sharp


def rotate_hue(images: Tensor, turns_B: Tensor) -> Tensor:
    """Turn the chroma plane of YIQ by `turns_B` of the colour wheel, positive from red to yellow; luma stays."""
    angle_B = -2.0 * torch.pi * turns_B
    cos, sin, zero, one = angle_B.cos(), angle_B.sin(), torch.zeros_like(angle_B), torch.ones_like(angle_B)
    turn_B33 = torch.stack([one, zero, zero, zero, cos, -sin, zero, sin, cos], dim=1).view(-1, 3, 3)
    matrix_B33 = images.new_tensor(np.linalg.inv(RGB_TO_YIQ)) @ turn_B33 @ images.new_tensor(RGB_TO_YIQ)
    return torch.einsum("bij,bjhw->bihw", matrix_B33, images).clamp_(0, 1)


def uniform(generator: np.random.RandomState, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Uniform float32 numbers in [0, 1), drawn on the CPU."""
    steps = np.floor(generator.random(shape) * 2**24)  # a plain cast could round up to 1, and 1 < 1 is never true
    return torch.from_numpy((steps / 2**24).astype(np.float32)).to(device)


def _symmetric(uniform_B: Tensor, limit: float) -> Tensor:
    return (2.0 * uniform_B - 1.0) * limit


def _blend(images: Tensor, other: Tensor, factor_B: Tensor) -> Tensor:
    factor = factor_B.view(-1, 1, 1, 1)
    return (factor * images + (1.0 - factor) * other).clamp_(0, 1)


def _where(fires_B: Tensor, changed: Tensor, images: Tensor) -> Tensor:
    return torch.where(fires_B.view(-1, 1, 1, 1), changed, images)
