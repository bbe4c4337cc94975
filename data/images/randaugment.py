"""RandAugment: some operations, drawn evenly and applied one after the other at one strength (arXiv 1909.13719). By Pillow.

The fourteen operations are the paper's (section 3), their ranges AutoAugment's (arXiv 1805.09501, table 6). The papers leave
open what a magnitude means for enhancements, which can weaken or strengthen; here it is the distance from 1, its sign drawn.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

GROUND = 128  # the grey that comes in from beyond a picture's edges

Operation = Callable[[Image.Image, float], Image.Image]  # strength 0 to 1; -1 to 1 for those that have a sign


def _affine(image: Image.Image, *coefficients: float) -> Image.Image:
    ground = GROUND if image.mode == "L" else (GROUND,) * 3
    return image.transform(image.size, Image.Transform.AFFINE, coefficients, fillcolor=ground)


def _rotate(image: Image.Image, strength: float) -> Image.Image:
    return image.rotate(30 * strength, fillcolor=GROUND if image.mode == "L" else (GROUND,) * 3)


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return lambda image, strength: kind(image).enhance(1 + 0.9 * strength)


SIGNED: dict[str, Operation] = {
    "shear_x": lambda image, s: _affine(image, 1, 0.3 * s, 0, 0, 1, 0),
    "shear_y": lambda image, s: _affine(image, 1, 0, 0, 0.3 * s, 1, 0),
    "translate_x": lambda image, s: _affine(image, 1, 0, 0.45 * s * image.width, 0, 1, 0),
    "translate_y": lambda image, s: _affine(image, 1, 0, 0, 0, 1, 0.45 * s * image.height),
    "rotate": _rotate,
    "colour": _enhance(ImageEnhance.Color),
    "contrast": _enhance(ImageEnhance.Contrast),
    "brightness": _enhance(ImageEnhance.Brightness),
    "sharpness": _enhance(ImageEnhance.Sharpness),
}
OPERATIONS: dict[str, Operation] = {
    "identity": lambda image, s: image,
    "autocontrast": lambda image, s: ImageOps.autocontrast(image),
    "equalize": lambda image, s: ImageOps.equalize(image),
    "solarize": lambda image, s: ImageOps.solarize(image, round(256 * (1 - s))),
    "posterize": lambda image, s: ImageOps.posterize(image, 8 - round(4 * s)),
    **SIGNED,
}
_NAMES = tuple(OPERATIONS)


def randaugment(image: Image.Image, rng: np.random.Generator, layers: int, magnitude: float) -> Image.Image:
    """Returns a picture of mode "L" or "RGB" after `layers` operations, each drawn from OPERATIONS.

    Args:
      magnitude: strength of all of them, 0 to 10; which way those of SIGNED go is drawn.
    """
    for _ in range(layers):
        name = _NAMES[rng.integers(len(_NAMES))]
        sign = 1 if name not in SIGNED or rng.random() < 0.5 else -1
        image = OPERATIONS[name](image, sign * magnitude / 10)
    return image
