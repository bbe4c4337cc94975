"""Conversations whose responses, or their ratings, are learned. Plain data: no JAX, no TensorFlow."""

import dataclasses
from typing import ClassVar

from data.config import HeldOut
from data.text.config import WeightedTextData


@dataclasses.dataclass(frozen=True, kw_only=True)
class LamdaData(WeightedTextData):
    """Packed rows of conversations in LaMDA's two forms (data/lamda/prompt_format.py), for causal language models.

    The inherited temperature draws the two forms in proportion to n^(1/T), n being the rows of a form.
    """

    kind: ClassVar[str] = "lamda"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateAndRank(HeldOut):
    """Scores of held-out conversations: perplexity of responses, ranks of the true response among others; of each rating its AUC,
    its accuracy, the share of good ones, and that share of the conversations that the ratings choose.

    Attributes:
      limit: at most so many conversations for the ratings; 0 takes all.
      responses: how many responses are scored and ranked; 0 leaves ranks out.
      others: responses of other conversations that a true one is ranked among; and how many conversations one is chosen from,
        beside itself.
      tokens: the most tokens of a response that is ranked.
    """

    form: ClassVar[str] = "candidates"

    responses: int = 50
    others: int = 15
    tokens: int = 32


CONFIGS = (LamdaData,)
EVALS = (RateAndRank,)
