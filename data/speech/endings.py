"""The end of a file of sound, read from the file itself, and another beginning for one that does not state it.

libsndfile reads what is there without a word; of an MP3 file that does not say its length it reads as much as it guesses; and of
several files that were joined it reads the first.
"""

import io
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

Ending = Literal["whole", "cut", "joined", "unknown"]
Content = bytes | mmap.mmap

_STEPS = 1 << 22  # frames, pages or chunks that are looked at: 24 hours of MP3 have fewer
_OGG_HEADER = 27  # bytes of a page before the table of its segments
_MORE = 4  # frames, a tenth of a second, that an MP3 file may have beyond what its first says

# MPEG's Layer III by version, 1, 2 and 2.5: samples a second, and kilobits a second by their number.
_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
_KILOBITS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_KILOBITS_2 = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)


class Headed(io.RawIOBase):
    """A file with another beginning.

    Args:
      head: in place of the first `skipped` bytes.
    """

    def __init__(self, file: Path | bytes, head: bytes, skipped: int):
        self._body: BinaryIO = io.BytesIO(file) if isinstance(file, bytes) else file.open("rb")
        self._head, self._moved, self._at = head, skipped - len(head), 0
        self._size = self._body.seek(0, io.SEEK_END) - self._moved

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: bytearray) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self._at < len(self._head):
            piece = self._head[self._at : self._at + len(buffer)]
        else:
            self._body.seek(self._at + self._moved)
            piece = self._body.read(len(buffer))
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def close(self) -> None:
        self._body.close()
        super().close()


def ending(file: Path | bytes, form: str) -> tuple[Ending, tuple[bytes, int] | None]:
    """Returns "cut" for a file that ends before its sound does, "joined" for one with more sound behind the end of the first,
    "unknown" where it does not say how long it is, and else "whole", as far as can be seen; and the `head` and `skipped` of
    `Headed` with which it is read to its end, where that takes another beginning.

    Args:
      form: libsndfile's name of its format.
    """
    if isinstance(file, bytes):
        return _ending(file, form)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return _ending(content, form)


def _ending(content: Content, form: str) -> tuple[Ending, tuple[bytes, int] | None]:
    if content[:4] == b"RIFF" and content[8:12] == b"WAVE":
        return _wav(content)
    if content[:4] == b"OggS":
        return _ogg(content), None
    return _mp3(content) if form == "MP3" else ("whole", None)


def _wav(content: Content) -> tuple[Ending, tuple[bytes, int] | None]:
    at = 12
    for _ in range(_STEPS):
        name, size = content[at : at + 4], int.from_bytes(content[at + 4 : at + 8], "little")
        at += 8
        if name == b"data":
            if not size and at < len(content):
                return "unknown", (content[: at - 4] + b"\xff" * 4, at)
            if at + size <= len(content):
                break
            # Programs that cannot go back to the header write nearly the greatest number of 31 or of 32 bits.
            return "unknown" if 0x7FFF_0000 <= size <= 0x8000_FFFF or size >= 0xFFFF_0000 else "cut", None
        if at > len(content):
            break
        at += size + size % 2
    return "whole", None


def _ogg(content: Content) -> Ending:
    begun, last, ends = False, 0, 0
    for _ in range(_STEPS):
        page = content.find(b"OggS", ends)
        head = content[page : page + _OGG_HEADER]
        if page < 0 or len(head) < _OGG_HEADER:
            break
        begins, segments = head[5] & 2, head[-1]
        if begins and begun:  # only at the beginning may the pages of several streams begin
            return "joined"
        begun = begun or not begins
        sizes = content[page + _OGG_HEADER : page + _OGG_HEADER + segments]
        last, ends = page, page + _OGG_HEADER + segments + sum(sizes)
    return "whole" if content[last + 5] & 4 and page < 0 and ends <= len(content) else "cut"


def _mp3(content: Content) -> tuple[Ending, tuple[bytes, int] | None]:
    first, stated, frames = b"", 0, 0
    for at, length in _frames(content):
        if at + length > len(content):
            return "cut", None
        if not frames:
            first = content[at : at + length]
            stated = _stated_frames(first)
        frames += 1
    if not stated:
        return "unknown", (_counting(first, frames), 0) if frames else None
    return "joined" if frames > 1 + stated + _MORE else "whole", None


def _frames(content: Content) -> Iterator[tuple[int, int]]:
    """Yields the place and the length of each frame."""
    at, lost = 0, False
    for _ in range(_STEPS):
        head = content[at : at + 10]
        length = _length(head)
        if length and not (lost and not _length(content[at + length : at + length + 4])):
            yield at, length
            at, lost = at + length, False
        elif head[:3] == b"ID3" and len(head) == 10:
            at += 10 + sum((byte & 127) << 7 * place for byte, place in zip(head[6:], (3, 2, 1, 0), strict=True))
        else:  # a tag of another kind, or damage: the next frame is one that a frame follows
            at, lost = content.find(b"\xff", at + 1), True
            if at < 0:
                return


def _length(head: bytes) -> int:
    """Returns the bytes of the frame that begins so; 0 where none does."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:  # the beginning of every frame, and Layer III
        return 0
    version, kilobits, rate = head[1] >> 3 & 3, head[2] >> 4, head[2] >> 2 & 3
    if version == 1 or kilobits in (0, 15) or rate == 3:
        return 0
    bits = (_KILOBITS if version == 3 else _KILOBITS_2)[kilobits - 1] * 1000
    return (144 if version == 3 else 72) * bits // _RATES[version][rate] + (head[2] >> 1 & 1)


def _stated_frames(frame: bytes) -> int:
    """Returns how many frames follow, as a first frame without sound says (Xing's header); 0 where it does not."""
    at = max(frame[:48].find(b"Xing"), frame[:48].find(b"Info"))
    return int.from_bytes(frame[at + 8 : at + 12], "big") if at > 0 and frame[at + 7] & 1 else 0


def _counting(frame: bytes, frames: int) -> bytes:
    """Returns a frame without sound that says how many follow, for a file that begins with this one."""
    new, mono = frame[1] >> 3 & 3 == 3, frame[3] >> 6 == 3
    head = bytes([0xFF, frame[1] | 1, 0x90 | frame[2] & 0x0C, frame[3]])  # 128 or 80 kilobits, no checksum, no padding
    side = (17 if mono else 32) if new else (9 if mono else 17)  # bytes about the sound
    return (head + bytes(side) + b"Info\0\0\0\1" + frames.to_bytes(4, "big")).ljust(_length(head), b"\0")
