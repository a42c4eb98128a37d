import io

import numpy as np
import pytest
import torch
from PIL import Image

from fedproin.data.transforms import ReadRGB, ResizeSquare, decode
from fedproin.errors import DataError


def encoded(image, kind="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def rgb(height=30, width=50):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_a_picture_stays_upright():
    """MONAI's default reader would return this one transposed."""
    pixels = rgb(30, 50)
    assert np.array_equal(ReadRGB()(encoded(Image.fromarray(pixels))), pixels)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        pytest.param(Image.new("L", (4, 3), 77), (77, 77, 77), id="grey"),
        pytest.param(Image.new("1", (4, 3), 1), (255, 255, 255), id="black and white"),
        pytest.param(Image.new("RGBA", (4, 3), (10, 20, 30, 0)), (10, 20, 30), id="transparency is dropped"),
        pytest.param(Image.new("RGB", (4, 3), (250, 5, 5)).quantize(4), (250, 5, 5), id="palette"),
        pytest.param(Image.fromarray(np.full((3, 4), 65535, np.uint16)), (255, 255, 255), id="16 bits, white"),
        pytest.param(Image.fromarray(np.full((3, 4), 257 * 100, np.uint16)), (100, 100, 100), id="16 bits, grey"),
    ],
)
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_every_kind_of_image_becomes_rgb(image, expected, kind):
    pixels = ReadRGB()(encoded(image, kind))
    assert pixels.shape == (3, 4, 3)
    assert (pixels == expected).all()


def test_cmyk_jpeg_becomes_rgb():
    assert ReadRGB()(encoded(Image.new("CMYK", (8, 8), (0, 0, 0, 0)), "JPEG")).min() > 250


def test_exif_orientation_is_applied():
    pixels = rgb(30, 50)
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned clockwise by a quarter
    assert np.array_equal(ReadRGB()(encoded(Image.fromarray(pixels), exif=exif)), np.rot90(pixels, -1))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"patient Jane Doe", id="no image"),
        pytest.param(encoded(Image.fromarray(rgb()))[:900], id="cut off"),
        pytest.param(encoded(Image.new("F", (4, 3), 0.5), "TIFF"), id="floating point"),
    ],
)
def test_a_broken_image_is_a_data_error_without_a_name(data):
    with pytest.raises(DataError, match=r"^An image cannot be read; run `fedproin data check`[^/]*$"):
        decode(28)(data)


def test_decode_gives_a_square_of_eight_bits():
    pixels = decode(28)(encoded(Image.fromarray(rgb(45, 60)), "JPEG"))
    assert pixels.shape == (28, 28, 3)
    assert pixels.dtype == np.uint8


def test_a_picture_of_the_right_size_is_not_touched():
    pixels = rgb(28, 28)
    assert ResizeSquare(28)(pixels) is pixels


@pytest.mark.parametrize("size", [28, 700])
def test_the_rim_does_not_darken(size):
    """MONAI's antialiased Resize turns the corner of this picture into 146."""
    assert (ResizeSquare(size)(np.full((450, 600, 3), 200, np.uint8)) == 200).all()


def test_halves_are_rounded_to_even():
    pixels = np.array([[0, 1], [0, 1]], np.uint8)[..., None].repeat(3, axis=2)
    assert (ResizeSquare(1)(pixels) == 0).all()
    assert (ResizeSquare(1)(pixels + 1) == 2).all()


def test_resize_is_torch_antialiased_bilinear():
    pixels = rgb(90, 120)
    reference = torch.nn.functional.interpolate(
        torch.from_numpy(pixels).permute(2, 0, 1)[None].double(), (32, 32), mode="bilinear", antialias=True
    )
    resized = torch.from_numpy(ResizeSquare(32)(pixels)).permute(2, 0, 1)
    assert (resized - reference[0]).abs().max() <= 0.5 + 1e-3
