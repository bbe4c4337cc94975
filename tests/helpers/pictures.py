"""Small pictures, as pixels, files and folders."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from data.images.caches import ImageCache
from data.prepare import prepare


def encoded(image: Image.Image | np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    """A picture as a file of a format that Pillow writes."""
    file = io.BytesIO()
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(file, kind, **options)
    return file.getvalue()


def smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Random colours that change slowly [H, W, 3], uint8: what JPEG and resizing hardly change."""
    corners = np.random.default_rng(seed).integers(0, 256, (2, 3, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(corners).resize((width, height), Image.Resampling.BICUBIC))


def write_folder(folder: Path, labels: dict[str, int], height: int = 12, width: int = 16, first: int = 0) -> Path:
    """Writes so many PNG files into a folder for each label; the n-th of all, from `first`, has n in the red of every pixel."""
    number = first
    for label, count in labels.items():
        (folder / label).mkdir(parents=True)
        for _ in range(count):
            pixels = smooth(height, width, number).copy()
            pixels[..., 0] = number
            (folder / label / f"{number:03d}.png").write_bytes(encoded(pixels))
            number += 1
    return folder


def write_picture_cache(root: Path, labels: dict[str, int], name: str = "toy", **settings: Any) -> Path:
    """Prepares a cache of the pictures of `write_folder` in a data folder."""
    made = ImageCache.from_source(str(write_folder(root / "pictures", labels)))
    assert made is not None
    fields = {"source": made.source, **settings}
    return prepare(name, ImageCache(**fields), data_dir=root, progress=lambda line: None)
