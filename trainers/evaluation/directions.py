"""The direction in which each evaluation metric is better, for whoever chooses between models by one. Plain Python, no JAX."""

from collections.abc import Mapping

from configs.registry import ConfigError
from models.errors import nearest

LOWER_IS_BETTER = {"loss": True, "balance_loss": True, "cross_entropy": True, "dropped": True, "accuracy": False, "f1": False}
"""Models' own metrics, by the last part of their names; those of a task are data.task.Task.directions."""


def lower_is_better(name: str, directions: Mapping[str, bool]) -> bool:
    """Returns whether less is better of a metric, such as "eval/cross_entropy" or "eval/next_sentence/accuracy".

    Args:
      directions: of the task's scores.

    Raises:
      ConfigError: neither way is better, as of "eval/examples", or neither a model nor the task says which.
    """
    known = LOWER_IS_BETTER | dict(directions)
    measure = name.rsplit("/", 1)[-1]
    if measure not in known:
        raise ConfigError(f"metric {name!r}: neither more nor less of it is known to be better{nearest(measure, known)}")
    return known[measure]
