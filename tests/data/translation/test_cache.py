"""The whole preparation, on a tiny catalogue; TensorFlow is imported when the first of these tests runs."""

import dataclasses
import json

import pytest

from data.packages import fetch
from data.prepare import prepare
from data.translation import catalogues, corpus
from data.translation.maker import TranslationMaker
from data.translation.sources import CATALOGUES
from data.vocabularies import sentencepiece
from data.vocabularies.sentencepiece import Vocabulary
from tests.helpers.catalogues import TINY
from tests.helpers.rows import read_rows, unpack

pytestmark = pytest.mark.integration

LENGTHS = TINY.source_length, TINY.target_length


def quiet(line: str) -> None:
    """Progress that goes nowhere."""


@pytest.fixture(scope="module")
def cache(tiny):
    return prepare("tiny", TINY, data_dir=tiny, progress=quiet)


def manifest_of(cache):
    return json.loads((cache / "manifest.json").read_text())


def training_texts(cache, language):
    """The decoded examples of a language's rows, with the first source id, the tag."""
    source, target = Vocabulary(cache / "source.model"), Vocabulary(cache / "target.model")
    for row in read_rows(cache / "train" / f"{language}.array_record"):
        for inputs, targets in unpack(row, LENGTHS):
            assert inputs[-1] == source.eos_id and targets[-1] == target.eos_id
            yield int(inputs[0]), source.decode(inputs), target.decode(targets)


def test_the_rows_hold_the_training_split(tiny, cache):
    """Each language's file holds its own training pairs under its own tag, all but those longer than a row."""
    splits = corpus.divide(CATALOGUES["permissive"], tiny / "packages")
    languages = manifest_of(cache)["languages"]
    assert set(languages) == set(splits["train"]) == {"sw", "br", "zh-Hant", "sr-Latn"}
    for language, tally in languages.items():
        texts = list(training_texts(cache, language))
        tag = Vocabulary(cache / "source.model").tag_id(language)
        assert {first for first, _, _ in texts} == {tag}
        pairs = {(pair.source, pair.english) for pair in splits["train"][language]}
        packed = {(source, target) for _, source, target in texts}
        assert packed <= pairs and len(packed) == len(texts) == tally["pairs"]
        assert tally["dropped"] == len(pairs) - len(packed) >= 1
        assert "Far too long by any measure" in {english for _, english in pairs - packed}


def test_a_catalogue_may_name_its_languages(tiny):
    """The languages that it names are kept, and no others; their pairs are those that they have among all."""
    pairs = catalogues.read(CATALOGUES["permissive"].sources, tiny / "packages")
    splits = corpus.divide(dataclasses.replace(CATALOGUES["permissive"], languages=("br", "sw")), tiny / "packages")
    assert splits["train"].keys() == {"br", "sw"}
    divided = {pair for languages in splits.values() for kept in languages.values() for pair in kept}
    assert divided <= {pair for pair in pairs if pair.language in ("br", "sw")}


def test_held_out_strings_are_raw(tiny, cache):
    """The held-out files hold the splits' strings, one object a line, and none of the training targets."""
    splits = corpus.divide(CATALOGUES["permissive"], tiny / "packages")
    trained = {target for language in splits["train"] for _, _, target in training_texts(cache, language)}
    for name in ("validation", "test"):
        lines = [json.loads(line) for line in (cache / f"{name}.jsonl").read_text().splitlines()]
        written = {(line["lang"], line["source"], line["target"]) for line in lines}
        assert written == {pair[1:] for pairs in splits[name].values() for pair in pairs}
        assert not trained & {line["target"] for line in lines}


def test_preparing_again_does_no_work(tiny, cache, monkeypatch):
    """A cache that is up to date is returned as it is: nothing is fetched, trained or written."""
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    monkeypatch.setattr(TranslationMaker, "build", None)  # would raise if called
    monkeypatch.setattr(fetch, "fetch", None)
    said = []
    assert prepare("tiny", TINY, data_dir=tiny, progress=said.append) == cache
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == before
    assert len(said) == 1 and "up to date" in said[0]


def test_the_fingerprint_is_reproduced(tiny, cache):
    """The same packages give the same bytes under another name, with vocabularies trained anew; other lengths don't."""
    for model in (tiny / "vocabularies").iterdir():
        model.unlink()
    again = prepare("again", TINY, data_dir=tiny, progress=quiet)
    assert manifest_of(again)["files"] == manifest_of(cache)["files"]
    assert manifest_of(again)["fingerprint"] == manifest_of(cache)["fingerprint"]
    shorter = dataclasses.replace(TINY, source_length=16)
    other = prepare("again", shorter, data_dir=tiny, progress=quiet)
    assert other == again and manifest_of(other)["fingerprint"] != manifest_of(cache)["fingerprint"]


def test_vocabularies_see_training_text_only(tiny, cache, monkeypatch):
    """No held-out line reaches the training of a vocabulary."""
    seen = {}
    monkeypatch.setattr(sentencepiece, "train", lambda lines, path, *, size, tags=(): seen.setdefault(size, set(lines)))
    from data.translation import message_catalogues

    settings = dataclasses.replace(TINY, source_vocabulary=401, target_vocabulary=402)
    pairs = message_catalogues.read_splits("permissive", tiny / "tfds", "train")
    TranslationMaker("x", settings, tiny)._train_vocabularies({"other": "packages"}, pairs)
    splits = corpus.divide(CATALOGUES["permissive"], tiny / "packages")
    for side, size in (("source", 401), ("english", 402)):
        trained = {getattr(pair, side) for pairs in splits["train"].values() for pair in pairs}
        held_out = {getattr(pair, side) for name in ("validation", "test") for pairs in splits[name].values() for pair in pairs}
        assert seen[size] and seen[size] <= trained and not seen[size] & held_out


def test_rows_are_what_seqio_makes_of_the_strings(tiny, cache):
    """The cache holds, token for token, what SeqIO's own tokenizer, tags and ends make of the data set's strings."""
    import seqio
    import tensorflow as tf

    from data.translation import message_catalogues

    sides = [seqio.SentencePieceVocabulary(str(cache / f"{side}.model")) for side in ("source", "target")]
    pairs = message_catalogues.read_splits("permissive", tiny / "tfds", "train")
    for language in ("br", "zh-Hant"):
        tag = Vocabulary(cache / "source.model").tag_id(language)
        texts = [[tf.constant(text) for text in pair] for pair in pairs[language]]
        encoded = [[tuple(side.encode_tf(x).numpy()) for side, x in zip(sides, pair, strict=True)] for pair in texts]
        examples = {((tag, *source, 1), (*target, 1)) for source, target in encoded}
        fitting = {e for e in examples if all(len(side) <= length for side, length in zip(e, LENGTHS, strict=True))}
        rows = read_rows(cache / "train" / f"{language}.array_record")
        packed = {tuple(tuple(side) for side in example) for row in rows for example in unpack(row, LENGTHS)}
        assert packed == fitting


@pytest.mark.parametrize("prepared", ["nothing", "a half"])
def test_a_data_set_that_is_not_prepared(tmp_path, prepared):
    """Strings of a data set that isn't there are refused in a line that says how to prepare it."""
    from data.packages.tfds import NotPreparedError
    from data.translation import message_catalogues

    if prepared == "a half":
        (tmp_path / "message_catalogues/permissive/incomplete.1.1.0").mkdir(parents=True)
    with pytest.raises(NotPreparedError, match=r"not prepared in .*; .* python -m scripts.prepare_data$"):
        message_catalogues.read_splits("permissive", tmp_path, "train")


def test_nothing_is_left_of_a_failure(tiny, cache):
    """A preparation that fails leaves neither a cache nor a temporary folder behind."""
    too_large = dataclasses.replace(TINY, target_vocabulary=9000)
    with pytest.raises(ValueError, match="vocabulary of 9000 is too large"):
        prepare("failed", too_large, data_dir=tiny, progress=quiet)
    assert {path.name for path in (tiny / "caches").iterdir()} <= {"tiny", "again"}
