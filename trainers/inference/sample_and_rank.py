"""Sample-and-rank: candidates for the next turn of a conversation are drawn and ranked (LaMDA, arXiv 2201.08239, section 3)."""

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data.lamda.encoding import fitting_turns
from data.lamda.prompt_format import prompt
from data.task import RanksResponses, Task
from models.protocol import ContinuesText, Model
from trainers.inference.generation import Continuation, Generate, Generator


@dataclasses.dataclass(frozen=True, kw_only=True)
class Respond:
    """Settings of an answer.

    Attributes:
      candidates: the number that is drawn.
      top_k: draws among this number of likeliest tokens; 0 among all.
      tokens: longest candidate; at most half of the positions that the model has.
      context: the most tokens of a conversation that are read; the oldest turns are left out.
      seed: of the draws.
    """

    candidates: int = 16
    top_k: int = 40
    tokens: int = 64
    context: int = 256
    seed: int = 0


class Candidate(NamedTuple):
    """A candidate: its text, its log-probability, the probabilities of good ratings by attribute, the score that it is ranked by,
    and its ids."""

    text: str
    log_probability: float
    ratings: dict[str, float]
    score: float
    ids: Sequence[int] = ()


class Responder:
    """Candidates from a model's parameters, by one compiled program.

    They are ranked by the model's own ratings of them if its task has ratings (data.task.RanksResponses), and otherwise by
    log-likelihood per token, as in the paper before fine-tuning. A rating costs a few tokens: the candidate is in the cache.

    Args:
      model: with shapes for parameters, on its mesh.
      vocabulary: the folder of its tokenizer.json.
      task: of the data that the model was trained on.
      emit: called with the first candidate's text so far whenever a token was drawn.

    Raises:
      DataError: the model reads no text from left to right, or its vocabulary does not fit.
    """

    def __init__(
        self,
        model: Model,
        config: Respond,
        vocabulary: Path,
        task: Task | None = None,
        emit: Callable[[str], object] | None = None,
    ):
        self.task = task if isinstance(task, RanksResponses) else None
        suffixes = []
        if self.task:
            suffixes = [ids for name in self.task.ranking for ids in self.task.rating_ids(vocabulary, name)]
        longest = (model.longest if isinstance(model, ContinuesText) else None) or sys.maxsize  # Generator refuses other models
        tokens = min(config.tokens, longest // 2)
        generate = Generate(
            tokens=tokens,
            temperature=1.0,
            top_k=config.top_k,
            samples=config.candidates,
            seed=config.seed,
            batch_size=1,
            length=min(config.context, longest - tokens),
            line=True,
        )
        self.generator = Generator(model, generate, vocabulary, emit, suffixes)

    def __call__(self, params: Any, turns: Sequence[str], seed: int | None = None) -> list[Candidate]:
        """Returns the candidates for the turn after these turns, best first.

        Args:
          seed: of the draws; the configuration's by default.

        Raises:
          DataError: the last turn alone is too long.
        """
        tokenizer = self.generator.tokenizer
        around = len(tokenizer.before) + len(tokenizer.behind)
        kept = fitting_turns(turns, tokenizer, self.generator.config.length - around)
        (drawn,) = self.generator(params, [prompt(kept)], seed)
        if self.task is None:
            candidates = [Candidate(c.text.strip(), c.score, {}, c.score / (len(c.ids) + 1), c.ids) for c in drawn]
        else:
            candidates = good_enough([_rated(c, self.task.ranking) for c in drawn], self.task.floors)
        return sorted(candidates, key=lambda candidate: -candidate.score)


def _rated(c: Continuation, ranking: Mapping[str, float]) -> Candidate:
    pairs = zip(c.suffixes[::2], c.suffixes[1::2], strict=True)  # (bad, good) of each attribute
    ratings = {name: 1 / (1 + math.exp(bad - good)) for name, (bad, good) in zip(ranking, pairs, strict=True)}
    return Candidate(c.text.strip(), c.score, ratings, sum(w * ratings[name] for name, w in ranking.items()), c.ids)


def good_enough(candidates: list[Candidate], floors: Mapping[str, float]) -> list[Candidate]:
    """Returns the candidates whose ratings are nowhere below the floors, or all candidates if none is left."""
    kept = [c for c in candidates if all(c.ratings[name] >= least for name, least in floors.items())]
    return kept or candidates
