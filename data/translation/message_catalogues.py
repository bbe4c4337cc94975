"""The TFDS builder of message catalogues: other languages to English, one split for each language.

    message_catalogues/permissive:1.1.0    django, wagtail and django-cms, about 132,000 pairs of 96 languages
    message_catalogues/m4_iberian:1.1.0    those, homeassistant and OpenStack's, about 68,000 pairs of Spanish and Portuguese
    message_catalogues/m4_102:1.1.0        all packages of `data.translation.sources`, about 2.4 million pairs of 102 languages

The packages are fetched into the manual folder first (`data.packages.fetch.fetch`).
Splits are called `train_sw`, `validation_sw`, `test_sw`: who reads one language then reads its own files only.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import tensorflow as tf
import tensorflow_datasets as tfds

from data.packages.tfds import build_dataset, dataset_folder, package_hashes
from data.translation import corpus
from data.translation.catalogues import Pair
from data.translation.sources import CATALOGUES


class MessageCatalogues(tfds.core.GeneratorBasedBuilder):
    """Translations from free software's message catalogues."""

    VERSION = tfds.core.Version("1.1.0")  # change it whenever the same packages would give other examples
    RELEASE_NOTES: ClassVar = {"1.1.0": "No held-out pair has a source string of training."}
    MANUAL_DOWNLOAD_INSTRUCTIONS = "Run `python -m scripts.prepare_data`, which fetches the packages."
    BUILDER_CONFIGS: ClassVar = [
        tfds.core.BuilderConfig(name=name, description=f"The {name} set of packages.") for name in CATALOGUES
    ]

    def _info(self) -> tfds.core.DatasetInfo:
        # Not dataset_info_from_configs(), which requires README, TAGS and CITATIONS files in a package of its own.
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict({name: tfds.features.Text() for name in ("lang", "source", "target", "origin")}),
            supervised_keys=("source", "target"),
            metadata=tfds.core.MetadataDict(),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        config, metadata = self.builder_config, self.info.metadata
        assert config is not None and metadata is not None  # this builder always has both
        catalogue, folder = CATALOGUES[config.name], Path(dl_manager.manual_dir)
        metadata["packages"] = package_hashes(catalogue.packages, folder)
        splits = corpus.divide(catalogue, folder)
        return {
            f"{split}_{language}": self._generate_examples(pairs)
            for split, languages in splits.items()
            for language, pairs in sorted(languages.items())
        }

    def _generate_examples(self, pairs: list[Pair]) -> Iterator[tuple[str, dict[str, str]]]:
        for pair in pairs:
            # The key also fixes the order of examples on disk.
            key = hashlib.sha1("\0".join((pair.language, pair.source, pair.english)).encode()).hexdigest()
            yield key, dict(lang=pair.language, source=pair.source, target=pair.english, origin=pair.origin)


def build(catalogue: str, *, manual_dir: Path, data_dir: Path) -> dict[str, str]:
    """Builds the data set of a catalogue, see `data.packages.tfds.build_dataset`."""
    packages = CATALOGUES[catalogue].packages
    return build_dataset(MessageCatalogues, catalogue, packages, manual_dir=manual_dir, data_dir=data_dir)


def read_splits(catalogue: str, data_dir: Path, split: str) -> dict[str, list[tuple[str, str]]]:
    """Returns the (source, target) strings of a catalogue's splits `SPLIT_LANGUAGE`, e.g. `train_sw`, by language.

    Parses thousands of records at a time, which is 30 times faster than TFDS reading one by one.
    """
    name = MessageCatalogues.name
    folder = dataset_folder(f"{name}/{catalogue}:{MessageCatalogues.VERSION}", data_dir)
    files = sorted(map(str, folder.glob(f"{name}-{split}_*.tfrecord-*")))
    features = {name: tf.io.FixedLenFeature([], tf.string) for name in ("lang", "source", "target")}
    records = tf.data.TFRecordDataset(files).batch(4096)
    texts: dict[str, list[tuple[str, str]]] = {}
    for batch in records.map(lambda batch: tf.io.parse_example(batch, features)).as_numpy_iterator():
        for language, *pair in zip(batch["lang"], batch["source"], batch["target"], strict=True):
            texts.setdefault(language.decode(), []).append((pair[0].decode(), pair[1].decode()))
    return texts
