"""Transcribing sound of any length: windows of 30 s, several sounds at a time, with timestamps and languages.

A window begins where the last segment of the one before ended (Whisper, arXiv 2212.04356, section 4.5). Unlike the released
code, each window is normalised by itself, so that a file is read as it goes and hours of it need little memory; and no window is
given the text before it, so that one that goes wrong does not spoil those after it.

There is no other way from a sound to the text of such a model: `scripts.transcribe` writes files with a Transcriber, and a
DecodingEvaluator scores held-out utterances with one (UtteranceDecoder).
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from data.config import Decode
from data.decoding import Decoding, HasSounds
from data.features import Example, Feature, slots
from data.speech import sound, spectra
from data.speech.vocabulary import RESOLUTION, Task, WhisperVocabulary
from data.task import DataError
from models.errors import UserError
from models.parts.decoding import beam_search, forced, penalty, sample
from models.protocol import Batch, HearsWindows, Model
from models.sharding.params import Params
from trainers.inference.decoder import REAL
from trainers.inference.runner import Runner
from trainers.inference.timestamps import Rules, rules_of, segments

_SILENCE = 1e-4  # a window that is nowhere louder has nothing to transcribe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transcribe:
    """Settings of a transcription.

    Attributes:
      timed: writes timestamps, which also cut long files where nobody speaks.
      beams: hypotheses; 1 is greedy.
      length_penalty: of the beam search, see models.parts.decoding.penalty.
      temperatures: a window whose text is unlikely or repeats itself is drawn again with each of these in turn.
      compression: above this ratio of a text's bytes to its compressed ones it repeats itself.
      likelihood: below this mean log-probability of its tokens a text is unlikely.
      no_speech: above this probability that nobody speaks, an unlikely text is dropped.
      batch_size: windows that are decoded together.
      tokens: the most tokens of a window.
      suppress: never writes tokens that are no speech, such as remarks in brackets.
      seed: of the draws, which depend on it and on a window's sound alone.
    """

    timed: bool = True
    beams: int = 1
    length_penalty: float = 0.0
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
    """The words from `start` to `end`, in seconds of the sound; the other numbers are those of its window's text."""

    start: float
    end: float
    text: str
    likelihood: float
    no_speech: float
    compression: float
    temperature: float


@dataclasses.dataclass
class Transcript:
    """The language of a sound, its length in seconds, and its segments."""

    language: str = ""
    seconds: float = 0.0
    segments: list[Segment] = dataclasses.field(default_factory=list)

    @property
    def text(self) -> str:
        """Returns the text of all segments."""
        return " ".join(segment.text for segment in self.segments)


@dataclasses.dataclass(eq=False)
class Recording:
    """A sound that is transcribed, read as far as needed.

    Attributes:
      name: by which it is known, such as a file's path.
      blocks: its samples at 16 kHz, a block at a time.
      prefix: the ids that the text of each window begins with (`Transcriber.prefix`).
      at: the sample at which the next window begins.
      buffer: samples from there on.
      ended: whether all blocks are read.
    """

    name: Any
    blocks: Iterator[np.ndarray]
    prefix: list[int]
    transcript: Transcript = dataclasses.field(default_factory=Transcript)
    at: int = 0
    buffer: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.float32))
    ended: bool = False

    def window(self, size: int) -> np.ndarray:
        """Returns the next samples, at most `size`; none at the end."""
        while len(self.buffer) < size and not self.ended:
            block = next(self.blocks, None)
            self.ended = block is None
            self.buffer = self.buffer if block is None else np.concatenate([self.buffer, block])
        self.transcript.seconds = (self.at + len(self.buffer)) / sound.RATE
        return self.buffer[:size]

    def advance(self, samples: int) -> None:
        """Moves the next window."""
        self.buffer, self.at = self.buffer[samples:], self.at + samples


@dataclasses.dataclass(frozen=True)
class WindowText:
    """The text of a window: its ids after the prefix, and how likely they are."""

    ids: list[int]
    language: str
    likelihood: float
    no_speech: float
    compression: float
    temperature: float


class TextState(NamedTuple):
    """The state of a text between two tokens: the model's, and the probability [B] that nobody speaks."""

    state: Any
    silent_B: jax.Array


@dataclasses.dataclass(frozen=True)
class Listening:
    """A model of which the token after the start says the language, where the prefix has none, and whether anybody speaks.

    It is `Searchable` as the model is. The first step is one of the loop, since outside it would be compiled a second time.
    """

    model: Any
    vocabulary: WhisperVocabulary

    def step(self, state: TextState, ids_BK: jax.Array, at: jax.Array) -> tuple[jax.Array, TextState]:
        """Returns the model's logits [B, K, V], of a first token the likeliest language alone, and the next state."""
        logits_BKV, inner = self.model.step(state.state, ids_BK, at)
        first_BV, languages = logits_BKV[:, 0].astype(jnp.float32), [*self.vocabulary.languages.values()]
        silent_B = jnp.where(at == 0, jax.nn.softmax(first_BV)[:, self.vocabulary.no_speech], state.silent_B)
        if languages:
            ids_N = jnp.array(languages, jnp.int32)
            language_B = ids_N[jnp.argmax(first_BV[:, ids_N], axis=-1)]
            logits_BKV = jnp.where(at == 0, forced(logits_BKV, language_B), logits_BKV)
        return logits_BKV, TextState(inner, silent_B)

    def reorder(self, state: TextState, parent_BK: jax.Array) -> TextState:
        """Returns the state in which hypothesis k continues what hypothesis parent[b, k] was."""
        return state._replace(state=self.model.reorder(state.state, parent_BK))


class Transcriber:
    """Transcription with a model, compiled once for greedy or beam search and once for each temperature.

    Args:
      model: with shapes for parameters, on its mesh.
      vocabulary: the model's.

    Raises:
      DataError: the model turns no windows of sound into text, or has fewer tokens than the vocabulary.
    """

    def __init__(self, model: Model, vocabulary: WhisperVocabulary, how: Transcribe):
        if not isinstance(model, HearsWindows):
            raise DataError(f"models of family {model.c.family!r} do not turn windows of sound into text")
        if model.target_vocab < vocabulary.size:
            raise DataError(f"the vocabulary has {vocabulary.size} tokens, the model {model.target_vocab}")
        self.how, self.vocabulary = how, vocabulary
        self._codes = {id_: code for code, id_ in vocabulary.languages.items()}
        frames, self.width = model.window
        self.samples = frames * spectra.HOP
        self._places = len(self.prefix())
        self._steps = min(how.tokens + self._places, model.longest)
        self.rules: Rules = rules_of(vocabulary, self._places, timed=how.timed, suppress=how.suppress)
        features = {
            "frames": Feature((frames, self.width), ("length", None), dtype="float32"),
            "prefix": slots(self._places),
            **{name: Feature((), ()) for name in ("seed", REAL)},
        }
        self._runners = {
            temperature: Runner(model, features, how.batch_size, functools.partial(self._decode, temperature=temperature))
            for temperature in (0.0, *how.temperatures)
        }

    def prefix(self, language: str = "", task: Task = "transcribe") -> list[int]:
        """Returns the ids that a text begins with; without a language, the first is 0 and the model fills it in.

        Raises:
          VocabularyError: the vocabulary has no such language, or the model is English-only and asked for another.
        """
        languages = self.vocabulary.languages
        ids = self.vocabulary.prefix(language or next(iter(languages), "en"), task, timestamps=self.how.timed)
        return ids if language or not languages else [0, *ids[1:]]

    def _decode(self, model: Any, batch: Batch, *, temperature: float) -> tuple[jax.Array, ...]:
        """Returns the best text of each window with its log-probability, and the probability that nobody speaks."""
        how, vocabulary, rows = self.how, self.vocabulary, len(batch["frames"])
        beams, real_B = 1 if temperature else how.beams, batch[REAL] > 0
        source = {"frames": batch["frames"], "frames_segments": jnp.ones(batch["frames"].shape[:2], jnp.int32)}
        listening = Listening(model, vocabulary)
        state = TextState(model.start(source, beams, self._steps), jnp.zeros(rows))
        common: dict[str, Any] = dict(steps=self._steps, eos=vocabulary.end, pad=-1, usable=vocabulary.size, rule=self.rules)
        common |= {"prefix_BP": batch["prefix"]} if self._places else {}
        if temperature:
            keys_B = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(how.seed), batch["seed"])
            texts = sample(listening, state, real_B, keys_B, samples=1, temperature=temperature, **common)
        else:
            vocab, alpha = model.target_vocab, how.length_penalty
            texts = beam_search(listening, state, real_B, beams=beams, vocab=vocab, alpha=alpha, **common)
        tokens_BKT, total_BK, state = texts
        return tokens_BKT[:, 0], total_BK[:, 0], state.silent_B

    def __call__(
        self, params: Params, recordings: Iterable[Recording], failed: Callable[[Any, str], None] | None = None
    ) -> Iterator[Recording]:
        """Yields each recording with its transcript, as soon as it is done.

        Args:
          failed: called with the name of a sound that cannot be read, and why; by default the first raises UserError.
        """
        waiting, active = iter(recordings), list[Recording]()
        while True:
            while len(active) < self.how.batch_size and (recording := next(waiting, None)) is not None:
                active.append(recording)
            if not active:
                return
            windows: list[np.ndarray] = []
            for recording in list(active):
                try:
                    window = self._next_window(recording)
                except (sound.SoundError, OSError) as error:
                    active.remove(recording)
                    why = str(getattr(error, "strerror", None) or error)
                    if failed is None:
                        raise UserError(f"{recording.name}: {why}") from None
                    failed(recording.name, why)
                    continue
                if len(window):
                    windows.append(window)
                else:
                    active.remove(recording)
                    yield recording
            texts = self.windows(params, windows, [recording.prefix for recording in active])
            for recording, window, text in zip(active, windows, texts, strict=True):
                self._take(recording, window, text)

    def _next_window(self, recording: Recording) -> np.ndarray:
        """Returns the next window in which there is any sound."""
        while len(window := recording.window(self.samples)) and np.abs(window).max() < _SILENCE:
            recording.advance(len(window))
        # An end that is shorter than the shortest thing that can be timed says nothing.
        return window if len(window) > 2 * RESOLUTION * sound.RATE else window[:0]

    def windows(self, params: Params, windows: Sequence[np.ndarray], prefixes: Sequence[list[int]]) -> list[WindowText]:
        """Returns the texts of windows of samples, none longer than the model's; draws unlikely ones again."""
        texts: dict[int, WindowText] = {}
        for temperature, runner in self._runners.items():
            todo = [i for i in range(len(windows)) if i not in texts or self._doubtful(texts[i])]
            if not todo:
                break
            outputs = runner.map(params, [self._row(windows[i], prefixes[i]) for i in todo])
            for i, *window_outputs in zip(todo, *outputs, strict=True):
                texts[i] = self._text(*window_outputs, temperature=temperature)
        return [texts[i] for i in range(len(windows))]

    def _row(self, window: np.ndarray, prefix: list[int]) -> Example:
        frames = spectra.whisper(np.pad(window, (0, self.samples - len(window))), self.width)
        # By a row's number, or a file's, its neighbours would decide what is drawn.
        seed = np.array(zlib.crc32(window.tobytes()), np.uint32).view(np.int32)
        return {"frames": frames, "prefix": np.array(prefix, np.int32), "seed": seed, REAL: np.array(1, np.int32)}

    def _text(self, tokens_T: np.ndarray, score: float, silent: float, *, temperature: float) -> WindowText:
        written = tokens_T[self._places :].tolist()
        ids = written[: next((i for i, id_ in enumerate(written) if id_ in (self.vocabulary.end, -1)), len(written))]
        text = self.vocabulary.decode(ids).encode()
        language = self._codes[int(tokens_T[0])] if self._codes else "en"
        likelihood = self._mean(float(score), len(ids), 0.0 if temperature else self.how.length_penalty)
        return WindowText(ids, language, likelihood, float(silent), len(text) / len(zlib.compress(text)), temperature)

    def _mean(self, score: float, tokens: int, alpha: float) -> float:
        """Returns the mean log-probability of a text's tokens and its end, from its score in a search with this penalty."""
        total = score * penalty(self._places + tokens + 1, alpha)
        # A hypothesis that was cut has a score of its own (beam_search).
        return float(total) / (tokens + 1) if score > -1e8 else -float("inf")

    def _doubtful(self, text: WindowText) -> bool:
        unlikely = text.likelihood < self.how.likelihood and text.no_speech <= self.how.no_speech
        return unlikely or text.compression > self.how.compression

    def _take(self, recording: Recording, window: np.ndarray, text: WindowText) -> None:
        """Adds a window's segments to the transcript, and moves on."""
        transcript, length = recording.transcript, len(window) / sound.RATE
        if text.no_speech > self.how.no_speech and text.likelihood < self.how.likelihood:
            recording.advance(len(window))
            return
        transcript.language = transcript.language or text.language
        if self._codes:  # the language of the first window with speech is that of all others
            recording.prefix[0] = self.vocabulary.languages[transcript.language]
        timed, following = segments(text.ids, self.rules, length)
        begins = recording.at / sound.RATE
        for start, end, ids in timed:
            # Words after the sound's end are dropped, as Whisper's code drops segments of no length.
            times = round(begins + min(start, length), 3), round(begins + min(end, length), 3)
            if times[0] < times[1] and (words := self.vocabulary.decode(ids)):
                numbers = text.likelihood, text.no_speech, text.compression, text.temperature
                transcript.segments.append(Segment(*times, words, *numbers))
        # Where the sound ends in this window, what follows the last timestamp is silence.
        nothing_follows = recording.ended and len(recording.buffer) <= len(window) and not timed[-1][2]
        whole = following >= length or nothing_follows
        recording.advance(len(window) if whole else round(following * sound.RATE))


class UtteranceDecoder:
    """The texts of held-out utterances of known language and task, as a Transcriber writes them.

    An evaluation sets beams, the longest text and the batch; all else is as by default, and so as in `scripts.transcribe`.
    """

    @staticmethod
    def suits(model: Model, decoding: Decoding[Any]) -> bool:
        """Returns whether the model is one of those that `scripts.transcribe` takes, and the examples are sounds."""
        sounds = isinstance(decoding, HasSounds) and isinstance(decoding.vocabulary, WhisperVocabulary)
        return sounds and isinstance(model, HearsWindows)

    def __init__(self, model: Model, config: Decode, decoding: Any):
        how = Transcribe(
            beams=config.beams, length_penalty=config.length_penalty, tokens=config.max_length, batch_size=config.batch_size
        )
        self.decoding, self.transcriber = decoding, Transcriber(model, decoding.vocabulary, how)

    def __call__(self, params: Params, examples: Sequence[Any]) -> list[str]:
        """Returns the text of each example, in their order."""

        def recording(number: int, example: Any) -> Recording:
            blocks = (self.decoding.samples(example) for _ in range(1))  # read when its turn comes
            return Recording(number, blocks, self.transcriber.prefix(example.language, example.task))

        recordings = (recording(number, example) for number, example in enumerate(examples))
        texts = {recording.name: recording.transcript.text for recording in self.transcriber(params, recordings)}
        return [texts[number] for number in range(len(examples))]
