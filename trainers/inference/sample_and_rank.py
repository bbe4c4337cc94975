"""Sample-and-rank: candidates for the next turn of a conversation are drawn and ranked (LaMDA, arXiv 2201.08239, section 3)."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from models.protocol import Model
from trainers.inference.forms import RatedForm
from trainers.inference.generation import Continuation, Generate, Generator


class Candidate(NamedTuple):
    """A candidate: its text, its log-probability, the probabilities of good ratings by attribute, the score that it is ranked by,
    and its ids."""

    text: str
    log_probability: float
    ratings: dict[str, float]
    score: float
    ids: Sequence[int] = ()


class Responder:
    """Candidates from a model's parameters, ranked by the model's own ratings of them (data.task.RanksResponses).

    A rating costs a few tokens: the candidate is in the cache.

    Args:
      model: with shapes for parameters, on its mesh.
      config: its samples are the candidates.
      form: of the conversations that the model was tuned on.
      emit: called with the first candidate's text so far whenever a token was drawn.

    Raises:
      DataError: the model reads no text from left to right, or its vocabulary does not fit.
    """

    def __init__(self, model: Model, config: Generate, form: RatedForm, emit: Callable[[str], object] | None = None):
        self.form = form
        suffixes = [ids for name in form.task.ranking for ids in form.task.rating_ids(form.vocabulary, name)]
        self.generator = Generator(model, config, form.vocabulary, emit, suffixes, form)

    def __call__(self, params: Any, turns: Sequence[str], room: int, seed: int | None = None) -> list[Candidate]:
        """Returns the candidates for the turn after these turns, best first.

        Args:
          room: the most tokens of a conversation that are read; the oldest turns are left out.
          seed: of the draws; the configuration's by default.

        Raises:
          DataError: the last turn alone is too long.
        """
        ids, _ = self.form.fitting([{"role": "user", "content": turn} for turn in turns], room)
        (drawn,) = self.generator(params, [ids], seed)
        task = self.form.task
        candidates = good_enough([_rated(c, task.ranking) for c in drawn], task.floors)
        return sorted(candidates, key=lambda candidate: -candidate.score)


def _rated(c: Continuation, ranking: Mapping[str, float]) -> Candidate:
    pairs = zip(c.suffixes[::2], c.suffixes[1::2], strict=True)  # (bad, good) of each attribute
    ratings = {name: 1 / (1 + math.exp(bad - good)) for name, (bad, good) in zip(ranking, pairs, strict=True)}
    return Candidate(c.text.strip(), c.score, ratings, sum(w * ratings[name] for name, w in ranking.items()), c.ids)


def good_enough(candidates: list[Candidate], floors: Mapping[str, float]) -> list[Candidate]:
    """Returns the candidates whose ratings are nowhere below the floors, or all candidates if none is left."""
    kept = [c for c in candidates if all(c.ratings[name] >= least for name, least in floors.items())]
    return kept or candidates
