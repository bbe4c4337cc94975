"""Public sets by their TFDS names, in stand-ins that are stored under those names; these import TensorFlow."""

import json

import pytest

from data.labelled.caches import ENTRIES, LabelledCache
from data.labelled.sources import TASKS, PublicTask
from data.packages.tfds import NotPreparedError
from data.prepare import prepare
from data.reading.caches import examples as raw_examples
from data.reading.splits import subset
from tests.helpers.public_sets import store_public_sets

pytestmark = pytest.mark.integration

GLUE = sorted(name for name in TASKS if name.startswith("glue_"))


@pytest.fixture(scope="module")
def public(tiny):
    """The `tiny` data folder with stand-ins of GLUE and SQuAD."""
    store_public_sets(tiny)
    return tiny


@pytest.mark.parametrize("prepared", ["nothing", "a half"])
def test_a_data_set_that_is_not_prepared(tmp_path, prepared):
    """A data set that isn't there is refused at once, in a line that says how to prepare it."""
    from data.labelled import examples as labelled

    if prepared == "a half":
        (tmp_path / "glue/cola/incomplete.2.0.0").mkdir(parents=True)
    with pytest.raises(NotPreparedError, match=r"^glue/cola:2\.0\.0 is not prepared in .*; prepare it with TFDS"):
        next(labelled.raw_examples("glue_cola", "train", tmp_path))
    with pytest.raises(NotPreparedError, match=r"^labelled_text/spam:1\.2\.0 .* python -m scripts\.prepare_data$"):
        next(labelled.raw_examples("spam", "train", tmp_path))


@pytest.mark.parametrize("name", GLUE)
def test_glue_by_its_tfds_names(public, name):
    """Texts and label names of each task of GLUE are read; its validation is our test, the head of training ours."""
    from tensorflow_datasets.text.glue import Glue

    from data.labelled import examples as labelled

    task = TASKS[name]
    assert isinstance(task, PublicTask)
    (config,) = (c for c in Glue.BUILDER_CONFIGS if f"glue/{c.name}:{c.version}" == task.tfds_name)
    assert task.texts == tuple(config.text_features) and task.labels == tuple(config.label_classes or ())
    splits = {split: list(labelled.raw_examples(name, split, public / "tfds")) for split in ("train", "validation", "test")}
    sizes = {split: len(examples) for split, examples in splits.items()}
    assert sizes["train"] + sizes["validation"] == 100 and sizes["validation"] in (1, 5) and sizes["test"] == 4
    for split, examples in splits.items():
        origin = "train" if split != "test" else task.splits["test"]
        for example in examples:
            number = int(example["text"].split()[-1])
            texts = [f"{field} {origin} {number}" for field in task.texts]
            expected = dict(zip(("text", "pair"), texts, strict=False))
            assert example == {**expected, "label": task.labels[number % len(task.labels)]}


def test_squad_by_its_tfds_name(public):
    """A question comes with its context and all of its answers, each with where it starts."""
    from data.labelled import examples as labelled

    examples = {example["id"]: example for example in labelled.raw_examples("squad", "test", public / "tfds")}
    assert examples["validation1"] == {
        "id": "validation1",
        "question": "who sat?",
        "context": "The cat 1 sat on the mat 1",
        "answers": [{"text": "cat 1", "start": 4}, {"text": "the cat", "start": 0}],
    }
    assert len(examples) == 4 and len(examples["validation2"]["answers"]) == 1


@pytest.mark.parametrize("name", ["glue_mrpc", "squad"])
def test_a_cache_of_a_public_set(public, name):
    """A public set that TFDS has prepared becomes a cache with its examples in splits, without a package of its own."""
    from data.labelled import examples as labelled

    settings = LabelledCache(task=name, tokenizer="minilm_l6", length=16, slots=8)
    cache = prepare(f"tiny_{name}", settings, data_dir=public, progress=lambda line: None)
    manifest = json.loads((cache / "manifest.json").read_text())
    assert set(manifest["packages"]) == {"vocabulary.whl"} and manifest["labels"] == list(TASKS[name].labels)
    for split in ("validation", "test"):
        assert list(raw_examples(cache, split)) == list(labelled.raw_examples(name, split, public / "tfds"))
    trained = list(raw_examples(cache, "train"))
    assert trained == subset(labelled.raw_examples(name, "train", public / "tfds"))
    assert manifest["parts"]["all"]["examples"] == len(trained) and manifest["parts"]["all"]["rows"] > 0


def test_every_entry_has_its_task():
    """Every task has a named cache, and no other task has one."""
    assert {settings.task for settings in ENTRIES.values()} == set(TASKS)
