"""What our own TFDS builders have in common: they read packages in the manual folder and note the packages' hashes."""

import contextlib
import io
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import tensorflow_datasets as tfds

from data import paths
from data.packages.fetch import Package


def package_hashes(packages: Iterable[Package], folder: Path) -> dict[str, str]:
    """SHA-256 by file of packages in `folder`; a builder puts them into its metadata as `packages`."""
    return {package.file: paths.sha256(folder / package.file) for package in packages}


def build(
    builder: type[tfds.core.GeneratorBasedBuilder],
    config: str,
    packages: Iterable[Package],
    *,
    manual_dir: Path,
    data_dir: Path,
) -> dict[str, str]:
    """Builds a data set as tfrecord (SeqIO reads no other format), unless it is there, made from the same packages.

    Args:
      builder: its class.
      config: the name of its configuration.
      packages: what it is made from.
      manual_dir: where the packages are.
      data_dir: TFDS's folder.

    Returns:
      SHA-256 by file of the packages.
    """
    hashes = package_hashes(packages, manual_dir)
    folder = data_dir / builder.name / config / str(builder.VERSION)
    metadata = folder / "metadata.json"
    if metadata.exists() and json.loads(metadata.read_text()).get("packages") == hashes:
        return hashes
    shutil.rmtree(folder, ignore_errors=True)
    tfds.disable_progress_bar()
    made = builder(config=config, data_dir=data_dir, file_format="tfrecord")
    with contextlib.redirect_stdout(io.StringIO()):  # its announcements; standard output is the command's own
        made.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir=manual_dir))
    return hashes
