"""Seeded mutations of files: of their bytes, of JSON by its structure, and of what kind of file they are."""

import copy
import functools
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

Files = dict[str, "bytes | Place"]
"""A folder's files by name: their content, or what stands in their place."""
Place = Callable[[Path], None]  # makes something at a path that is no regular file
Mutate = Callable[[Files, random.Random], None]  # changes some files in place


def link(target: str) -> Place:
    return lambda path: path.symlink_to(target)


PLACES: tuple[Place, ...] = (os.mkfifo, Path.mkdir, link("/dev/zero"), link("missing"), link("."))
_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_MOST_GROWTH = 1 << 16
_TEXTS = (
    "",
    "x" * 3000,
    "../../x",
    "/dev/zero",
    "/etc/passwd",
    "a/b",
    ".",
    "..",
    "\0",
    "\ud800",
    "\u202e",
    "a\nb",
    "{layer}",
    "%s",
    "NaN",
    "F64",
    "I8",
    "float16",
)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    3,
    2**31,
    2**63,
    10**9,
    10**400,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    [],
    {},
    [[]],
    [None],
    {"a": 1},
    [0] * 5000,
)


def of_bytes(content: bytes, rng: random.Random) -> bytes:
    """Returns a content with flipped bits, cut, grown, with a piece copied or lost, or with a number overwritten."""
    data, size = bytearray(content), len(content)
    at = rng.randrange(size + 1)
    match rng.randrange(8):
        case 0 | 1 if size:
            for _ in range(rng.choice((1, 1, 1, 2, 8, 64))):
                data[rng.randrange(size)] ^= 1 << rng.randrange(8)
        case 2:
            del data[at:]
        case 3:
            data[at:at] = rng.randbytes(rng.choice((1, 2, 7, 64, 4096)))
        case 4:
            data[at:at] = bytes([rng.choice((0, 0x20, 0x5B, 0xFF))]) * rng.choice((1, 100, _MOST_GROWTH))
        case 5:
            data[at:at] = data[rng.randrange(size + 1) :][: rng.choice((4, 100, _MOST_GROWTH))]
        case 6:
            del data[at : at + rng.choice((1, 2, 8, 100))]
        case _:
            width = rng.choice((1, 2, 4, 8))
            number = rng.choice(_NUMBERS) & ((1 << 8 * width) - 1)
            data[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))
    return bytes(data)


def of_json(content: bytes, rng: random.Random) -> bytes:
    """Returns JSON text with one or a few values replaced, removed, renamed, doubled or nested deeply."""
    value = json.loads(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = _edited(value, rng)
    text = json.dumps(value).encode()
    if rng.randrange(20) == 0:
        depth = rng.choice((100, 5000, 200_000))
        text = text.replace(b":", b":" + b"[" * depth + b"]" * depth + b",", 1) if rng.randrange(2) else b"[" * depth
    if rng.randrange(20) == 0 and text.startswith(b'{"'):  # a key twice
        text = b"{" + text[1:].partition(b",")[0].rstrip(b"}") + b"," + text[1:]
    return text


def _edited(value: Any, rng: random.Random) -> Any:
    """Returns a JSON value with an edit somewhere in it."""
    if isinstance(value, (dict, list)) and value and rng.randrange(8):
        place = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if rng.randrange(3):
            value[place] = _edited(value[place], rng)
            return value
        moved = value.pop(place)
        match rng.randrange(4):
            case 0 if isinstance(value, dict):
                value[rng.choice((*_TEXTS, str(place) + "x"))] = moved
            case 1 if isinstance(value, list):
                value += [copy.deepcopy(moved) for _ in range(rng.choice((2, 100)))]
            case 2 if value:
                other = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
                value[other] = moved
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 and rng.randrange(2):
        return rng.choice((value + 1, value - 1, -value, value * 2, value * 10**6, value << 40, float(value), str(value)))
    if isinstance(value, str) and rng.randrange(2):
        return rng.choice((value[:-1], value + "x", value.upper(), [value], *_TEXTS))
    return copy.deepcopy(rng.choice(_VALUES + _TEXTS))


def mutated(name: str, content: bytes, rng: random.Random) -> "bytes | Place":
    """Returns what a file is mutated to: JSON mostly by its structure, and now and then something else than a file."""
    if rng.randrange(100) == 0:
        return rng.choice(PLACES)
    if name.endswith(".json") and rng.randrange(4):
        return of_json(content, rng)
    return of_bytes(content, rng)


def of(*names: str) -> Mutate:
    """Returns the mutation of one of these files; of any, where none is named."""
    return functools.partial(_of, names)


def _of(names: tuple[str, ...], files: Files, rng: random.Random) -> None:
    name = rng.choice(names or sorted(files))
    content = files[name]
    assert isinstance(content, bytes)
    if rng.randrange(200) == 0:
        del files[name]
    else:
        files[name] = mutated(name, content, rng)
