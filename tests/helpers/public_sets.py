"""Stand-ins of public data sets, stored under their TFDS names."""

from pathlib import Path

import numpy as np

from data.labelled.sources import TASKS


def store_public_sets(root: Path) -> None:
    """Stores GLUE's tasks and SQuAD in a data folder: 100 training examples, 4 for the test. Imports TensorFlow."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.question_answering.qa_utils import squadlike_features
    from tensorflow_datasets.text.glue import Glue

    def store(name: str, config: str, version: str, features, example, splits: list[str]) -> None:
        sizes = {split: 100 if split == "train" else 4 for split in splits}
        tfds.dataset_builders.store_as_tfds_dataset(
            name=name,
            config=config,
            version=version,
            data_dir=root / "tfds",
            features=features,
            split_datasets={split: [(n, example(split, n)) for n in range(size)] for split, size in sizes.items()},
        )

    for config in Glue.BUILDER_CONFIGS:
        if f"glue_{config.name}" not in TASKS:
            continue
        texts = list(config.text_features)

        def example(split: str, n: int) -> dict:
            return {**{text: f"{text} {split} {n}" for text in texts}, "label": n % len(labels), "idx": n}

        labels = config.label_classes or []
        features = {**{text: tfds.features.Text() for text in texts}, "label": tfds.features.ClassLabel(names=labels)}
        features = tfds.features.FeaturesDict({**features, "idx": np.int32})
        held_out = ["validation_matched", "validation_mismatched"] if config.name == "mnli" else ["validation"]
        store("glue", config.name, "2.0.0", features, example, ["train", *held_out])

    def question(split: str, n: int) -> dict:
        context = f"The cat {n} sat on the mat {n}"
        answers = {"text": [f"cat {n}", "the cat"][: 1 + n % 2], "answer_start": [4, 0][: 1 + n % 2]}
        return {"id": f"{split}{n}", "title": "", "context": context, "question": "who sat?", "answers": answers}

    store("squad", "v1.1", "3.0.0", squadlike_features(), question, ["train", "validation"])
