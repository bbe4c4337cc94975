"""Data sets in TFDS's folder: our own builders fill it from packages, readers ask for a prepared set by its name.

TensorFlow Datasets is imported where a data set is built, not with this module.
"""

import contextlib
import io
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

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
