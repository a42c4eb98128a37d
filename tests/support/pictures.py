"""A hospital's own pictures."""

import csv
from pathlib import Path

from PIL import Image

from fedproin.data.synthetic import CLASSES, draw_images, synthetic_manifest


def draw_pictures(folder: Path, images: int, seed: int) -> None:
    """A hospital's table and its pictures."""
    folder.mkdir()
    manifest = synthetic_manifest(images, seed)
    kinds = manifest.encode(CLASSES)
    pictures = draw_images(kinds, manifest.group, kinds * 0 + seed, 28, seed)
    with (folder / "table.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "label", "lesion"])
        for number, (picture, label, group) in enumerate(zip(pictures, manifest.label, manifest.group, strict=True)):
            Image.fromarray(picture).save(folder / f"{number}.png")
            table.writerow([f"{number}.png", label, group])
