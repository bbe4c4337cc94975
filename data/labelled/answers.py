"""Answers to questions as text, from the logits of a model that names where an answer begins and ends."""

from collections.abc import Iterable, Sequence

import numpy as np

from data.labelled.encoding import Row


def answer_texts(rows: Iterable[tuple[Row, np.ndarray]], contexts: Sequence[str]) -> list[str]:
    """Returns each question's answer: the span with the largest sum of logits in any of its windows, as in BERT's run_squad.

    Args:
      rows: each with `segments`, `slots`, `owners` and `offsets` (`data.labelled.encoding`), and the logits [P, L, 2] of an
        answer's start and end that the model gives each of its slots.
      contexts: the questions' contexts, in the order that `owners` numbers; a question without a window is answered "".
    """
    best = [(-np.inf, 0, 0)] * len(contexts)
    for row, logits_PLC in rows:
        for slot in np.flatnonzero(row["owners"] >= 0):
            window = row["segments"] == row["segments"][row["slots"][slot]]
            owner = row["owners"][slot]
            start_L, end_L = logits_PLC[slot, window].T
            span = best_span(start_L, end_L, row["offsets"][window])
            best[owner] = max(best[owner], span, key=lambda scored: scored[0])
    return [context[start:end] for context, (_, start, end) in zip(contexts, best, strict=True)]


def best_span(start_L: np.ndarray, end_L: np.ndarray, offsets_LC: np.ndarray, longest: int = 30) -> tuple[float, int, int]:
    """Returns the span of a window with the highest score, as (score, start, end) in characters of the context.

    Args:
      start_L, end_L: scores [L] of each token as the first and as the last of a span.
      offsets_LC: the tokens' offsets [L, 2], as in a row; -1 outside the window's context.
      longest: the most tokens of a span.
    """
    (inside,) = np.nonzero(offsets_LC[:, 0] >= 0)
    if not len(inside):  # an empty context
        return -np.inf, 0, 0
    start_N, end_N, offsets_NC = start_L[inside], end_L[inside], offsets_LC[inside]
    # [n, d]: the span of d + 1 tokens from token n on. The tokens of a window's context are contiguous.
    padded = np.pad(end_N.astype(np.float64), (0, longest - 1), constant_values=-np.inf)
    scores_ND = start_N[:, None] + np.lib.stride_tricks.sliding_window_view(padded, longest)
    first, extra = np.unravel_index(np.argmax(scores_ND), scores_ND.shape)
    return float(scores_ND[first, extra]), int(offsets_NC[first, 0]), int(offsets_NC[first + extra, 1])
