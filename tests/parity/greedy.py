"""Compares whole greedy continuations with those of `transformers`, token for token, on released weights.

    python -m tests.parity.greedy            all MODELS whose weights are fetched
    python -m tests.parity.greedy NAME...    these alone

A decoder continues prompts of many kinds, and Whisper writes down LibriVox's sentences without timestamps. Both sides read the
text or the sound itself and compute in float32. Beside the tokens, the largest difference of any logit along the continuation is
printed. Where a token differs, so are both sides' logits of the two tokens: a choice between logits that are nearer to each other
than that difference is a tie, and anything else fails.
"""

import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import load_file, save_file

from configs.experiment import Experiment
from data.packages import fetch
from data.packages.fetch import FetchError
from data.packages.weights import weights_folder
from data.paths import data_dir
from data.speech import spectra
from data.speech.sources import PACKAGES
from data.speech.vocabulary import WhisperVocabulary, open_vocabulary
from models.errors import nearest
from models.execution import Execution
from tests.parity import ours
from tests.parity.live import theirs
from trainers.inference.generation import Generate, Generator
from trainers.inference.load import load
from trainers.inference.transcription import Transcribe, Transcriber
from trainers.weights import huggingface
from trainers.weights.load_any import open_model
from trainers.weights.source import Weights

TOKENS = 64
PROMPTS = {
    "a fact": "The capital of France is",
    "a story": "Once upon a time, in a village at the edge of a dark forest, there lived an old clockmaker who",
    "code": 'def fibonacci(n):\n    """Returns the n-th Fibonacci number."""\n',
    "sums": "12 + 30 = 42\n7 + 15 = 22\n81 + 9 =",
    "a list": "Shopping list:\n- two loaves of bread\n- a dozen eggs\n-",
    "a question": "Question: Why is the sky blue?\nAnswer:",
    "French": "Il était une fois une petite fille qui",
    "one word": "Photosynthesis",
    "signs": "🙂🙃 ∑∫ naïve café — “quoted” … 100 % &",
    "a long text": "The history of the steam engine begins in antiquity. " * 12 + "In the eighteenth century, James Watt",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """Texts that both sides wrote of a prompt or sound: ids from the prompt or prefix on, and logits [T, V] along theirs."""

    name: str
    mine: list[int]
    other: list[int]
    given: int
    mine_TV: np.ndarray
    other_TV: np.ndarray

    @property
    def apart(self) -> float:
        """The largest difference of any logit."""
        return float(np.max(np.abs(self.mine_TV - self.other_TV)))

    @property
    def nearest_choice(self) -> float:
        """The smallest distance of a chosen token's logit from the one after it, as they have it."""
        best_T2 = np.partition(self.other_TV, -2, axis=-1)[:, -2:]
        return float(np.min(best_T2[:, 1] - best_T2[:, 0]))

    def difference(self) -> tuple[str, bool]:
        """Returns what differs first, or "", and whether it is a tie."""
        if self.mine == self.other:
            return "", True
        pairs = zip(self.mine, self.other, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self.mine), len(self.other)))
        step, two = at - self.given, [ids[at] if at < len(ids) else -1 for ids in (self.mine, self.other)]
        if step < 0 or -1 in two:
            return f"position {at}: token {two[0]} here, {two[1]} there", False
        here, there = ([float(x_TV[step, i]) for i in two] for x_TV in (self.mine_TV, self.other_TV))
        text = f"token {step}: {two[0]} here ({here[0]:.6f} to {here[1]:.6f}), {two[1]} there ({there[0]:.6f} to {there[1]:.6f})"
        return text, abs(there[1] - there[0]) <= self.apart


def _theirs(what: str, model: Path, settings: dict[str, Any], arrays: dict[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    """Yields the ids, their prompt among them, and the logits of each row that `transformers` wrote (tests/parity/theirs.py)."""
    save_file(arrays, model / "given.safetensors")
    (model / "given.json").write_text(json.dumps(settings))
    theirs(what, model)
    for i in range(len(arrays) or len(settings["prompts"])):
        yield load_file(model / f"written{i}.safetensors")


def decoder(e: Experiment, source: Weights, folder: Path) -> Iterator[Row]:
    """Yields what is written after each prompt."""
    assert source.vocabulary
    served = load(source, e.execution)
    generator = Generator(served.model, Generate(tokens=TOKENS, batch_size=len(PROMPTS)), source.vocabulary)
    generated = generator(served.params, list(PROMPTS.values()))
    model, logits = ours.model(source), jax.jit(lambda m, b: m(b))
    settings = {"prompts": list(PROMPTS.values()), "tokens": TOKENS, "ends": generator.ends}
    others = _theirs("continue", folder, settings, {})
    for (name, text), (own, *_), other in zip(PROMPTS.items(), generated, others, strict=True):
        prompt, ids = generator.tokenizer.whole(text), other["ids"].tolist()
        ended = [] if len(own.ids) == TOKENS else [generator.ends[0]]
        row = np.array([ids + [0] * (-len(ids) % 256)], np.int32)
        out_SV = np.asarray(logits(model, ours.batch({"tokens": row, "mask": np.ones_like(row)})))[0]
        given = len(ids) - len(other["logits"])
        yield Row(name, prompt + own.ids + ended, ids, given, out_SV[given - 1 : len(ids) - 1], other["logits"])


def whisper(e: Experiment, source: Weights, folder: Path) -> Iterator[Row]:
    """Yields what is written of each of LibriVox's sentences."""
    assert source.vocabulary
    vocabulary = open_vocabulary(source.vocabulary)
    assert isinstance(vocabulary, WhisperVocabulary)
    librivox = PACKAGES["librivox"]
    items = librivox.read(*fetch.fetch(librivox.packages, data_dir() / "packages"))
    sounds = {item.example.name: item.example.read() for item in items}
    how = Transcribe(timed=False, temperatures=(), batch_size=len(sounds))
    served = load(source, e.execution)
    transcriber = Transcriber(served.model, vocabulary, how)
    rules, prefix = transcriber.rules, transcriber.prefix("en")
    transcripts = transcriber.windows(served.params, list(sounds.values()), [prefix] * len(sounds))
    settings = {"prefix": prefix, "tokens": how.tokens, "ends": [vocabulary.end], "first": rules.never_first}
    settings["never"] = [*rules.never, *range(vocabulary.timestamp, vocabulary.size)]
    model, logits = ours.model(source), jax.jit(lambda m, b: m(b))
    others = _theirs("transcribe", folder, settings, {str(i): x for i, x in enumerate(sounds.values())})
    for (name, samples), own, other in zip(sounds.items(), transcripts, others, strict=True):
        ids = other["ids"].tolist()
        row = np.array([ids + [0] * (-len(ids) % 64)], np.int32)
        padded = np.pad(samples, (0, transcriber.samples - len(samples)))
        frames = spectra.whisper(padded, transcriber.width)[None]
        out_TV = np.asarray(logits(model, ours.batch({"frames": frames, "targets": row})))[0]
        mine = [*prefix, *own.ids, vocabulary.end]
        yield Row(name, mine, ids, len(prefix), out_TV[len(prefix) : len(ids)], other["logits"])


MODELS = {"smollm2_135m": decoder, "whisper_tiny_en": whisper, "whisper_base": whisper}


def compare(name: str, scratch: Path) -> bool:
    """Prints how the rows of a model compare; whether all are equal, but for ties."""
    e, source = open_model(weights_folder(name))
    e = dataclasses.replace(e, execution=Execution())
    huggingface.write_folder(source, scratch / name)
    print(f"{name:<32}{'tokens':>8}{'':>12}{'logits apart':>14}{'nearest choice':>16}")
    fine = True
    for row in MODELS[name](e, source, scratch / name):
        text, tie = row.difference()
        same = "equal" if not text else "tie" if tie else "DIFFERENT"
        print(f"  {row.name:<30}{len(row.other_TV):>8}{same:>12}{row.apart:>14.1e}{row.nearest_choice:>16.1e}", flush=True)
        if text:
            print(f"    {text}")
        fine &= tie
    return fine


def main(names: list[str]) -> int:
    if lost := [name for name in names if name not in MODELS]:
        print(f"no model {lost[0]!r}{nearest(lost[0], MODELS)}", file=sys.stderr)
        return 1
    fine = True
    for name in names or MODELS:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                fine &= compare(name, Path(scratch))
            except FetchError as error:
                print(f"not compared: {error}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
