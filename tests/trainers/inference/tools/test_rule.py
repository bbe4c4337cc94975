"""Tests of what the rule takes for a question to the toolset."""

import pytest

from trainers.inference.tools.rule import query_of


@pytest.mark.parametrize(
    ("turn", "query"),
    [
        ("What is a lark?", "lark"),
        ("Hi, what's love?", "love"),
        ("I like birds. What are larks? Tell me.", "larks"),
        ("define photosynthesis", "photosynthesis"),
        ("What does GNU mean?", "GNU"),
        ("what is the meaning of life?", "life"),
        ("12*7", "12*7"),
        ("12 * 7 = ?", "12 * 7"),
        ("What is 135+7721?", "135+7721"),
        ("how much is 3.5 * 2?", "3.5 * 2"),
    ],
)
def test_questions_are_recognised(turn, query):
    """An expression is sent as it stands, of a question its term."""
    assert query_of(turn) == query


@pytest.mark.parametrize(
    "turn",
    [
        "",
        "What's up?",
        "What are you doing?",
        "What is your name?",
        "what is the time",
        "I know what is best.",
        "I have 3 cats and 2 dogs.",
        "It costs 5.",
        "I was born on 1999-12-31.",
        "What is a good thing to eat on a cold day in winter?",
    ],
)
def test_conversation_is_left_alone(turn):
    """Questions about the speakers or the moment, numbers in a sentence and long questions are no queries."""
    assert query_of(turn) is None
