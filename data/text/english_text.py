"""The TFDS builder of English text: documents with the splits train, validation and test.

    english_text/english_small:1.0.0     Brown, State of the Union, Moby Dick, conversations: 5.6 million words
    english_text/english_debian:1.0.0    a dictionary, package descriptions, the kernel's documents: 11.8 million words
    english_text/messages:1.0.0          messages of three programs in 96 languages

The packages are fetched into the manual folder first (`data.packages.fetch.fetch`).
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from data.packages.tfds import build_dataset, package_hashes
from data.text import corpus
from data.text.corpus import Document
from data.text.sources import CORPORA


class EnglishText(tfds.core.GeneratorBasedBuilder):
    """English text from packages, see `data.text.corpus`."""

    VERSION = tfds.core.Version("1.0.0")  # change it whenever the same packages would give other examples
    RELEASE_NOTES: ClassVar = {"1.0.0": "First release."}
    MANUAL_DOWNLOAD_INSTRUCTIONS = "Run `python -m scripts.prepare_data`, which fetches the packages."
    BUILDER_CONFIGS: ClassVar = [
        tfds.core.BuilderConfig(name=name, description=f"The {name} set of packages.") for name in CORPORA
    ]

    def _info(self) -> tfds.core.DatasetInfo:
        # Not dataset_info_from_configs(), which requires README, TAGS and CITATIONS files in a package of its own.
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict({name: tfds.features.Text() for name in ("id", "origin", "text")}),
            metadata=tfds.core.MetadataDict(),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        config, metadata = self.builder_config, self.info.metadata
        assert config is not None and metadata is not None  # this builder always has both
        folder = Path(dl_manager.manual_dir)
        packages = [source.package for source in CORPORA[config.name]]
        metadata["packages"] = package_hashes(packages, folder)
        splits = corpus.divide(config.name, folder)
        return {split: self._generate_examples(documents) for split, documents in splits.items()}

    def _generate_examples(self, documents: list[Document]) -> Iterator[tuple[str, dict[str, str]]]:
        for document in documents:
            # The key also fixes the order of examples on disk.
            key = hashlib.sha1(document.id.encode()).hexdigest()
            yield key, dict(id=document.id, origin=document.origin, text=document.text)


def build(name: str, *, manual_dir: Path, data_dir: Path) -> dict[str, str]:
    """Builds the data set of a corpus, see `data.packages.tfds.build_dataset`."""
    packages = [source.package for source in CORPORA[name]]
    return build_dataset(EnglishText, name, packages, manual_dir=manual_dir, data_dir=data_dir)
