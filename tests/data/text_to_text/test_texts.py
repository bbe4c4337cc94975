"""Labelled examples as text: the texts to the letter, and their ids."""

import json
import shutil

import numpy as np
import pytest
import tokenizers as library

from data.labelled.sources import TASKS
from data.reading.tally import Tally
from data.task import DataError
from data.text_to_text import texts
from data.text_to_text.caches import ENTRIES, TextToTextCache
from data.vocabularies import tokenizers
from data.vocabularies.files import VocabularyError
from tests.helpers.rows import unpack

TAGGED = {"words": ["The", "cat", "sat", "."], "tags": ["DET", "NOUN", "VERB", "."]}
ANSWERS = [{"text": "the cat", "start": 0}, {"text": "cat", "start": 4}]
QUESTION = {"id": "q", "question": "who sat?", "context": "the cat sat", "answers": ANSWERS}


@pytest.mark.parametrize(
    ("name", "example", "inputs", "targets"),
    [
        ("debian_sections", {"text": "small editor", "label": "editors"}, "debian_sections text: small editor", "editors"),
        (
            "debian_descriptions",
            {"text": "small editor", "pair": "It edits.", "label": "editors"},
            "debian_descriptions text: small editor pair: It edits.",
            "editors",
        ),
        ("glue_cola", {"text": "He left.", "label": "acceptable"}, "cola sentence: He left.", "acceptable"),
        (
            "glue_mrpc",
            {"text": "He left.", "pair": "He went.", "label": "not_equivalent"},
            "mrpc sentence1: He left. sentence2: He went.",
            "not_equivalent",
        ),
        (
            "glue_mnli_mismatched",
            {"text": "He left.", "pair": "He ran.", "label": "neutral"},
            "mnli hypothesis: He ran. premise: He left.",
            "neutral",
        ),
        ("brown_tags", TAGGED, "brown_tags words: The cat sat .", "DET NOUN VERB ."),
        ("squad", QUESTION, "question: who sat? context: the cat sat", "the cat"),
    ],
)
def test_examples_are_written_as_t5_does(name, example, inputs, targets):
    """Inputs name the task and its fields, GLUE's in the order of their names; targets are labels, tags and the first answer.
    What is to be written is not read."""
    assert texts.pair_of(name, example) == (inputs, targets)
    unlabelled = {field: value for field, value in example.items() if field not in ("label", "tags", "answers")}
    assert texts.input_text(name, unlabelled) == inputs


@pytest.mark.parametrize("text", ["small editor", "DET NOUN VERB .", "not_equivalent", "Ü 漢字", ""])
def test_texts_come_back_from_their_ids(vocabulary, text):
    """An encoded text ends with the end of text; whatever follows it is no part of the text."""
    encoder = texts.Encoder(vocabulary)
    ids = encoder.ids(text)
    assert ids[-1] == encoder.eos == 0 and 0 not in ids[:-1]
    assert encoder.text([*ids, 65, -1, -1]) == text == encoder.seen(text)


def test_long_inputs_lose_their_end(vocabulary):
    """The last of the ids that are left is the end of text; short inputs stay as they are."""
    encoder = texts.Encoder(vocabulary)
    ids = encoder.ids("the cat sat on the mat")
    assert list(encoder.cut(ids, len(ids))) == ids
    assert list(encoder.cut(ids, 4)) == [*ids[:3], 0]


def test_sentinels_of_a_released_vocabulary_are_no_text(vocabulary, tmp_path):
    """Special ids at the end of a vocabulary are left out of the ids that an output may have, its end of text excepted."""
    tokenizer = library.Tokenizer.from_file(str(vocabulary / tokenizers.FILE))
    tokenizer.add_special_tokens(["<extra_id_1>", "<extra_id_0>"])
    tokenizer.save(str(tmp_path / tokenizers.FILE))
    assert tokenizer.get_vocab_size() == 302 and texts.Encoder(tmp_path).size == 300
    tokenizer.add_special_tokens(["</s>"])  # the first of the vocabulary's ends is still <|endoftext|>
    tokenizer.save(str(tmp_path / tokenizers.FILE))
    assert texts.Encoder(tmp_path).size == 300
    written = json.loads((tmp_path / tokenizers.FILE).read_text().replace("<|endoftext|>", "<pad>"))
    (tmp_path / tokenizers.FILE).write_text(json.dumps(written))
    assert texts.Encoder(tmp_path).eos == 302 and texts.Encoder(tmp_path).size == 303


def test_a_vocabulary_without_an_end_is_refused(vocabulary, tmp_path):
    shutil.copy(vocabulary / tokenizers.FILE, tmp_path)
    text = (tmp_path / tokenizers.FILE).read_text().replace("<|endoftext|>", "<pad>")
    (tmp_path / tokenizers.FILE).write_text(text)
    with pytest.raises(VocabularyError, match="its vocabulary has no end of text"):
        texts.Encoder(tmp_path)


def test_examples_are_packed_on_two_sides(vocabulary):
    """Several examples share a row, numbered alike on both sides, each beginning at position 0; inputs that are too long are
    cut, and examples whose targets are too long are dropped."""
    encoder, tally = texts.Encoder(vocabulary), Tally()
    examples = [{"text": text, "label": label} for text, label in [("a", "libs"), ("b" * 99, "games"), ("c", "long" * 9)]]
    lengths = (64, 16)
    (row,) = texts.packed("debian_sections", [*examples[:1], *examples[2:]], encoder, lengths, tally)
    assert (tally.examples, tally.left_out) == (1, 1)
    rows = list(texts.packed("debian_sections", [examples[0]] * 2, encoder, lengths, Tally()))
    pairs = [[encoder.text(side) for side in pair] for pair in unpack(rows[0], lengths)]
    assert len(rows) == 1 and pairs == [["debian_sections text: a", "libs"]] * 2
    segments, positions = rows[0][64:128], rows[0][128:192]
    assert set(segments) == {0, 1, 2} and np.flatnonzero(positions == 0)[1] == np.argmax(segments == 2)
    (row,) = texts.packed("debian_sections", [examples[1]], encoder, lengths, Tally())
    (inputs, _) = unpack(row, lengths)[0]
    assert len(inputs) == 64 and inputs[-1] == 0
    assert encoder.text(inputs).startswith("debian_sections text: bbbb")


def test_every_task_that_has_something_to_write_has_a_cache():
    """Pairs of similar texts have no label: they are refused in a line, as is a name that no task has."""
    written = {name for name, task in TASKS.items() if task.form != "pair"}
    assert {settings.task for settings in ENTRIES.values()} == written
    with pytest.raises(DataError, match=r"^task 'debian_similar' pairs similar texts and has no label to write"):
        TextToTextCache(task="debian_similar", tokenizer="t5_small")
    with pytest.raises(DataError, match=r"^no task 'debian_section'; did you mean 'debian_sections'\?$"):
        TextToTextCache(task="debian_section", tokenizer="t5_small")
