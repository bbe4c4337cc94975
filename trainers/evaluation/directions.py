"""Which way each evaluation metric is better, for whoever chooses between models by one. Plain Python, no JAX."""

from configs.registry import ConfigError
from models.errors import nearest

LOWER = frozenset(
    {"loss", "balance_loss", "cross_entropy", "perplexity", "byte_perplexity", "bits_per_byte", "dropped"}
)
"""Metrics of which less is better, by the last part of their names."""

HIGHER = frozenset(
    {"accuracy", "exact_match", "f1", "macro_f1", "matthews", "bleu", "chrf", "stripped_bleu", "stripped_chrf"}
    | {f"stripped_bleu_{bucket}" for bucket in ("high", "middle", "low", "unseen")}
)
"""Metrics of which more is better."""


def lower_is_better(name: str) -> bool:
    """Returns whether less is better of a metric, such as "eval/cross_entropy" or "eval/next_sentence/accuracy".

    Raises:
      ConfigError: neither way is better, as of "eval/examples", or it is not listed above.
    """
    measure = name.rsplit("/", 1)[-1]
    if measure not in LOWER | HIGHER:
        hint = nearest(measure, LOWER | HIGHER)
        raise ConfigError(f"metric {name!r}: neither more nor less of it is known to be better{hint}")
    return measure in LOWER
