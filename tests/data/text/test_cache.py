"""The whole preparation of a text cache, on a tiny corpus; TensorFlow is imported when the first of these tests runs."""

import dataclasses
import json

import numpy as np
import pytest

from data.packages import fetch
from data.packages.tfds import NotPreparedError
from data.prepare import prepare
from data.text import corpus, encoding, pairs
from data.text import maker as text_cache
from data.text.caches import TextCache
from data.vocabularies import tokenizers
from data.vocabularies.tokenizers import Tokenizer
from tests.helpers.rows import read_rows, unpack
from tests.helpers.wordpiece import train_wordpiece

pytestmark = pytest.mark.integration
TINY = TextCache(corpus="english_small", tokenizer="bpe_300", length=24)


def quiet(line: str) -> None:
    """Progress that goes nowhere."""


@pytest.fixture(scope="module")
def cache(tiny_text):
    return prepare("tiny", TINY, data_dir=tiny_text, progress=quiet)


def manifest_of(cache):
    return json.loads((cache / "manifest.json").read_text())


def texts(tiny_text, split, origin=None):
    documents = corpus.divide("english_small", tiny_text / "packages")[split]
    return [d.text for d in documents if origin in (None, d.origin)]


def test_the_rows_hold_the_training_split(tiny_text, cache):
    """Each origin's file holds the chunks of its training documents, and the manifest counts them."""
    manifest, tokenizer = manifest_of(cache), Tokenizer(cache)
    assert manifest["kind"] == "text" and manifest["length"] == TINY.length
    assert set(manifest["parts"]) == {"letters", "notes"}
    for origin, counts in manifest["parts"].items():
        of_origin = texts(tiny_text, "train", origin)
        wanted = [tuple(c) for text in of_origin for c in encoding.chunks(text, tokenizer, TINY.length)]
        rows = list(read_rows(cache / "train" / f"{origin}.array_record"))
        chunks = [tuple(chunk) for row in rows for (chunk,) in unpack(row, (TINY.length,))]
        assert sorted(chunks) == sorted(wanted)
        assert counts == {
            "documents": len(of_origin),
            "bytes": sum(len(text.encode()) for text in of_origin),
            "examples": len(wanted),
            "rows": len(rows),
            "tokens": sum(map(len, wanted)),
            "dropped": 0,
        }


def test_held_out_documents_are_raw(tiny_text, cache):
    """The held-out files hold the splits' documents, one object a line; the manifest says how many bytes of text."""
    for split in ("validation", "test"):
        lines = [json.loads(line) for line in (cache / f"{split}.jsonl").open(encoding="utf-8")]
        assert sorted(line["text"] for line in lines) == sorted(texts(tiny_text, split))
        assert {line["origin"] for line in lines} == {"letters", "notes"}
        assert all(line.keys() == {"id", "origin", "text"} for line in lines)
        assert manifest_of(cache)["bytes"][split] == sum(len(line["text"].encode()) for line in lines)


def test_the_vocabulary_is_of_the_training_split(tiny_text, cache, tmp_path):
    """A cache's own vocabulary is what the training texts alone give."""
    by_id = sorted(corpus.divide("english_small", tiny_text / "packages")["train"])
    tokenizers.train_bpe([document.text for document in by_id], tmp_path / "tokenizer.json", 300)
    assert Tokenizer(cache).same_vocabulary(Tokenizer(tmp_path))
    assert manifest_of(cache)["vocabulary"] == 300


def test_preparing_again_does_no_work(tiny_text, cache, monkeypatch):
    """A cache that is up to date is returned as it is."""
    monkeypatch.setattr(text_cache.TextMaker, "build", None)  # would raise if called
    monkeypatch.setattr(fetch, "fetch", None)
    said: list[str] = []
    assert prepare("tiny", TINY, data_dir=tiny_text, progress=said.append) == cache
    assert len(said) == 1 and "up to date" in said[0]


def test_the_fingerprint_is_reproduced(tiny_text, cache):
    """The same package gives the same bytes under another name, the vocabulary included; another length doesn't."""
    again = prepare("again", TINY, data_dir=tiny_text, progress=quiet)
    assert manifest_of(again)["files"] == manifest_of(cache)["files"]
    assert manifest_of(again)["fingerprint"] == manifest_of(cache)["fingerprint"]
    other = prepare("again", dataclasses.replace(TINY, length=16), data_dir=tiny_text, progress=quiet)
    assert manifest_of(other)["fingerprint"] != manifest_of(cache)["fingerprint"]


def test_a_cache_of_pairs(tiny_text, monkeypatch):
    """A cache of pairs has rows with types, slots and targets; there are as many slots as the manifest says."""

    def write(name, package_dir, path):
        train_wordpiece(texts(tiny_text, "train"), path, 250)

    monkeypatch.setattr(text_cache.weights, "write_vocabulary", write)
    monkeypatch.setattr(text_cache.TextMaker, "packages", lambda _: ())
    settings = dataclasses.replace(TINY, tokenizer="minilm_l6", length=48, pairs=2)
    folder = prepare("pairs", settings, data_dir=tiny_text, progress=quiet)
    manifest, tokenizer = manifest_of(folder), Tokenizer(folder)
    assert manifest["pairs"] == 2
    rows = np.array(list(read_rows(folder / "train" / "letters.array_record")))
    assert rows.shape == (manifest["parts"]["letters"]["rows"], 4 * 48 + 2 * 2)
    targets = rows[:, -2:]
    assert (targets >= 0).sum() == manifest["parts"]["letters"]["examples"]
    slots = rows[:, -4:-2][targets >= 0]
    at = np.nonzero(targets >= 0)[0]
    assert np.all(rows[at, slots] == tokenizer.cls_id)
    some = list(pairs.examples(texts(tiny_text, "train", "letters"), tokenizer, 48, "letters"))
    assert abs(len(some) - len(at)) < 0.2 * len(at)  # in the data set's order other texts meet


def test_a_cache_of_a_public_set(tmp_path):
    """A public set that TFDS has prepared becomes a cache of one part, without packages."""
    import tensorflow_datasets as tfds

    splits = {"train": [(i, {"text": f"words {i} " * 20}) for i in range(30)], "test": [(0, {"text": "other words"})]}
    tfds.dataset_builders.store_as_tfds_dataset(
        name="lm1b",
        version="1.1.0",
        data_dir=tmp_path / "tfds",
        features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
        split_datasets=splits,
    )
    settings = dataclasses.replace(TINY, corpus="lm1b", tokenizer="bpe_270")
    folder = prepare("public", settings, data_dir=tmp_path, progress=quiet)
    ((origin, counts),) = manifest_of(folder)["parts"].items()
    rows = list(read_rows(folder / "train" / "lm1b.array_record"))
    assert origin == "lm1b" and counts["documents"] == 29 and counts["rows"] == len(rows) > 0
    assert [json.loads(line)["text"] for line in (folder / "test.jsonl").open()] == ["other words"]
    with pytest.raises(NotPreparedError, match="is not prepared"):
        prepare("c4", dataclasses.replace(settings, corpus="c4_en"), data_dir=tmp_path, progress=quiet)


def test_nothing_is_left_of_a_failure(tiny_text, cache):
    """A vocabulary that the text can't fill is refused, and leaves neither a cache nor a temporary folder behind."""
    too_large = dataclasses.replace(TINY, tokenizer="bpe_90000")
    with pytest.raises(ValueError, match="vocabulary of 90000 is too large"):
        prepare("failed", too_large, data_dir=tiny_text, progress=quiet)
    assert {path.name for path in (tiny_text / "caches").iterdir()} <= {"tiny", "again", "pairs"}
