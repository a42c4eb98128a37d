"""From the bytes of an image file to a square RGB picture of eight bits, as MONAI transforms.

Two traps of MONAI's stock transforms are avoided here, each pinned by a test. Its default reader returns PNG and JPEG
files transposed, and it takes paths only, while our images may lie in a zip: so Pillow opens the bytes. Its ``Resize``
smooths against an edge of zeros before it shrinks (MONAI 1.6: a constant 200 comes out as 146 in the corner), which
darkens the rim of every picture: so PyTorch's antialiased interpolation is used, as torchvision's ``Resize`` does.
"""

import io
from collections.abc import Callable

import numpy as np
import torch
from monai.transforms import Transform
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedproin.data.manifest import LARGEST_PICTURE
from fedproin.errors import DataError

UNREADABLE = "An image cannot be read; run `fedproin data check` on this machine for its name."


class ReadRGB(Transform):
    """Bytes of an image file to uint8 ``[H, W, 3]``, upright as an image viewer shows it.

    The EXIF orientation is applied: a hospital that strips it has turned the pixels instead. Grey, palette and CMYK
    images become RGB; transparency is dropped; 16-bit grey keeps its full scale (65535 becomes 255); of several pages
    the first is read.
    """

    def __call__(self, data: bytes) -> NDArray[np.uint8]:
        """Read one image.

        Raises:
            DataError: the bytes are no image that has a defined white, or a huge one; the message names no file.
        """
        try:
            with Image.open(io.BytesIO(data)) as image:
                if image.width * image.height > LARGEST_PICTURE:
                    raise ValueError("a picture has too many pixels")
                return np.asarray(_to_rgb(ImageOps.exif_transpose(image)))
        except Exception as error:  # Pillow's decoders raise whatever a broken file leads them to
            raise DataError(UNREADABLE) from error


class ResizeSquare(Transform):
    """uint8 ``[H, W, 3]`` to uint8 ``[size, size, 3]``: bilinear, antialiased, the aspect ratio is not kept.

    Values are rounded half to even and clipped; a picture that already has the size is returned as it is.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Resize one picture."""
        if image.shape[:2] == (self.size, self.size):
            return image
        channels_first = torch.tensor(image, dtype=torch.float32).permute(2, 0, 1).unsqueeze(0)
        resized = torch.nn.functional.interpolate(
            channels_first, (self.size, self.size), mode="bilinear", antialias=True, align_corners=False
        )
        rounded: NDArray[np.uint8] = resized[0].round().clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()
        return rounded


def decode(size: int) -> Callable[[bytes], NDArray[np.uint8]]:
    """Return a function from the bytes of an image file to uint8 ``[size, size, 3]``.

    It raises DataError, without a name, for bytes that are no image. The two steps are called directly because MONAI's
    ``Compose`` would hide that behind a RuntimeError.
    """
    read, resize = ReadRGB(), ResizeSquare(size)
    return lambda data: resize(read(data))


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("a picture of floating-point numbers has no defined white")
    if image.mode.startswith("I"):  # 16-bit grey; Pillow's own conversion would clip at 255
        return Image.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8)).convert("RGB")
    return image.convert("RGB")
