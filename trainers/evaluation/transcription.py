"""Transcribing sound of any length: windows of 30 s, several files at a time, with timestamps and languages.

A window begins where the last segment of the one before ended (Whisper, arXiv 2212.04356, section 4.5). Unlike the released
code, each window is normalised by itself, so that a file is read as it goes and hours of it need little memory; and no window is
given the text before it, so that one that goes wrong does not spoil those after it.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from data.speech import sound, spectra
from data.speech.vocabulary import RESOLUTION, WhisperVocabulary
from data.task import DataError
from models.errors import UserError
from models.parts.decoding import beam_search, sample
from models.protocol import Model, SequenceToSequence
from models.sharding.params import with_params
from trainers.evaluation.timestamps import Rules, rules_of, segments

_SILENCE = 1e-4  # a window that is nowhere louder has nothing to transcribe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transcribe:
    """How sound is transcribed.

    Attributes:
      language: a code such as "cs"; "" asks the model, for each file's first window with speech.
      translate: writes English instead of what is said.
      timed: writes timestamps, which also cut long files where nobody speaks.
      beams: hypotheses; 1 is greedy.
      temperatures: a window whose text is unlikely or repeats itself is drawn again with each of these in turn.
      compression: above this ratio of a text's bytes to its compressed ones it repeats itself.
      likelihood: below this mean log-probability of its tokens a text is unlikely.
      no_speech: above this probability that nobody speaks, an unlikely text is dropped.
      batch_size: windows that are decoded together.
      tokens: most of a window.
      suppress: never writes what is no speech, such as remarks in brackets.
      seed: of the draws, which depend on it and on a window's sound alone.
    """

    language: str = ""
    translate: bool = False
    timed: bool = True
    beams: int = 1
    temperatures: tuple[float, ...] = (0.4, 0.8)
    compression: float = 2.4
    likelihood: float = -1.0
    no_speech: float = 0.6
    batch_size: int = 8
    tokens: int = 224
    suppress: bool = True
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Segment:
    """What is said from `start` to `end`, in seconds of the file; the other numbers are those of its window's text."""

    start: float
    end: float
    text: str
    likelihood: float
    no_speech: float
    compression: float
    temperature: float


@dataclasses.dataclass
class Transcript:
    """A file's language, its length in seconds, and what is said in it."""

    language: str = ""
    seconds: float = 0.0
    segments: list[Segment] = dataclasses.field(default_factory=list)

    @property
    def text(self) -> str:
        """All that is said."""
        return " ".join(segment.text for segment in self.segments)


@dataclasses.dataclass
class _Listening:
    """A file that is being transcribed: the sound from `at`, in samples, as far as it is read."""

    blocks: Iterator[np.ndarray]
    transcript: Transcript
    at: int = 0
    buffer: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.float32))
    ended: bool = False

    def window(self, size: int) -> np.ndarray:
        """Returns the next samples, at most `size`; none at the end."""
        parts, have = [self.buffer], len(self.buffer)
        while have < size and not self.ended:
            block = next(self.blocks, None)
            if block is None:
                self.ended = True
            else:
                parts.append(block)
                have += len(block)
        self.buffer = np.concatenate(parts) if len(parts) > 1 else self.buffer
        self.transcript.seconds = (self.at + len(self.buffer)) / sound.RATE
        return self.buffer[:size]

    def advance(self, samples: int) -> None:
        self.buffer, self.at = self.buffer[samples:], self.at + samples


@dataclasses.dataclass(frozen=True)
class _Heard:
    """The text of a window: ids behind the prefix."""

    ids: list[int]
    language: str
    likelihood: float
    no_speech: float
    compression: float
    temperature: float


class Transcriber:
    """Transcription with a model's parameters, compiled once for greedy or beam search and once for draws.

    Args:
      model: with shapes for parameters, on its mesh (trainers.plan.Plan.model).
      vocabulary: the model's.

    Raises:
      DataError: the model turns no frames into text, or has fewer tokens than the vocabulary.
      VocabularyError: the vocabulary has no such language, or the model is English-only and asked for another.
    """

    def __init__(self, model: Model, params: Any, vocabulary: WhisperVocabulary, how: Transcribe):
        c: Any = model.c
        if not isinstance(model, SequenceToSequence) or not getattr(c, "most_frames", 0):
            raise DataError(f"models of family {model.c.family!r} do not turn windows of sound into text")
        if model.target_vocab < vocabulary.size:
            raise DataError(f"the vocabulary has {vocabulary.size} tokens, the model {model.target_vocab}")
        self.how, self.vocabulary, self._params, self.width = how, vocabulary, params, c.frame_width
        self.samples = c.most_frames * spectra.HOP
        task = "translate" if how.translate else "transcribe"
        self._codes = list(vocabulary.languages) or ["en"]
        prefix = vocabulary.prefix(how.language or self._codes[0], task, timestamps=how.timed)
        self._prefix = prefix
        steps = min(how.tokens + len(prefix), c.max_positions)
        self.rules: Rules = rules_of(vocabulary, len(prefix), timed=how.timed, suppress=how.suppress)
        mesh = model.scope.mesh

        @functools.partial(jax.jit, static_argnames="temperature", out_shardings=mesh and NamedSharding(mesh, P()))
        def decode(
            params: Any, frames_BTF: jax.Array, real_B: jax.Array, told_B: jax.Array, temperature: float, key_B: jax.Array
        ) -> Any:
            whole: Any = with_params(model, params)
            beams = 1 if temperature else how.beams
            batch = {"frames": frames_BTF, "frames_segments": jnp.ones(frames_BTF.shape[:2], jnp.int32)}
            state, rows = whole.start(batch, beams, steps), len(frames_BTF)
            # What stands behind the start says the language, and whether anybody speaks.
            first_BKV, _ = whole.step(state, jnp.zeros((rows, beams), jnp.int32), jnp.zeros((), jnp.int32))
            first_BV = first_BKV[:, 0].astype(jnp.float32)
            silent_B = jax.nn.softmax(first_BV)[:, vocabulary.no_speech]
            spoken = jnp.array(list(vocabulary.languages.values()) or [0], jnp.int32)
            language_B = jnp.where(told_B < 0, jnp.argmax(first_BV[:, spoken], axis=-1), told_B)
            prefix_BP = jnp.broadcast_to(jnp.array(prefix, jnp.int32), (rows, len(prefix)))
            if vocabulary.languages and not how.language:
                prefix_BP = prefix_BP.at[:, 0].set(spoken[language_B])
            common: dict[str, Any] = dict(steps=steps, eos=vocabulary.end, pad=-1, usable=vocabulary.size, rule=self.rules)
            common |= {"prefix_BP": prefix_BP} if prefix else {}
            if temperature:
                tokens_BKT, total_BK, _ = sample(whole, state, real_B, key_B, samples=1, temperature=temperature, **common)
            else:
                tokens_BKT, total_BK = beam_search(
                    whole, state, real_B, beams=beams, vocab=whole.target_vocab, alpha=0.0, **common
                )
            return tokens_BKT[:, 0], total_BK[:, 0], silent_B, language_B

        self._decode = decode

    def __call__(
        self, files: Sequence[Path], failed: Callable[[Path, str], None] | None = None
    ) -> Iterator[tuple[Path, Transcript]]:
        """Yields each file with its transcript, as soon as it is done.

        Args:
          failed: is told the files that cannot be read, and why; by default the first raises UserError.
        """
        waiting, active = iter(files), list[tuple[Path, _Listening]]()

        def give_up(path: Path, why: str) -> None:
            if failed is None:
                raise UserError(f"{path}: {why}")
            failed(path, why)

        while True:
            while len(active) < self.how.batch_size and (path := next(waiting, None)) is not None:
                active.append((path, _Listening(sound.blocks(path), Transcript())))
            if not active:
                return
            windows: list[tuple[_Listening, np.ndarray]] = []
            for path, listening in list(active):
                try:
                    window = self._next_window(listening)
                except sound.SoundError as error:
                    active.remove((path, listening))
                    give_up(path, str(error))
                    continue
                except OSError as error:
                    active.remove((path, listening))
                    give_up(path, str(error.strerror or error))
                    continue
                if len(window):
                    windows.append((listening, window))
                else:
                    active.remove((path, listening))
                    yield path, listening.transcript
            languages = [listening.transcript.language for listening, _ in windows]
            heard_B = self.windows([window for _, window in windows], languages)
            for (listening, window), heard in zip(windows, heard_B, strict=True):
                self._take(listening, window, heard)

    def _next_window(self, listening: _Listening) -> np.ndarray:
        """Returns the next window in which there is any sound."""
        while len(window := listening.window(self.samples)) and np.abs(window).max() < _SILENCE:
            listening.advance(len(window))
        # The rest of a file that is shorter than the shortest thing that can be timed says nothing.
        return window if len(window) > 2 * RESOLUTION * sound.RATE else window[:0]

    def windows(self, windows: Sequence[np.ndarray], languages: Sequence[str] = ()) -> list[_Heard]:
        """Returns what is heard in windows of samples, none longer than the model hears; draws anew what is unlikely.

        Args:
          languages: of the windows, as far as they are known; the model is asked where one is "".
        """
        results: list[_Heard | None] = [None] * len(windows)
        languages = languages or [""] * len(windows)
        for temperature in (0.0, *self.how.temperatures):
            todo = [i for i, heard in enumerate(results) if heard is None or self._doubtful(heard)]
            for start in range(0, len(todo), self.how.batch_size):
                chosen = todo[start : start + self.how.batch_size]
                new = self._batch([windows[i] for i in chosen], [languages[i] for i in chosen], temperature)
                for i, heard in zip(chosen, new, strict=True):
                    results[i] = heard
        return [heard for heard in results if heard is not None]

    def _batch(self, windows: Sequence[np.ndarray], languages: Sequence[str], temperature: float) -> list[_Heard]:
        rows = self.how.batch_size
        told, sums = np.full(rows, -1, np.int32), np.zeros(rows, np.uint32)
        frames = np.zeros((rows, self.samples // spectra.HOP, self.width), np.float32)
        for row, window in enumerate(windows):
            frames[row] = spectra.whisper(np.pad(window, (0, self.samples - len(window))), self.width)
            told[row] = self._codes.index(languages[row]) if languages[row] else -1
            sums[row] = zlib.crc32(window.tobytes())  # of a row's number, or a file's, neighbours would decide
        real = np.arange(rows) < len(windows)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(self.how.seed), sums)
        found = self._decode(self._params, frames, real, told, temperature, keys)
        tokens_BT, total_B, silent_B, language_B = map(np.asarray, found)
        heard = []
        for row in range(len(windows)):
            written = [int(id_) for id_ in tokens_BT[row, len(self._prefix) :]]
            ends = next((i for i, id_ in enumerate(written) if id_ in (self.vocabulary.end, -1)), len(written))
            ids = written[:ends]
            text = self.vocabulary.decode(ids).encode()
            heard.append(
                _Heard(
                    ids,
                    self.how.language or self._codes[int(language_B[row])],
                    self._mean(float(total_B[row]), len(ids)),
                    float(silent_B[row]),
                    len(text) / len(zlib.compress(text)),
                    temperature,
                )
            )
        return heard

    @staticmethod
    def _mean(total: float, tokens: int) -> float:
        # A hypothesis that was cut has a score of its own (beam_search).
        return total / (tokens + 1) if total > -1e8 else -float("inf")

    def _doubtful(self, heard: _Heard) -> bool:
        unlikely = heard.likelihood < self.how.likelihood and heard.no_speech <= self.how.no_speech
        return unlikely or heard.compression > self.how.compression

    def _take(self, listening: _Listening, window: np.ndarray, heard: _Heard) -> None:
        """Adds a window's segments to the transcript, and moves on."""
        transcript, length = listening.transcript, len(window) / sound.RATE
        if heard.no_speech > self.how.no_speech and heard.likelihood < self.how.likelihood:
            listening.advance(len(window))
            return
        transcript.language = transcript.language or heard.language
        found, following = segments(heard.ids, self.rules, length)
        begins = listening.at / sound.RATE
        for start, end, ids in found:
            # Words behind the sound's end are dropped, as Whisper's code drops segments of no length.
            times = round(begins + min(start, length), 3), round(begins + min(end, length), 3)
            if times[0] < times[1] and (text := self.vocabulary.decode(ids)):
                numbers = heard.likelihood, heard.no_speech, heard.compression, heard.temperature
                transcript.segments.append(Segment(*times, text, *numbers))
        # Where the sound ends in this window, what follows the last timestamp is silence.
        nothing_follows = listening.ended and len(listening.buffer) <= len(window) and not found[-1][2]
        rest = following >= length or nothing_follows
        listening.advance(len(window) if rest else round(following * sound.RATE))
