"""Skin lesions that nobody has: pictures drawn by formula, so that a machine without data shows every curve.

The seven classes are those of HAM10000, with its long tail. What tells them apart under a dermatoscope is caricatured
in the table ``TRAITS``; every lesion leans towards a second class, so that the classes overlap and no model gets all
right. They are for trying the software and teach nothing about medicine.

Letters: N images, S side in pixels. Lengths are in half sides: the picture spans -1 to 1.
"""

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproin.data.manifest import Manifest

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
SHARE = (0.033, 0.051, 0.110, 0.0115, 0.111, 0.669, 0.014)  # of HAM10000
LEAST = 12  # images of a class, where there are enough images at all
PIXELS_AT_ONCE = 200_000  # so that one field of a chunk stays in the processor's cache

TRAITS = {  # akiec  bcc   bkl    df   mel    nv   vasc
    "radius": (0.52, 0.44, 0.52, 0.42, 0.58, 0.48, 0.36),
    "ragged": (0.24, 0.14, 0.12, 0.08, 0.30, 0.07, 0.08),  # irregular outline
    "edge": (0.16, 0.12, 0.04, 0.16, 0.07, 0.11, 0.05),  # width of the transition to skin
    "mottle": (0.09, 0.06, 0.12, 0.04, 0.28, 0.12, 0.06),  # uneven pigment
    "core_red": (0.78, 0.80, 0.57, 0.84, 0.29, 0.45, 0.56),
    "core_green": (0.47, 0.56, 0.39, 0.71, 0.18, 0.28, 0.12),
    "core_blue": (0.42, 0.54, 0.28, 0.65, 0.17, 0.20, 0.20),
    "rim_red": (0.82, 0.79, 0.64, 0.62, 0.47, 0.64, 0.74),
    "rim_green": (0.53, 0.54, 0.46, 0.42, 0.29, 0.44, 0.30),
    "rim_blue": (0.47, 0.50, 0.33, 0.33, 0.24, 0.33, 0.32),
    "network": (0.00, 0.00, 0.06, 0.32, 0.35, 0.50, 0.00),  # pigment network
    "vessels": (0.20, 0.75, 0.00, 0.06, 0.10, 0.00, 0.00),  # branching, red
    "veil": (0.00, 0.20, 0.00, 0.00, 0.60, 0.00, 0.10),  # blue-white
    "scale": (0.75, 0.15, 0.25, 0.00, 0.05, 0.00, 0.00),  # whitish crust
    "cysts": (0.00, 0.00, 0.70, 0.00, 0.00, 0.00, 0.00),  # milia-like, bright
    "lacunae": (0.00, 0.00, 0.00, 0.00, 0.00, 0.00, 0.85),  # round, dark red
    "globules": (0.00, 0.25, 0.15, 0.00, 0.60, 0.12, 0.00),  # dark brown or grey
}
GRIDS = {"outline": 7, "mottle": 6, "vessels": 9, "veil": 4, "crust": 22, "skin": 14}
DOTS = 9
HAIRS = 3
POSE = 9  # numbers for colours, position, size and class

SKIN = np.array([[0.90, 0.74, 0.67], [0.84, 0.64, 0.53], [0.70, 0.50, 0.39]], dtype=np.float32)  # fair to tan


def synthetic_manifest(count: int, seed: int, site: str | None = None) -> Manifest:
    """A table of `count` images with HAM10000's long tail, in lesions of one or two images.

    Args:
        count: number of images; from 1,000 on each class has at least 12.
        seed: of labels and groups.
        site: enters the column and the names, so that two sites never share a lesion.
    """
    rng = np.random.default_rng(seed)
    least = min(LEAST, count // (2 * len(CLASSES)))
    counts = np.maximum((np.array(SHARE) * count).astype(int), least)
    common = int(np.argmax(SHARE))
    counts[common] += count - counts.sum()
    label = np.repeat(np.arange(len(CLASSES)), counts)
    again = rng.random(count) < 0.35
    again[1:] &= ~again[:-1] & (label[1:] == label[:-1])
    again[:1] = False
    order = rng.permutation(count)
    prefix = f"{site or 'synthetic'}-{seed}"
    lesion = np.cumsum(~again)[order]
    return Manifest(
        root=Path("synthetic"),
        image=np.array([f"{prefix}-{index:06d}" for index in range(count)], dtype=np.str_),
        label=np.array(CLASSES, dtype=np.str_)[label[order]],
        group=np.array([f"{prefix}-lesion-{number:06d}" for number in lesion], dtype=np.str_),
        site=None if site is None else np.full(count, site),
    )


def draw_images(labels: Ints, groups: NDArray[np.str_], looks: Ints, size: int, seed: int) -> NDArray[np.uint8]:
    """Draw N pictures, uint8 ``[N, size, size, 3]``.

    Args:
        labels: positions in ``CLASSES``, ``[N]``.
        groups: lesion of each image, ``[N]``; images of one lesion look alike.
        looks: any number at least 0 that stands for a scanner, ``[N]``: skin tones that are seen there, white balance,
            vignetting, blur and noise.
        size: side in pixels.
        seed: another seed draws other lesions; a scanner keeps its look.
    """
    numbers = sum(side**2 for side in GRIDS.values()) + 3 * DOTS + POSE
    lesion = _normals([f"{seed} {group}" for group in groups], numbers)
    image = _normals([f"{seed} image {index} {group}" for index, group in enumerate(groups)], numbers + 4 * HAIRS)
    scanner = _normals([f"look {look}" for look in looks], 10)
    drawn = np.empty((len(labels), size, size, 3), dtype=np.uint8)
    step = max(1, PIXELS_AT_ONCE // size**2)
    for start in range(0, len(labels), step):
        rows = slice(start, start + step)
        noise = np.random.default_rng([seed, start])
        drawn[rows] = _Chunk(labels[rows], lesion[rows], image[rows], scanner[rows], size).draw(noise)
    return drawn


def _normals(names: list[str], count: int) -> Floats:
    """Standard normal numbers ``[N, count]`` that depend on the name only."""
    unique, inverse = np.unique(np.array(names, dtype=np.str_), return_inverse=True)
    drawn = np.empty((len(unique), count), dtype=np.float32)
    for row, name in enumerate(unique.tolist()):
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        np.random.default_rng(key).standard_normal(out=drawn[row], dtype=np.float32)
    return drawn[inverse]


class _Chunk:
    """Pictures on the easel, float32 ``[N, 3, S, S]``, with the fields ``[N, S, S]`` that they are painted with."""

    def __init__(self, labels: Ints, lesion: Floats, image: Floats, scanner: Floats, size: int) -> None:
        self.size, self.scanner = size, scanner
        numbers = lesion.shape[1]
        mixed = 0.96 * lesion + 0.28 * image[:, :numbers]
        ends = np.cumsum([side**2 for side in GRIDS.values()] + [3 * DOTS])
        *grids, dots, self.pose = np.split(mixed, ends, axis=1)
        self.field = {name: _smooth(grid, size) for name, grid in zip(GRIDS, grids, strict=True)}
        self.dots = dots.reshape(-1, 3, DOTS)
        self.hairs = image[:, numbers:].reshape(-1, 4, HAIRS)
        self.trait = _traits(labels, lesion[:, -1], lesion[:, -2])
        axis = ((np.arange(size, dtype=np.float32) + 0.5) / size * 2 - 1).astype(np.float32)
        self.x, self.y = axis[None, None, :], axis[None, :, None]

    def draw(self, noise: np.random.Generator) -> NDArray[np.uint8]:
        """Skin, lesion, what is in it, hair; then the scanner."""
        self.paint_skin()
        self.place_lesion()
        self.paint_pigment()
        self.paint_structures()
        self.paint_dots()
        self.paint_hairs()
        return self.scan(noise)

    def tint(self, red: float, green: float, blue: float, amount: Floats) -> None:
        """Move the picture towards a colour by `amount`, ``[N, S, S]`` in [0, 1]."""
        for channel, value in enumerate((red, green, blue)):
            plane = self.picture[:, channel]
            plane += amount * (value - plane)

    def paint_skin(self) -> None:
        tone = np.clip(0.7 + 0.5 * self.scanner[:, 0] + 0.2 * self.pose[:, 0], 0, 2)
        base = np.stack([np.interp(tone, [0, 1, 2], SKIN[:, channel]) for channel in range(3)], axis=1)
        texture = 1 + 0.02 * self.field["skin"] + 0.03 * self.field["veil"]
        self.picture = (base[:, :, None, None] * texture[:, None]).astype(np.float32)

    def place_lesion(self) -> None:
        """Own axes ``u, v`` of the lesion, its radial coordinate ``rho`` (1 at the outline) and its ``inside``."""
        shift_x, shift_y, turn, stretch, grow = (_column(self.pose[:, index]) for index in range(1, 6))
        x, y, turn = self.x - 0.1 * shift_x, self.y - 0.1 * shift_y, 3 * turn
        aspect = np.exp(0.14 * stretch)
        self.u = (x * np.cos(turn) + y * np.sin(turn)) * aspect
        self.v = (y * np.cos(turn) - x * np.sin(turn)) / aspect
        self.radius = self.trait["radius"] * np.exp(0.15 * grow)
        self.rho = np.sqrt(self.u**2 + self.v**2) / self.radius + self.trait["ragged"] * self.field["outline"]
        self.inside = _sigmoid((1 - self.rho) / self.trait["edge"])

    def paint_pigment(self) -> None:
        depth = np.clip(1.2 - self.rho, 0, 1)
        shade = np.clip(1 - self.trait["mottle"] * self.field["mottle"], 0.3, 1.7)
        for channel, colour in enumerate(("red", "green", "blue")):
            rim, core = self.trait[f"rim_{colour}"], self.trait[f"core_{colour}"]
            plane = self.picture[:, channel]
            plane += self.inside * ((rim + (core - rim) * depth) * shade - plane)

    def paint_structures(self) -> None:
        trait, field = self.trait, self.field
        u, v = 34 * self.u + field["outline"], 34 * self.v + field["mottle"]
        honeycomb = np.cos(u) + 2 * np.cos(0.5 * u) * np.cos(0.866 * v)  # three waves, at 60 degrees
        net = trait["network"] * _sigmoid(-3 * honeycomb) * np.clip(self.rho + 0.2, 0.3, 1)
        self.tint(0.20, 0.11, 0.08, self.inside * net)
        self.tint(0.50, 0.50, 0.58, self.inside * trait["veil"] * _sigmoid(5 * (field["veil"] - 0.9)))
        self.tint(0.70, 0.14, 0.17, self.inside * trait["vessels"] * np.exp(-((field["vessels"] / 0.2) ** 2)))
        self.tint(0.97, 0.91, 0.80, self.inside * trait["scale"] * np.clip(field["crust"] - 0.5, 0, 1))

    def paint_dots(self) -> None:
        """Dots of one lesion share their places; the class decides what they are."""
        squared = np.full_like(self.rho, np.inf)
        for across, along, wide in self.dots.transpose(2, 1, 0):
            apart = (self.u - _column(across) * 0.45 * self.radius) ** 2 + (
                self.v - _column(along) * 0.45 * self.radius
            ) ** 2
            np.minimum(squared, apart / np.exp(0.5 * _column(wide)), out=squared)
        within = np.clip(self.inside * 1.3 - 0.2, 0, 1)
        self.tint(0.36, 0.03, 0.13, within * self.trait["lacunae"] * _sigmoid((0.11 - np.sqrt(squared)) / 0.015))
        self.tint(0.97, 0.93, 0.80, within * self.trait["cysts"] * np.exp(-squared / 0.045**2))
        self.tint(0.13, 0.09, 0.11, within * self.trait["globules"] * np.exp(-squared / 0.05**2))

    def paint_hairs(self) -> None:
        width = max(0.016, 0.6 / self.size)
        for turn, place, bend, present in self.hairs.transpose(2, 1, 0):
            cos, sin = np.cos(3 * _column(turn)), np.sin(3 * _column(turn))
            along, across = self.x * cos + self.y * sin, self.y * cos - self.x * sin
            off = across - 0.6 * _column(place) - 0.25 * _column(bend) * along**2
            strength = 0.8 * min(1.0, 0.016 / width + 0.3) * (_column(present) > 0.8)
            self.tint(0.16, 0.11, 0.09, strength * np.exp(-((off / width) ** 2)))

    def scan(self, noise: np.random.Generator) -> NDArray[np.uint8]:
        """Light, vignette, white balance, blur and noise of each scanner, then eight bits."""
        light = [_column(column) for column in self.scanner.T]
        corner = (self.x**2 + self.y**2) ** 2 / 4
        shade = (1 - np.clip(0.3 + 0.25 * light[1], 0, 0.8) * corner) * (
            1 + 0.05 * (light[2] * self.x + light[3] * self.y)
        )
        gain = np.exp(0.05 * self.scanner[:, 4:7] + 0.04 * self.pose[:, 6:7])[:, :, None, None]
        sigma: Floats = np.abs(light[7]) * np.float32(0.03) + np.float32(0.4 / self.size)
        blur = _blur(sigma, self.x, self.y)[:, None]
        picture = blur @ (self.picture * gain * shade[:, None]) @ blur.transpose(0, 1, 3, 2)
        grain = noise.standard_normal(picture.shape, dtype=np.float32)
        picture += (0.012 + 0.01 * np.abs(light[8]))[:, None] * grain
        eight_bits: NDArray[np.uint8] = (picture.clip(0, 1) * 255).round().astype(np.uint8).transpose(0, 2, 3, 1)
        return eight_bits


def _traits(labels: Ints, second: Floats, lean: Floats) -> dict[str, Floats]:
    """The traits of each lesion ``[N, 1, 1]``: those of its class, leaning towards a second one."""
    weight = np.minimum(np.abs(lean) * 0.25, 0.55)
    other = (np.abs(second) * 1000).astype(int) % len(CLASSES)
    table = {name: np.array(row, dtype=np.float32) for name, row in TRAITS.items()}
    return {name: _column((1 - weight) * row[labels] + weight * row[other]) for name, row in table.items()}


def _column(values: Floats) -> Floats:
    return values.reshape(-1, 1, 1)


def _sigmoid(values: Floats) -> Floats:
    smooth: Floats = 0.5 + 0.5 * np.tanh(0.5 * values)
    return smooth


def _smooth(grid: Floats, size: int) -> Floats:
    """A random field ``[N, size, size]`` of unit variance from grids of white noise ``[N, side * side]``."""
    side = int(np.sqrt(grid.shape[1]))
    place = (np.arange(size) + 0.5) / size * (side - 1)
    weight = np.exp(-((place[:, None] - np.arange(side)) ** 2))
    weight = (weight / np.linalg.norm(weight, axis=1, keepdims=True)).astype(np.float32)
    field: Floats = weight @ grid.reshape(-1, side, side) @ weight.T
    return field


def _blur(sigma: Floats, x: Floats, y: Floats) -> Floats:
    """Gaussian smoothing of rows as matrices ``[N, S, S]``."""
    weight = np.exp(-0.5 * ((x - y) / sigma) ** 2)
    blur: Floats = weight / weight.sum(axis=2, keepdims=True)
    return blur
