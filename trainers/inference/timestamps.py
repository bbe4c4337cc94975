"""Whisper's rules about timestamps (the released code's `ApplyTimestampRules`), and the segments of a text that follows them.

A text with timestamps is <|t0|> words <|t1|> <|t2|> words <|t3|> ...: pairs around the words. B rows, K hypotheses, T tokens,
V vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from data.speech.vocabulary import RESOLUTION
from models.parts.decoding import NEVER
from models.whisper.tokens import LATEST_START


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """The tokens that may come next in a transcript.

    Attributes:
      first: tokens of the prefix, after which the rules hold.
      end: the id that ends a text.
      timestamp: the first timestamp's id, 0 s; all ids from here on are timestamps.
      no_timestamps: the id that forbids timestamps.
      resolution: seconds from a timestamp to the next.
      never: ids that are never written: special tokens, and those that are no speech.
      never_first: ids that are not written first: a blank, the end.
      timed: whether timestamps are written.
    """

    first: int
    end: int
    timestamp: int
    no_timestamps: int
    resolution: float
    never: tuple[int, ...]
    never_first: tuple[int, ...]
    timed: bool

    def __call__(self, logits_BKV: jax.Array, tokens_BKT: jax.Array, at: jax.Array) -> jax.Array:
        """Returns the logits, NEVER for tokens that may not come at this place; those of the prefix as they are."""
        return jnp.where(at < self.first, logits_BKV, self._after_prefix(logits_BKV, tokens_BKT, at))

    def _after_prefix(self, logits_BKV: jax.Array, tokens_BKT: jax.Array, at: jax.Array) -> jax.Array:
        size, ids_V = logits_BKV.shape[-1], jnp.arange(logits_BKV.shape[-1])
        never_V = jnp.zeros(size, bool).at[jnp.array(self.never, jnp.int32)].set(True)
        first_V = jnp.zeros(size, bool).at[jnp.array(self.never_first, jnp.int32)].set(True)
        written = at - self.first
        barred_BKV = jnp.broadcast_to(never_V | (first_V & (written == 0)), logits_BKV.shape)
        is_time_V = ids_V >= self.timestamp
        if not self.timed:
            return jnp.where(barred_BKV | is_time_V, NEVER, logits_BKV)

        barred_BKV |= ids_V == self.no_timestamps
        time_BKT = (tokens_BKT >= self.timestamp) & (jnp.arange(tokens_BKT.shape[-1]) >= self.first)
        last_BK = (written >= 1) & jnp.take(time_BKT, jnp.maximum(at - 1, 0), axis=2)
        before_BK = (written < 2) | jnp.take(time_BKT, jnp.maximum(at - 2, 0), axis=2)
        # Timestamps come in pairs, but for that at the beginning.
        barred_BKV |= (last_BK & before_BK)[..., None] & is_time_V
        barred_BKV |= (last_BK & ~before_BK)[..., None] & (ids_V < self.end)
        # They never go back; a segment is not empty.
        latest_BK = jnp.max(jnp.where(time_BKT, tokens_BKT, 0), axis=-1)
        floor_BK = jnp.where(last_BK & ~before_BK, latest_BK, latest_BK + 1)
        barred_BKV |= (latest_BK > 0)[..., None] & is_time_V & (ids_V < floor_BK[..., None])
        most = self.timestamp + round(LATEST_START * RESOLUTION / self.resolution)
        barred_BKV |= (written == 0) & (~is_time_V | (ids_V > most))
        logits_BKV = jnp.where(barred_BKV, NEVER, logits_BKV)
        # Where a timestamp of any value is likelier than the likeliest word, it is a timestamp.
        times_BK = jax.nn.logsumexp(jnp.where(is_time_V, logits_BKV, NEVER), axis=-1)
        word_BK = jnp.max(jnp.where(is_time_V, NEVER, logits_BKV), axis=-1)
        return jnp.where((times_BK > word_BK)[..., None] & ~is_time_V, NEVER, logits_BKV)


def segments(ids: Sequence[int], rules: Rules, length: float) -> tuple[list[tuple[float, float, list[int]]], float]:
    """Returns a window's segments as (start, end, ids of the words), in seconds, and where the next window begins.

    Args:
      ids: of the text after its prefix, without its end.
      length: seconds of the window.
    """
    times = [i for i, id_ in enumerate(ids) if id_ >= rules.timestamp]
    pairs = [i for i in times if i and ids[i - 1] >= rules.timestamp]  # the second of two in a row

    def seconds(id_: int) -> float:
        return (id_ - rules.timestamp) * rules.resolution

    def words(part: Sequence[int]) -> list[int]:
        return [id_ for id_ in part if id_ < rules.timestamp]

    single_at_end = bool(times) and times[-1] == len(ids) - 1 and (len(ids) < 2 or ids[-2] < rules.timestamp)
    if pairs:
        timed, start = [], 0
        for cut in [*pairs, *([len(ids)] if single_at_end else [])]:
            part = list(ids[start:cut])
            timed.append((seconds(part[0]), seconds(part[-1]), words(part)))
            start = cut
        # Never by less than a second: a model that is stuck would be asked about the same sound for ever.
        return timed, length if single_at_end else max(seconds(ids[start - 1]), LATEST_START * RESOLUTION)
    end = seconds(ids[times[-1]]) if times and ids[times[-1]] != rules.timestamp else length
    return [(0.0, min(end, length), words(ids))], length


def rules_of(vocabulary: Any, first: int, *, timed: bool, suppress: bool) -> Rules:
    """Returns the rules of a vocabulary (data.speech.vocabulary.WhisperVocabulary).

    Args:
      first: tokens of the prefix.
      suppress: whether tokens that are no speech are never written.
    """
    special = set(vocabulary.tokenizer.special_ids) - {vocabulary.end, vocabulary.no_timestamps}
    return Rules(
        first=first,
        end=vocabulary.end,
        timestamp=vocabulary.timestamp,
        no_timestamps=vocabulary.no_timestamps,
        resolution=RESOLUTION,
        never=tuple(sorted(special | set(vocabulary.sounds if suppress else ()))),
        never_first=tuple(vocabulary.never_first) if suppress else (),
        timed=timed,
    )
