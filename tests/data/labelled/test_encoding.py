import random
from typing import Any

import numpy as np
import pytest

from data.labelled import encoding
from data.labelled.config import LabelledData
from data.labelled.encoding import Encoder
from data.reading.examples import unpack
from data.reading.tally import Tally
from data.vocabularies.tokenizers import Tokenizer
from tests.helpers.labelled_packages import PIECES
from tests.helpers.masked_vocabularies import train_roberta

LABELS = ("no", "yes")
WORDS = ["the", "cat", "cats", "sat", "on", "mat"]


def test_a_text_and_two(tokenizer):
    """A text stands between [CLS] and [SEP], a second one with type 1 before another [SEP]; the class is at [CLS], and
    so is each of several."""
    encode = Encoder(tokenizer, "classification", 16, 4, LABELS)
    (one,) = encode({"text": "The cats sat.", "label": "yes"})
    assert (one.tokens.tolist(), one.types.tolist()) == ([2, 5, 6, 7, 8, 13, 3], [0] * 7)
    assert (one.slots.tolist(), one.targets.tolist()) == ([0], [1])
    (two,) = encode({"text": "cats", "pair": "the mat", "label": "no"})
    assert (two.tokens.tolist(), two.types.tolist()) == ([2, 6, 7, 3, 5, 10, 3], [0, 0, 0, 0, 1, 1, 1])
    assert two.targets.tolist() == [0]
    (several,) = encode({"text": "cats", "label": ["yes", "yes", "no"]})
    assert (several.slots.tolist(), several.targets.tolist()) == ([0, 0, 0], [1, 1, 0])


def test_two_texts_as_roberta_has_them(tmp_path):
    """<s> text </s></s> pair </s>: what is too long gives way to both separators, and a question's context follows them."""
    train_roberta(["the cat sat on the mat"], tmp_path / "tokenizer.json", 262)
    tokenizer = Tokenizer(tmp_path)
    pair = {"text": "cat", "pair": "mat", "label": "no"}
    (two,) = Encoder(tokenizer, "classification", 20, 4, LABELS)(pair)
    assert two.tokens.tolist() == [0, *tokenizer.encode("cat"), 2, 2, *tokenizer.encode("mat"), 2]
    (cut,) = Encoder(tokenizer, "classification", 6, 4, LABELS)(pair)
    assert cut.tokens.tolist() == [0, tokenizer.encode("cat")[0], 2, 2, tokenizer.encode("mat")[0], 2]
    (window,) = Encoder(tokenizer, "span", 60, 4)(QUESTION)
    head = [0, *tokenizer.encode(QUESTION["question"]), 2, 2]
    assert window.tokens.tolist() == [*head, *tokenizer.encode(QUESTION["context"]), 2]


@pytest.mark.parametrize(
    "lengths, kept",
    [((3,), (3,)), ((9,), (6,)), ((2, 3), (2, 3)), ((9, 2), (3, 2)), ((1, 9), (1, 4)), ((4, 3), (3, 2)), ((9, 9), (3, 2))],
)
def test_too_long_texts_lose_their_end(tokenizer, lengths, kept):
    """One text keeps 6 of 8 tokens; of the 5 for two texts the longer one gives way, until both are equal."""
    tally = Tally()
    letters = [*"abcdefabc"]
    example = {side: " ".join(letters[:n]) for side, n in zip(("text", "pair"), lengths, strict=False)}
    (encoded,) = Encoder(tokenizer, "classification", 8, 1, LABELS, tally)(example)
    expected = [tokenizer.encode(" ".join(letters[:n])) for n in kept]
    assert encoded.tokens.tolist() == [2, *expected[0], 3, *(expected[1] + [3] if len(kept) == 2 else [])]
    assert tally.cut == (kept != lengths)


def test_a_tag_is_at_its_words_first_piece(tokenizer):
    """Every word has a slot at its first piece, also a word of several pieces and one that gives none."""
    (encoded,) = Encoder(tokenizer, "tagging", 9, 8, LABELS)({"words": ["cats", "\u200b", "sat"], "tags": ["yes", "no", "yes"]})
    assert encoded.tokens.tolist() == [2, 6, 7, 1, 8, 3]
    assert (encoded.slots.tolist(), encoded.targets.tolist()) == ([1, 3, 4], [1, 0, 1])


@pytest.mark.parametrize("length, slots, words", [(9, 8, 5), (6, 8, 3), (5, 8, 2), (9, 2, 2)])
def test_a_long_sentence_loses_words(tokenizer, length, slots, words):
    """Words that don't fit into the row with all their pieces, or that find no slot, are cut, and that is counted."""
    tally = Tally()
    example = {"words": ["cats", "sat", "on", "the", "mat"], "tags": ["yes"] * 5}
    (encoded,) = Encoder(tokenizer, "tagging", length, slots, LABELS, tally)(example)
    assert len(encoded.slots) == len(encoded.targets) == words and len(encoded.tokens) <= length
    assert tally.cut == (words < 5) and encoded.tokens[-1] == 3


QUESTION = {"question": "Who sat?", "context": "On the mat the cats sat.", "answers": [{"text": "the cats", "start": 11}]}


def test_an_answer_by_hand(tokenizer):
    """Question and context are a pair of texts; the target is where the answer's tokens begin and end."""
    (window,) = Encoder(tokenizer, "span", 32, 4)(QUESTION)
    assert window.tokens.tolist() == [2, 11, 8, 12, 3, 9, 5, 10, 5, 6, 7, 8, 13, 3]
    assert window.types.tolist() == [0] * 5 + [1] * 9
    assert window.targets.tolist() == [[8, 10]] and window.slots.tolist() == [0]
    assert window.offsets[4:7].tolist() == [[-1, -1], [0, 2], [3, 6]] and window.offsets[-1].tolist() == [-1, -1]


def test_windows_of_a_long_context(tokenizer):
    """Windows overlap by half and cover the context; a target is the answer where it is whole, else [CLS] twice."""
    context = " ".join(random.Random(0).choices(WORDS, k=60)) + " who ? " + " ".join(["mat"] * 9)
    start = context.index("who ?")
    example = {"question": "the cat?", "context": context, "answers": [{"text": "who ?", "start": start}]}
    windows = Encoder(tokenizer, "span", 17, 1)(example)
    assert all(len(window.tokens) == 17 for window in windows[:-1]) and len(windows[-1].tokens) <= 17
    inside = [window.offsets[window.offsets[:, 0] >= 0] for window in windows]
    covered = {tuple(offset) for offsets in inside for offset in offsets.tolist()}
    assert covered == set(tokenizer.encode_offsets(context)[1])
    held = 0
    for window, offsets in zip(windows, inside, strict=True):
        first, last = window.targets[0]
        begins, ends = offsets[0, 0], offsets[-1, 1]
        if begins <= start and start + 5 <= ends:
            held += 1
            assert context[window.offsets[first, 0] : window.offsets[last, 1]] == "who ?"
        else:
            assert (first, last) == (0, 0)
    assert held == 2  # the stride is half a window's room


def test_only_the_first_answer_is_learnt(tokenizer):
    """The first of several answers is the target; without answers, as at evaluation, the targets are -1."""
    answers = [{"text": "mat", "start": 7}, *QUESTION["answers"]]
    targets = [
        Encoder(tokenizer, "span", 32, 4)(example)[0].targets.tolist()
        for example in ({**QUESTION, "answers": answers}, {k: v for k, v in QUESTION.items() if k != "answers"})
    ]
    assert targets == [[[7, 7]], [[-1, -1]]]


def test_two_examples_in_a_row_by_hand(tokenizer):
    """Sequences stand side by side; a slot is a position in the row, a free one is 0 and its target -1."""
    examples = [{"text": "cats", "label": "yes"}, {"text": "the", "pair": "mat", "label": "no"}]
    tally = Tally()
    (row,) = encoding.rows_of(examples, tokenizer, "classification", 11, 3, LABELS, tally)
    assert {name: array.tolist() for name, array in row.items()} == {
        "tokens": [2, 6, 7, 3, 2, 5, 3, 10, 3, 0, 0],
        "segments": [1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0],
        "positions": [0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0],
        "types": [0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0],
        "slots": [0, 4, 0],
        "targets": [1, 0, -1],
        "owners": [0, 1, -1],
    }
    assert tally == Tally(examples=2, rows=1, tokens=(9,))


def test_pairs_in_a_row_by_hand(tokenizer):
    """Both texts of a pair are sequences of their own in consecutive slots; their target is the pair's number."""
    examples = [{"text": "cats", "pair": "the"}, {"text": "mat", "pair": "on"}]
    (row,) = encoding.rows_of(examples, tokenizer, "pair", 15, 5)
    assert row["tokens"].tolist() == [2, 6, 7, 3, 2, 5, 3, 2, 10, 3, 2, 9, 3, 0, 0]
    assert row["segments"].tolist() == [1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 0, 0]
    assert row["positions"].tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0]
    assert not row["types"].any()
    assert row["slots"].tolist() == [0, 4, 7, 10, 0]
    assert row["targets"].tolist() == [0, 0, 1, 1, -1]
    assert row["owners"].tolist() == [0, 0, 1, 1, -1]


def test_spans_in_a_row(tokenizer):
    """The second question's answer is given by positions in the row, and its tokens know their characters in the context."""
    rows = list(encoding.rows_of([QUESTION, QUESTION], tokenizer, "span", 28, 2))
    (row,) = rows
    assert row["slots"].tolist() == [0, 14] and row["targets"].tolist() == [[8, 10], [22, 24]]
    assert row["offsets"].shape == (28, 2) and row["offsets"][22].tolist() == [11, 14]


def some_examples(form: str, count: int) -> list[dict[str, Any]]:
    """Random examples, some of them longer than a row."""
    chance = random.Random(form)

    def text(most: int = 30) -> str:
        return " ".join(chance.choices(WORDS, k=chance.randint(1, most)))

    examples = []
    for _ in range(count):
        match form:
            case "classification":
                examples.append({"text": text(), "label": chance.choice(LABELS)})
            case "tagging":
                words = text().split()
                examples.append({"words": words, "tags": ["yes" if word == "cats" else "no" for word in words]})
            case "pair":
                examples.append({"text": text(), "pair": text()})
            case _:
                context = text(40)
                answer = chance.choice(context.split())
                answers = [{"text": answer, "start": context.index(answer)}]
                examples.append({"question": text(4), "context": context, "answers": answers})
    return examples


@pytest.mark.parametrize("form", ["classification", "tagging", "span", "pair"])
def test_rows_hold_every_sequence_once(tokenizer, form):
    """Taken apart by segment, the rows give exactly the sequences that the examples are encoded to, labels included.

    That holds for a row that was stored and read again; the counts are those of the rows.
    """
    examples, length, slots = some_examples(form, 200), 32, 12
    labels = LABELS if form in ("classification", "tagging") else ()
    tally = Tally()
    rows = list(encoding.rows_of(examples, tokenizer, form, length, slots, labels, tally))
    sequences = []
    for row in rows:
        record = encoding.record_of(row)
        assert record.dtype == np.int32 and record.size == 4 * length + slots * (3 if form == "span" else 2)
        again = unpack(record, LabelledData(batch_size=1, length=length, slots=slots, spans=form == "span").stored())
        assert all(np.array_equal(again[name], row[name]) for name in again) and len(again) == 6
        used = np.flatnonzero(row["owners"] >= 0)
        assert not row["slots"][len(used) :].any() and (row["targets"][len(used) :] == -1).all()
        for segment in range(1, row["segments"].max() + 1):
            (at,) = np.nonzero(row["segments"] == segment)
            assert row["positions"][at].tolist() == list(range(len(at)))
            mine = [k for k in used if row["slots"][k] in at]
            start = at[0] if form == "span" else 0
            targets = [] if form == "pair" else (row["targets"][mine] - start).tolist()
            owners = {int(row["owners"][k]) for k in mine}
            places = (row["slots"][mine] - at[0]).tolist()
            sequences.append((*owners, row["tokens"][at].tolist(), row["types"][at].tolist(), places, targets))
    encode = Encoder(tokenizer, form, length, slots, labels)
    expected = []
    for owner, example in enumerate(examples):
        for e in encode(example):
            for member in range(2 if form == "pair" else 1):
                mine = e.members == member
                place = [0] if form == "pair" else e.slots.tolist()
                targets = [] if form == "pair" else e.targets.tolist()
                expected.append((owner, e.tokens[mine].tolist(), e.types[mine].tolist(), place, targets))
    assert sorted(sequences) == sorted(expected)
    tokens = sum(int((row["segments"] > 0).sum()) for row in rows)
    assert tally == Tally(examples=200, rows=len(rows), tokens=(tokens,), cut=encode.tally.cut)
    assert form == "span" or tally.cut > 0


def test_examples_without_labels(tokenizer):
    """Texts alone can be encoded, for predictions: their targets are -1; a label of another task is refused."""
    texts: dict[encoding.Form, dict] = {"classification": {"text": "cats"}, "tagging": {"words": ["cats"]}}
    for form, example in texts.items():
        (encoded,) = Encoder(tokenizer, form, 8, 1, LABELS)(example)
        assert encoded.targets.tolist() == [-1]
    with pytest.raises(KeyError, match="perhaps"):
        Encoder(tokenizer, "classification", 8, 1, LABELS)({"text": "cats", "label": "perhaps"})


def test_a_vocabulary_must_have_separators(tmp_path):
    """A vocabulary without [CLS] is refused in a line that names it."""
    from data.vocabularies import tokenizers

    tokenizers.train_bpe(["the cat sat on the mat"] * 3, tmp_path / "tokenizer.json", 262)
    with pytest.raises(ValueError, match=r"tokenizer\.json: labelled text needs a vocabulary with \[CLS\]"):
        Encoder(tokenizers.Tokenizer(tmp_path), "classification", 8, 1)


def test_the_words_of_this_file():
    """The ids above are those of the test vocabulary."""
    assert [PIECES.index(piece) for piece in ("the", "cat", "##s", "sat", "on", "mat", "who", "?", ".")] == [*range(5, 14)]
