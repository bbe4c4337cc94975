"""Picture files to pixels: checked, decoded no finer than needed, cut and resized. By Pillow; no JAX, no TensorFlow."""

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from data import untrusted
from data.task import DataError
from models.errors import told

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels from the upper left corner
Choose = Callable[[int, int], Box]  # the box to cut out of a picture of this width and height

# Pillow knows more, of which some run other programs.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

_GREY = {"1": 1, "L": 1, "LA": 1}  # Pillow's modes of 8 bits a channel, and their channels beside transparency
_COLOUR = {"P": 3, "PA": 3, "RGB": 3, "RGBA": 3, "RGBX": 3, "YCbCr": 3, "CMYK": 4}

_ORIENTATION = 274  # the tag of EXIF
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_LYING = range(5, 9)  # orientations that exchange width and height

Image.MAX_IMAGE_PIXELS = None  # Pillow's own bound warns on several lines before it refuses


class PictureError(DataError):
    """A picture that cannot be decoded, or has other channels than the data; the message says which."""


def cut_out(encoded: bytes, channels: int, choose: Choose, height: int, width: int) -> Image.Image:
    """Returns a box of a picture, resized to height x width by area-weighted linear interpolation.

    Transparent parts show a white ground, a turn that the file notes (EXIF) is made, and of an animation the first picture is
    taken. A JPEG file is decoded at a half, a quarter or an eighth of its size where that is still as fine as the result.

    Args:
      encoded: the file's content.
      channels: 1, or 3, which grey pictures are widened to.
      choose: returns the box to cut out.

    Returns:
      A picture of mode "L" or "RGB".

    Raises:
      PictureError: the file cannot be decoded, is of colour where 1 channel is expected, or has pixels of more than 8 bits.
    """
    pixels = ""
    try:
        image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
        pixels = f" ({image.width:,} x {image.height:,} pixels)"
        untrusted.bounded(image.width * image.height, untrusted.PIXELS, "pixels", PictureError)
        if image.format == "PNG":
            image.load()  # it may note its turn behind the pixels
        turn = image.getexif().get(_ORIENTATION, 1) if "exif" in image.info else 1
        size = image.size[::-1] if turn in _LYING else image.size
        left, top, right, bottom = choose(*size)
        finer = min((right - left) / width, (bottom - top) / height)
        if finer >= 2:
            image.draft(None, (int(image.width / finer), int(image.height / finer)))
        image = _converted(image, channels)
        if turn in _TURNS:
            image = image.transpose(_TURNS[turn])
        x, y = image.width / size[0], image.height / size[1]
        box = (left * x, top * y, min(right * x, image.width), min(bottom * y, image.height))
        return image.resize((width, height), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
    except PictureError:
        raise
    except UnidentifiedImageError:
        raise PictureError(f"cannot be decoded: no {', '.join(_FORMATS)} file") from None
    # Decoders of broken files raise anything: OSError, SyntaxError, ValueError, struct.error.
    except Exception as error:
        raise PictureError(f"cannot be decoded{pixels}: {told(error)}") from None


def read(path: Path) -> bytes:
    """Returns the content of a picture file; raises PictureError where it is none, or larger than any picture."""
    return untrusted.read_bytes(path, PictureError, untrusted.PICTURE)


def check(encoded: bytes, channels: int) -> None:
    """Decodes a picture, as coarsely as its format allows; raises PictureError as `cut_out` does."""
    cut_out(encoded, channels, lambda width, height: (0, 0, width, height), 1, 1)


def described(encoded: bytes) -> str:
    """Returns the size and the form of a picture's file, for a person."""
    image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
    return f"a picture of {image.width} x {image.height} pixels, {image.mode} ({image.format}, {len(encoded):,} bytes)"


def content(encoded: bytes) -> str:
    """Returns a digest of a picture's pixels, the same for every file that shows them; of the file where it cannot be decoded."""
    try:
        image = _converted(Image.open(io.BytesIO(encoded), formats=_FORMATS), 3)
    except Exception:  # as in `cut_out`
        return hashlib.sha256(encoded).hexdigest()
    return hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest()


def _converted(image: Image.Image, channels: int) -> Image.Image:
    """Returns a picture's pixels as "L" or "RGB", over white where it is transparent."""
    known = _GREY if channels == 1 else _GREY | _COLOUR
    if image.mode not in known:
        if image.mode in _COLOUR:
            raise PictureError(f"has {_COLOUR[image.mode]} channels, expected {channels}")
        raise PictureError(f"has pixels of mode {image.mode!r}, expected 8 bits a channel")
    mode = "L" if channels == 1 else "RGB"
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        if image.mode != "RGBA":
            image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert(mode)
    return image if image.mode == mode else image.convert(mode)
