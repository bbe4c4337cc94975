"""Data sets in TFDS's folder: our own builders fill it from packages, readers ask for a prepared set by its name.

TensorFlow Datasets is imported where a data set is built, not with this module.
"""

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data import paths
from data.packages.fetch import Package

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

_OWN = ("message_catalogues", "english_text", "labelled_text")  # data sets that this project builds


class NotPreparedError(FileNotFoundError):
    """A data set is missing from TFDS's folder; TFDS itself would try the network for minutes."""


def dataset_folder(name: str, data_dir: Path) -> Path:
    """Returns the prepared folder of a TFDS name like `wmt_t2t_translate/de-en:1.0.0`.

    Raises:
      NotPreparedError: it is not there, or not complete.
    """
    folder = data_dir / name.replace(":", "/")
    if not (folder / "dataset_info.json").exists():
        own = name.startswith(tuple(f"{data_set}/" for data_set in _OWN))
        how = "python -m scripts.prepare_data" if own else "TFDS (see its manual download instructions)"
        raise NotPreparedError(f"{name} is not prepared in {data_dir}; prepare it with {how}")
    return folder


@functools.cache
def open_builder(folder: Path) -> "tfds.core.DatasetBuilder":
    """Returns the builder of a prepared folder."""
    import tensorflow_datasets as tfds

    return tfds.builder_from_directory(folder)


@dataclasses.dataclass(frozen=True)
class Part:
    """The examples of a part of a prepared data set, in the order of its files, each time that it is iterated.

    It is plain data, which another process can use.

    Attributes:
      folder: the data set's.
      split: what TFDS calls it, such as "train[1%:]" or "train_clean+train_other".
      encoded: the feature that is left as it is stored, if there is one.
    """

    folder: Path
    split: str
    encoded: str = ""

    @functools.cached_property
    def _pieces(self) -> list[tuple[str, int, int]]:
        """Returns (a split of the set's own, the first example, the one after the last), in order."""
        import tensorflow_datasets as tfds

        splits = open_builder(self.folder).info.splits
        pieces = tfds.core.ReadInstruction.from_spec(self.split).to_absolute(splits)
        sizes = {name: info.num_examples for name, info in splits.items()}
        return [(p.splitname, p.from_ or 0, sizes[p.splitname] if p.to is None else p.to) for p in pieces]

    def __len__(self) -> int:
        return sum(end - begin for _, begin, end in self._pieces)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.slice(0, len(self))

    def slice(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yields the examples from one index to another, as NumPy values."""
        import tensorflow_datasets as tfds

        builder: Any = open_builder(self.folder)
        decoders = {self.encoded: tfds.decode.SkipDecoding()} if self.encoded else None
        in_order = tfds.ReadConfig(interleave_cycle_length=1)  # several files at a time would mix their examples
        for name, begin, end in self._pieces:
            size = end - begin
            low, high = max(start, 0), min(stop, size)
            if low < high:
                read = builder.as_dataset(split=f"{name}[{begin + low}:{begin + high}]", decoders=decoders, read_config=in_order)
                yield from read.as_numpy_iterator()
            start, stop = start - size, stop - size


@dataclasses.dataclass(frozen=True)
class Mapped:
    """A part whose examples are made into something else: plain data, too, if the function is.

    Attributes:
      make: called with an example's number in the part, and the example.
    """

    part: Part
    make: Callable[[int, dict[str, Any]], Any]

    def __len__(self) -> int:
        return len(self.part)

    def __iter__(self) -> Iterator[Any]:
        return self.slice(0, len(self))

    def slice(self, start: int, stop: int) -> Iterator[Any]:
        return itertools.starmap(self.make, enumerate(self.part.slice(start, stop), start))


def package_hashes(packages: Iterable[Package], folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of packages in `folder` by file; a builder puts them into its metadata as `packages`."""
    return {package.file: paths.sha256(folder / package.file) for package in packages}


def build_dataset(
    builder: "type[tfds.core.GeneratorBasedBuilder]",
    config: str,
    packages: Iterable[Package],
    *,
    manual_dir: Path,
    data_dir: Path,
) -> dict[str, str]:
    """Builds a data set as tfrecord (SeqIO reads no other format), unless it has been built from the same packages.

    Args:
      builder: its class.
      config: the name of its configuration.
      packages: the packages that it is made from.
      manual_dir: the packages' folder.
      data_dir: TFDS's folder.

    Returns:
      The packages' SHA-256 by file.
    """
    import tensorflow_datasets as tfds

    hashes = package_hashes(packages, manual_dir)
    folder = data_dir / builder.name / config / str(builder.VERSION)
    metadata = folder / "metadata.json"
    if metadata.exists() and json.loads(metadata.read_text()).get("packages") == hashes:
        return hashes
    shutil.rmtree(folder, ignore_errors=True)
    tfds.disable_progress_bar()
    dataset_builder = builder(config=config, data_dir=data_dir, file_format="tfrecord")
    with contextlib.redirect_stdout(io.StringIO()):  # its announcements; standard output is the command's own
        dataset_builder.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir=manual_dir))
    return hashes
