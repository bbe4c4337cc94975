"""A rule that says what a user's turn asks of the toolset, for models that were not taught to ask it themselves."""

import re

from trainers.inference.tools.calculator import calculate

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n")
_ASKS = re.compile(
    r"(?:^|, )(?:(?:what is |what's )?the (?:meaning|definition) of|what(?:'s|s| is| are| was| were)|who(?:'s| is| was| were)"
    r"|how much is|define|calculate|compute) (?P<subject>.+)$",
    re.IGNORECASE,
)
_MEANS = re.compile(r"(?:^|, )what (?:does|do|did) (?P<subject>.+) mean$", re.IGNORECASE)
_ARTICLE = re.compile(r"an? ", re.IGNORECASE)
_LONGEST = 4  # words of a term

# A subject with one of these words is no term of a dictionary: "your name", "the time", "up", "going on".
_NO_TERM = """
    i me my mine you your yours he him his she her hers it its we us our ours they them their theirs
    this that these those here there the some any all so up on in at to for with about like than
    new wrong next happening going doing best better worst favorite favourite
"""
NO_TERM = frozenset(_NO_TERM.split())


def subject(question: str) -> str | None:
    """Returns X of "What is X?", "define X", "what does X mean" and the like, without its indefinite article; None of others."""
    sentence = question.strip(" ?.!").replace("’", "'")
    match = _MEANS.search(sentence) or _ASKS.search(sentence)
    return _ARTICLE.sub("", match["subject"].strip("\"' "), count=1) if match else None


def query_of(turn: str) -> str | None:
    """Returns what a user's turn asks of the toolset: an arithmetic expression, or a term to be defined; None if nothing.

    The first sentence that asks counts. A term has at most four words, and none that points into the conversation.
    """
    for sentence in _SENTENCE_END.split(turn.strip()):
        term = subject(sentence)
        for text in (sentence, term):
            if text is not None and calculate(text) is not None:
                return text.rstrip("=? ")
        if term and len(terms := term.lower().split()) <= _LONGEST and not NO_TERM & set(terms):
            return term
    return None
