"""Outputs as labels, tags and answers, scored by hand."""

import numpy as np
import pytest

from configs import registry
from data.kinds import task_of
from data.text_to_text.decoding import TextToTextDecoding
from tests.helpers.wordpiece import train_wordpiece
from trainers.evaluation.directions import lower_is_better


def decoding(vocabulary, task: str, form: str, labels: list[str], length: int = 48) -> TextToTextDecoding:
    return TextToTextDecoding({"task": task, "form": form, "labels": labels}, vocabulary, length)


def labelled(*labels: str) -> list[dict]:
    return [{"text": "", "label": label} for label in labels]


def test_an_output_that_is_no_label_is_wrong_and_counted(vocabulary):
    """Three of five are right; F1 of libs is 4/5, of games 2/3, of editors 0, and the invalid outputs are no class."""
    d = decoding(vocabulary, "debian_sections", "classification", ["editors", "games", "libs"])
    examples = labelled("libs", "libs", "games", "games", "editors")
    outputs = ["libs", "libs", "games", "game", "libs"]
    scores = d.scores(examples, outputs)["all"]
    assert scores == pytest.approx(
        {"accuracy": 3 / 5, "macro_f1": (4 / 5 + 2 / 3 + 0) / 3, "majority": 2 / 5, "invalid": 1 / 5, "examples": 5}
    )
    assert d.scores(examples, ["", "libs games", "LIBS", "x", "y"])["all"]["invalid"] == 1
    assert list(scores) == d.names


def test_of_two_classes_an_invalid_output_is_the_other_one(vocabulary):
    """As T5 scores MRPC: precision of "equivalent" is 1 of 2, its recall 1 of 2."""
    d = decoding(vocabulary, "glue_mrpc", "classification", ["not_equivalent", "equivalent"])
    examples = labelled("equivalent", "equivalent", "not_equivalent", "not_equivalent")
    scores = d.scores(examples, ["equivalent", "?", "not_equivalent", "?"])["all"]
    assert scores["f1"] == 0.5 and scores["accuracy"] == 0.5 and scores["invalid"] == 0.5
    cola = decoding(vocabulary, "glue_cola", "classification", ["unacceptable", "acceptable"])
    scores = cola.scores(labelled("acceptable", "unacceptable"), ["?", "?"])["all"]
    assert scores["matthews"] == -1 and scores["accuracy"] == 0


def test_tags_stand_in_the_order_of_the_words(vocabulary):
    """The first two of five words are right, one has another tag, one something that is no tag, and one nothing."""
    d = decoding(vocabulary, "brown_tags", "tagging", ["DET", "NOUN", "VERB"])
    examples = [
        {"words": ["the", "cat", "sat"], "tags": ["DET", "NOUN", "VERB"]},
        {"words": ["cats", "sat"], "tags": ["NOUN", "VERB"]},
    ]
    scores = d.scores(examples, ["DET NOUN NOUN VERB VERB", "WORD"])["all"]
    assert scores["accuracy"] == 2 / 5 and scores["invalid"] == 2 / 5 and scores["examples"] == 2
    assert scores["majority"] == 2 / 5  # two nouns, two verbs
    assert d.scores(examples, ["DET NOUN VERB", "NOUN VERB"])["all"]["accuracy"] == 1


def test_answers_are_scored_as_squad_does(vocabulary):
    """Articles, case and punctuation do not count; of words in common the F1 of the best answer does."""
    d = decoding(vocabulary, "squad", "span", [])
    examples = [{"question": "", "context": "", "answers": [{"text": "the cat", "start": 0}]}] * 3
    scores = d.scores(examples, ["Cat.", "cat sat", "dog"])["all"]
    assert scores == pytest.approx({"exact_match": 1 / 3, "f1": (1 + 2 / 3 + 0) / 3, "examples": 3})
    assert list(scores) == d.names


def test_inputs_are_read_with_their_end(vocabulary):
    """The end of text has id 0, and is told from padding by the segments; nothing beyond the vocabulary can be produced."""
    d = decoding(vocabulary, "debian_sections", "classification", ["libs"])
    row = d.encode({"text": "a"})
    size = len(d.encoder.ids("debian_sections text: a"))
    assert list(row) == list(d.source) and row["inputs"].shape == row["inputs_segments"].shape == (48,)
    assert row["inputs_segments"].sum() == size and row["inputs"][size - 1] == d.eos == 0 and row["inputs"].dtype == np.int32
    assert (d.vocab, d.pad) == (300, -1)
    assert d.encode({"text": "a" * 99})["inputs_segments"].all()
    assert d.decode([*d.encoder.ids("libs"), -1, -1]) == "libs"


def test_labels_are_known_by_what_the_vocabulary_makes_of_them(tmp_path):
    """A vocabulary that ignores case and sets marks apart still names the labels."""
    train_wordpiece(["not equivalent _"], tmp_path / "tokenizer.json", 30)
    d = decoding(tmp_path, "glue_mrpc", "classification", ["Not_Equivalent", "Equivalent"])
    output = d.decode(d.encoder.ids("Not_Equivalent"))
    assert output != "Not_Equivalent"
    scores = d.scores(labelled("Not_Equivalent", "Equivalent"), [output, "equivalent"])["all"]
    assert scores["accuracy"] == 1 and scores["invalid"] == 0


def test_every_score_has_a_direction():
    """More is better, except of invalid outputs."""
    directions = task_of(registry.load("t5.debian_sections_5k").data).directions
    assert lower_is_better("eval/invalid", directions)
    for name in ("accuracy", "macro_f1", "exact_match", "matthews", "f1"):
        assert not lower_is_better(f"eval/{name}", directions)
