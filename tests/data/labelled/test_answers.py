"""Answers as text, from logits."""

import numpy as np

from data.labelled import encoding
from data.labelled.answers import answer_texts, best_span

CONTEXT = "who sat on the mat. the cats sat on a mat."
QUESTION = {"question": "who?", "context": CONTEXT, "answers": [{"text": "the cats", "start": CONTEXT.index("the cats")}]}


def test_the_best_span_by_hand():
    """A span is inside the context (12 isn't), ends where it begins or later (8 doesn't) and isn't too long."""
    start, end = np.array([9, 0, 3, 5.0]), np.array([0, 3, 2, 2.0])
    offsets = np.array([[-1, -1], [0, 1], [2, 3], [4, 5]])
    assert best_span(start, end, offsets) == (7, 4, 5)
    end[3] = 3
    start[3] = 1
    assert best_span(start, end, offsets) == (6, 2, 5)
    assert best_span(start, end, offsets, longest=1) == (5, 2, 3)
    assert best_span(start, end, np.full((4, 2), -1)) == (-np.inf, 0, 0)


def logits_of(row: dict, true: float) -> np.ndarray:
    """Logits [P, L, 2] that are `true` at the targets' positions, 0 elsewhere."""
    logits_PLC = np.zeros((len(row["slots"]), len(row["tokens"]), 2), np.float32)
    for slot in np.flatnonzero(row["owners"] >= 0):
        for side, position in enumerate(row["targets"][slot]):
            logits_PLC[slot, position, side] = true
    return logits_PLC


def test_right_logits_give_the_labelled_answers(tokenizer):
    """The text between the labelled start and end is the answer, of whichever window holds it; a row has several questions."""
    other = {"question": "on?", "context": "a mat", "answers": [{"text": "mat", "start": 2}]}
    questions = [QUESTION, other, QUESTION]
    rows = list(encoding.rows_of(questions, tokenizer, "span", 14, 3))
    windows = sum(int((row["owners"] >= 0).sum()) for row in rows)
    assert windows > len(questions)
    contexts = [question["context"] for question in questions]
    answers = answer_texts(((row, logits_of(row, 1.0)) for row in rows), contexts)
    assert answers == ["the cats", "mat", "the cats"]


def test_a_question_without_a_window_has_no_answer(tokenizer):
    """An empty context has no span, and a question that no row holds none either."""
    rows = list(encoding.rows_of([{"question": "who?", "context": "", "answers": []}], tokenizer, "span", 14, 3))
    assert answer_texts(((row, logits_of(row, 1.0)) for row in rows), ["", "the mat"]) == ["", ""]
