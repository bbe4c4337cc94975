"""Picture files to pixels."""

import os
import warnings
import zlib

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from data import untrusted
from data.images.pictures import PictureError, check, cut_out, read
from tests.helpers.pictures import encoded, smooth


def whole(width: int, height: int) -> tuple[float, float, float, float]:
    return 0, 0, width, height


def pixels(data: bytes, channels: int, height: int, width: int) -> np.ndarray:
    return np.asarray(cut_out(data, channels, whole, height, width))


def test_a_picture_of_the_right_size_comes_as_it_is():
    """Colour and grey pixels of a lossless file are not changed; grey is widened to three equal channels."""
    colour = smooth(6, 9)
    grey = colour[..., 0]
    assert_array_equal(pixels(encoded(colour), 3, 6, 9), colour)
    assert_array_equal(pixels(encoded(grey), 1, 6, 9), grey)
    assert_array_equal(pixels(encoded(grey), 3, 6, 9), np.repeat(grey[..., None], 3, axis=-1))
    one_bit = Image.fromarray(grey > 128)
    assert_array_equal(pixels(encoded(one_bit), 1, 6, 9), np.where(grey > 128, 255, 0))


def test_transparent_parts_show_white():
    """A picture that is half transparent everywhere becomes half white; palettes and grey pictures may be transparent too."""
    colour = np.dstack([smooth(4, 4) // 2, np.full((4, 4, 1), 0, np.uint8)])
    assert_array_equal(pixels(encoded(colour), 3, 4, 4), np.full((4, 4, 3), 255))
    colour[..., 3] = 128
    assert np.abs(pixels(encoded(colour), 3, 4, 4).astype(int) - (255.0 + colour[..., :3]) / 2).max() <= 1
    grey = Image.fromarray(colour[..., 0]).convert("LA")
    grey.putalpha(0)
    assert_array_equal(pixels(encoded(grey), 1, 4, 4), np.full((4, 4), 255))
    palette = Image.fromarray(smooth(4, 4)).quantize(4)
    opaque = pixels(encoded(palette), 3, 4, 4)
    assert_array_equal(opaque, np.asarray(palette.convert("RGB")))
    index = int(np.asarray(palette)[0, 0])
    assert_array_equal(pixels(encoded(palette, transparency=index), 3, 4, 4)[0, 0], [255] * 3)


def test_a_turn_that_the_file_notes_is_made():
    """The box is chosen in the upright picture, and cut out of it."""
    upright = smooth(6, 10)
    for orientation, lying in ((6, np.rot90(upright)), (3, np.rot90(upright, 2)), (8, np.rot90(upright, -1))):
        exif = Image.Exif()
        exif[274] = orientation
        data = encoded(np.ascontiguousarray(lying), exif=exif)
        asked = []

        def left_half(width: int, height: int):
            asked.append((width, height))
            return 0, 0, width / 2, height

        assert_array_equal(np.asarray(cut_out(data, 3, left_half, 6, 5)), upright[:, :5])
        assert asked == [(10, 6)]


def test_a_turn_that_a_png_notes_behind_its_pixels_is_made():
    """The chunk eXIf may stand before or behind the pixels (PNG, third edition, section 5.6)."""
    upright = smooth(6, 10)
    exif = Image.Exif()
    exif[274] = 6
    data = encoded(np.ascontiguousarray(np.rot90(upright)), exif=exif)
    at = data.index(b"eXIf") - 4
    end = at + 12 + int.from_bytes(data[at : at + 4], "big")
    behind = data[:at] + data[end:-12] + data[at:end] + data[-12:]  # an IEND chunk has 12 bytes
    assert behind.index(b"eXIf") > behind.index(b"IDAT")
    assert_array_equal(pixels(behind, 3, 6, 10), upright)


def test_large_jpegs_are_decoded_coarsely():
    """A JPEG file that is decoded at a quarter of its size gives the pixels of the whole, nearly; the box stays in place."""
    data = encoded(smooth(160, 240), "JPEG", quality=95)

    def box(width: int, height: int):
        assert (width, height) == (240, 160)
        return 40, 24, 200, 152

    coarse = np.asarray(cut_out(data, 3, box, 32, 40)).astype(int)
    fine = np.asarray(Image.fromarray(smooth(160, 240)).resize((40, 32), Image.Resampling.BILINEAR, box=box(240, 160)))
    assert np.abs(coarse - fine).max() <= 6 and np.abs(coarse - fine).mean() < 1


def test_cmyk_and_first_frames():
    """Printers' colours are converted; of an animation the first picture is taken."""
    colour = Image.fromarray(smooth(8, 8))
    assert pixels(encoded(colour.convert("CMYK"), "JPEG"), 3, 8, 8).shape == (8, 8, 3)
    frames = [Image.new("RGB", (8, 8), name) for name in ("red", "blue")]
    animation = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert_array_equal(pixels(animation, 3, 8, 8)[0, 0], [255, 0, 0])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_file_that_is_cut_short_is_refused(kind):
    """Half a file cannot be decoded, in whatever format, though its header may, and then says how large it would be."""
    data = encoded(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8), kind)
    check(data, 3)
    size = "" if kind == "WEBP" else r" \(64 x 64 pixels\)"  # a decoder that gets the whole file at once
    with pytest.raises(PictureError, match=rf"^cannot be decoded{size}: "):
        check(data[: len(data) // 2], 3)


@pytest.mark.parametrize("content", [b"", b"no picture", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_picture_is_refused(content):
    """Text, nothing, a bare header, and formats whose decoders run programs."""
    with pytest.raises(PictureError, match=r"^cannot be decoded: "):
        check(content, 3)


def test_a_picture_of_too_many_pixels_is_refused_before_they_are_made(tmp_path):
    """A file of a few hundred bytes may say any size: the header decides, without a warning of the decoder's own."""
    content = bytearray(encoded(Image.new("RGBA", (1, 1))))
    content[16:24] = (13_300).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    with warnings.catch_warnings(), pytest.raises(PictureError, match=r"^has 176,890,000 pixels, more than 120,000,000$"):
        warnings.simplefilter("error")
        check(bytes(content), 3)
    with (tmp_path / "f.png").open("wb") as file:
        file.truncate(untrusted.PICTURE + 1)
    with pytest.raises(PictureError, match=r"f\.png has 480,000,001 bytes, more than 480,000,000$"):
        read(tmp_path / "f.png")
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(PictureError, match=r"pipe\.png is no regular file$"):
        read(tmp_path / "pipe.png")


def test_other_channels_are_refused():
    """Colour where grey is expected, and pixels of more than 8 bits, are named."""
    with pytest.raises(PictureError, match=r"^has 3 channels, expected 1$"):
        check(encoded(smooth(4, 4)), 1)
    with pytest.raises(PictureError, match=r"^has 4 channels, expected 1$"):
        check(encoded(Image.fromarray(smooth(8, 8)).convert("CMYK"), "JPEG"), 1)
    deep = encoded(np.arange(16, dtype=np.uint16).reshape(4, 4) * 4000)
    with pytest.raises(PictureError, match=r"^has pixels of mode 'I;16', expected 8 bits a channel$"):
        check(deep, 3)
