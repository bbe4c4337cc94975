"""The loop of a dialog with a toolset: LaMDA (arXiv 2201.08239), section 6.2.

A model's output begins with its addressee. "TS, QUERY" goes to the toolset, whose snippet is appended, and the model is called
again; "User, ANSWER" goes to the user. An output without addressee, as of a model that was not trained to ask, goes to the user.
"""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from trainers.inference.tools.rule import query_of

if TYPE_CHECKING:  # scripts.chat imports this module before it sets up JAX
    from trainers.inference.sample_and_rank import Candidate

Toolset = Callable[[str], Sequence[str]]  # trainers.inference.tools.toolset.Toolset is one

MAX_QUERIES = 4  # of a turn of the user
TOOLSET, USER = "TS", "User"
_ADDRESSED = re.compile(rf"\s*({TOOLSET}|{USER}), *(.*)", re.DOTALL)


class Query(NamedTuple):
    """A string that was sent to the toolset, by the model or by the rule, and the snippet that came back, if any."""

    text: str
    asked_by: Literal["model", "rule"]
    snippet: str | None


class Reply(NamedTuple):
    """The text for the user, the candidates that it was chosen from (best first), the queries before it, and remarks on it."""

    text: str
    candidates: Sequence["Candidate"] = ()
    queries: Sequence[Query] = ()
    remarks: Sequence[str] = ()


def for_user(beginning: str) -> str:
    """Returns the part of an output for the user, from its beginning: nothing while it may be addressed to the toolset."""
    if any(f"{name}, ".startswith(beginning.lstrip()) for name in (TOOLSET, USER)):
        return ""
    addressee, text = addressed(beginning)
    return text if addressee == USER else ""


def addressed(text: str) -> tuple[str, str]:
    """Returns the addressee of a model's output, by default the user, and its text."""
    match = _ADDRESSED.match(text)
    return (match[1], match[2].strip()) if match else (USER, text.strip())


def reply(
    respond: Callable[[Sequence[str]], Sequence["Candidate"]], turns: Sequence[str], toolset: Toolset | None = None
) -> Reply:
    """Returns a model's reply to the last of the turns.

    Before the model is called, a rule (tools/rule.py) may ask the toolset in the model's place. Its query and the
    snippet are in the context in the form of the model's own queries, as two more turns. A query that is repeated gets the next
    snippet. If the toolset has none, the rule's query is left out, and the model's is answered by an empty turn.

    Args:
      respond: the candidates for the next turn, best first, at least one.
      turns: the user's and the model's by turns; the last is the user's.
      toolset: None asks nothing.
    """
    context, queries = list(turns), list[Query]()

    def ask(text: str, asked_by: Literal["model", "rule"]) -> str | None:
        snippets = toolset(text) if toolset else []
        repeated = sum(query.text == text for query in queries)
        snippet = snippets[repeated] if repeated < len(snippets) else None
        queries.append(Query(text, asked_by, snippet))
        return snippet

    if toolset and (text := query_of(turns[-1])) and (snippet := ask(text, "rule")):
        context += [f"{TOOLSET}, {text}", snippet]
    candidates = respond(context)
    while toolset and len(queries) < MAX_QUERIES:
        addressee, text = addressed(candidates[0].text)
        if addressee == USER:
            break
        context += [f"{TOOLSET}, {text}", ask(text, "model") or ""]
        candidates = respond(context)
    # The queries are used up: the best candidate for the user counts, or the best as it is.
    for candidate in candidates:
        addressee, text = addressed(candidate.text)
        if addressee == USER:
            return Reply(text, candidates, queries)
    return Reply(candidates[0].text, candidates, queries)
