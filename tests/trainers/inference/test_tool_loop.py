"""The dialog loop with a model that reads its answers from a script."""

from collections.abc import Sequence

import pytest

from trainers.inference.sample_and_rank import Candidate
from trainers.inference.tool_loop import MAX_QUERIES, Query, addressed, for_user, reply


class Script:
    """A model that gives these candidates, call by call, and remembers the contexts that it was given."""

    def __init__(self, *answers: str | Sequence[str]):
        self.answers = [[answer] if isinstance(answer, str) else answer for answer in answers]
        self.contexts: list[list[str]] = []

    def __call__(self, turns: Sequence[str]) -> list[Candidate]:
        self.contexts.append(list(turns))
        texts = self.answers[min(len(self.contexts), len(self.answers)) - 1]
        return [Candidate(text, -1.0, {}, 0.0) for text in texts]


TOOLSET = {"nadal age": ["Rafael Nadal / Age / 35", "Rafael Nadal / Born / 1986"], "lark": ["lark / n. / A bird."]}


def toolset(query: str) -> list[str]:
    return TOOLSET.get(query, [])


def test_an_answer_goes_to_the_user():
    """An output without addressee, or to the user, is the reply; no tool is asked, the model is called once."""
    for output in ("Hello you.", "User, Hello you.", " User,  Hello you."):
        model = Script(output)
        result = reply(model, ["Hello!"], toolset)
        assert (result.text, result.queries) == ("Hello you.", [])
        assert model.contexts == [["Hello!"]]


def test_a_query_goes_to_the_toolset():
    """The snippet is appended and the model is called again; what it then says to the user is the reply."""
    model = Script("TS, nadal age", "User, He is 35.")
    result = reply(model, ["Hi", "Hello", "How old is he?"], toolset)
    assert result.text == "He is 35."
    assert result.queries == [Query("nadal age", "model", "Rafael Nadal / Age / 35")]
    assert model.contexts[1] == ["Hi", "Hello", "How old is he?", "TS, nadal age", "Rafael Nadal / Age / 35"]


def test_a_repeated_query_gets_the_next_snippet():
    """The third time the toolset has nothing more, and the model reads an empty turn."""
    model = Script(*["TS, nadal age"] * 3, "User, That is all.")
    result = reply(model, ["Who?"], toolset)
    assert [query.snippet for query in result.queries] == [*TOOLSET["nadal age"], None]
    assert model.contexts[-1][-1] == ""


def test_four_queries_are_the_most():
    """A model that asks for ever is called five times; its best candidate for the user counts, else its best as it is."""
    model = Script(["TS, lark", "TS, owl", "It sings.", "User, It flies."])
    result = reply(model, ["Well?"], toolset)
    assert len(model.contexts) == MAX_QUERIES + 1 == 5 == len(result.queries) + 1
    assert result.text == "It sings."
    assert reply(Script("TS, lark"), ["Well?"], toolset).text == "TS, lark"


def test_the_rule_asks_first():
    """A question of the user is answered before the model is called, in the form of the model's own queries."""
    model = Script("A bird.")
    result = reply(model, ["What is a lark?"], toolset)
    assert result.queries == [Query("lark", "rule", "lark / n. / A bird.")]
    assert model.contexts == [["What is a lark?", "TS, lark", "lark / n. / A bird."]]


def test_the_rule_counts_as_a_query():
    """With the rule's query, the model has three; the same query of its own gets the next snippet."""
    model = Script("TS, lark")
    result = reply(model, ["What is a lark?"], toolset)
    assert [query.asked_by for query in result.queries] == ["rule", "model", "model", "model"]
    assert [query.snippet for query in result.queries] == ["lark / n. / A bird.", None, None, None]


def test_an_unanswered_rule_leaves_no_trace_in_the_context():
    """The model reads the user's turn alone; the query is reported."""
    model = Script("No idea.")
    result = reply(model, ["What is an owl?"], toolset)
    assert result.queries == [Query("owl", "rule", None)]
    assert model.contexts == [["What is an owl?"]]


def test_without_a_toolset_nothing_is_asked():
    """Neither the rule nor the model asks, and a query of the model is its reply."""
    model = Script("TS, lark")
    result = reply(model, ["What is a lark?"])
    assert (result.text, result.queries, len(model.contexts)) == ("TS, lark", [], 1)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("TS, a, b", ("TS", "a, b")),
        ("User, yes", ("User", "yes")),
        ("Users, yes", ("User", "Users, yes")),
        ("I asked TS, twice", ("User", "I asked TS, twice")),
        ("", ("User", "")),
    ],
)
def test_the_first_string_is_the_addressee(output, expected):
    """Only "TS," and "User," at the beginning address somebody."""
    assert addressed(output) == expected


def test_nothing_is_shown_that_may_be_a_query():
    """While an output is decoded, the user sees it from the moment when its addressee is certain."""
    assert [for_user(beginning) for beginning in ("", "T", " TS", "TS,", "TS, lark", "Us", "User, ")] == [""] * 7
    assert [for_user(beginning) for beginning in ("Th", "TSar", "User, He", " Used ")] == ["Th", "TSar", "He", "Used"]
