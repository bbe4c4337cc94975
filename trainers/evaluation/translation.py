"""Translating text with a model, and scoring translations per language and per amount of training data."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from configs.experiment import Experiment
from data.reading import caches
from data.reading.caches import read_manifest
from data.task import DataError
from data.translation import metrics
from data.translation.config import Translate
from data.translation.holdout import PLACEHOLDER
from data.vocabularies.sentencepiece import Vocabulary
from models.errors import nearest
from models.parts.decoding import beam_search
from models.protocol import Model, SequenceToSequence
from models.sharding.params import merge

_MARKS = re.compile(r"[^\w\s]|_")


@dataclasses.dataclass(frozen=True)
class Example:
    """A sentence of `lang`, and its English reference where there is one."""

    lang: str
    source: str
    target: str = ""


def read_examples(folder: Path, split: str, per_language: int = 0) -> list[Example]:
    """The held-out examples of a cache's split; of each language the first `per_language`, or all if that is 0."""
    taken: dict[str, int] = {}
    found = []
    for fields in caches.examples(folder, split):
        example = Example(**fields)
        taken[example.lang] = taken.get(example.lang, 0) + 1
        if not per_language or taken[example.lang] <= per_language:
            found.append(example)
    return found


class Translator:
    """Beam search with a model's parameters, compiled once for one shape of batch.

    Args:
      abstract: the model with shapes for parameters, on its mesh (trainers.plan.Plan.model).
      folder: where `source.model`, `target.model` and `manifest.json` lie: a prepared cache or a release.
    """

    def __init__(self, abstract: Model, config: Translate, folder: Path):
        if not isinstance(abstract, SequenceToSequence):
            raise DataError(f"models of family {abstract.c.family!r} do not translate")
        vocab = abstract.target_vocab
        manifest = read_manifest(folder)
        self.config = config
        self.source_length = manifest["source_length"]
        self.languages = sorted(manifest["languages"])
        self.source, self.target = Vocabulary(folder / "source.model"), Vocabulary(folder / "target.model")
        mesh = abstract.where.mesh
        self._sharding = mesh and NamedSharding(
            mesh, abstract.where.spec(("batch", None), (config.batch_size, 0), tensor="sentences")
        )

        # Every process reads every translation: the scores are the same everywhere.
        @functools.partial(jax.jit, out_shardings=mesh and NamedSharding(mesh, P()))
        def search(params, ids_BS):
            model = merge(abstract, params)
            state = model.start(ids_BS, config.beams, config.max_length)
            tokens_BKT, _ = beam_search(
                model, state, (ids_BS > 0).any(axis=1), beams=config.beams, steps=config.max_length,
                vocab=vocab, usable=self.target.size, alpha=config.length_penalty, eos=self.target.eos_id,
            )  # fmt: skip
            return tokens_BKT[:, 0]

        self._search = search

    def encode(self, lang: str, text: str) -> list[int]:
        """Tag, pieces, end of sentence: at most the rows' length, cut at the end."""
        if lang not in self.languages:
            raise DataError(f"the model does not know language {lang!r}{nearest(lang, self.languages)}")
        ids = [self.source.tag_id(lang), *self.source.encode(text)][: self.source_length - 1]
        return [*ids, self.source.eos_id]

    def __call__(self, params: Any, examples: Sequence[Example]) -> list[str]:
        """The best translation of each example, in their order."""
        encoded = [self.encode(e.lang, e.source) for e in examples]
        # Sentences of like length share a batch, so that a batch ends when its sentences do.
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
        outputs = [""] * len(encoded)
        rows = self.config.batch_size
        for start in range(0, len(order), rows):
            chosen = order[start : start + rows]
            ids_BS = np.zeros((rows, self.source_length), np.int32)
            for row, i in enumerate(chosen):
                ids_BS[row, : len(encoded[i])] = encoded[i]
            found = np.asarray(self._search(params, jax.device_put(ids_BS, self._sharding)))
            for row, i in enumerate(chosen):
                outputs[i] = self.target.decode(found[row])
        return outputs


def strip(text: str) -> str:
    """Lower-cased words alone: no placeholders, tags, entities or punctuation, which copying gets right for free."""
    return " ".join(_MARKS.sub(" ", PLACEHOLDER.sub(" ", text)).lower().split())


def score(references: Sequence[str], outputs: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF, each raw and on stripped text, 0 to 100."""
    plain = [strip(t) for t in references], [strip(t) for t in outputs]
    return {
        **metrics.bleu(references, outputs),
        **metrics.chrf(references, outputs),
        **{f"stripped_{k}": v for f in (metrics.bleu, metrics.chrf) for k, v in f(*plain).items()},
    }


def buckets(languages: dict[str, Any]) -> dict[str, str]:
    """Each language's bucket, "high", "middle" or "low": thirds by number of training pairs."""
    ranked = sorted(languages, key=lambda name: (-languages[name]["pairs"], name))
    third = -(-len(ranked) // 3)
    return {name: ("high", "middle", "low")[i // third] for i, name in enumerate(ranked)}


def report(examples: Sequence[Example], outputs: Sequence[str], folder: Path) -> dict[str, Any]:
    """Scores of all examples, per resource bucket and per language: {"all": ..., "buckets": ..., "languages": ...}."""
    bucket_of = buckets(read_manifest(folder)["languages"])

    def of(kept: Iterable[int]) -> dict[str, float]:
        kept = list(kept)
        return score([examples[i].target for i in kept], [outputs[i] for i in kept]) | {"sentences": len(kept)}

    def grouped(key) -> dict[str, dict[str, float]]:
        keys = [key(e) for e in examples]
        return {k: of(i for i, have in enumerate(keys) if have == k) for k in sorted(set(keys))}

    return {
        "all": of(range(len(examples))),
        "buckets": grouped(lambda e: bucket_of.get(e.lang, "unseen")),
        "languages": grouped(lambda e: e.lang),
    }


def shuffled(examples: Sequence[Example]) -> list[Example]:
    """The same references with other sources of the same language: what a model scores that ignores its input.

    Sources move on by half their language's examples, so that none keeps its own where a language has several.
    """
    by_lang: dict[str, list[int]] = {}
    for i, example in enumerate(examples):
        by_lang.setdefault(example.lang, []).append(i)
    moved = list(examples)
    for places in by_lang.values():
        for at, i in enumerate(places):
            other = examples[places[(at + max(1, len(places) // 2)) % len(places)]]
            moved[i] = dataclasses.replace(examples[i], source=other.source)
    return moved


def evaluate(
    translate: Callable[[Sequence[Example]], list[str]], examples: Sequence[Example], folder: Path
) -> dict[str, Any]:
    """The model's `report`, and under "baselines" what copying the source and translating other sources score."""
    found = report(examples, translate(examples), folder)
    baselines = {
        "source copied": score([e.target for e in examples], [e.source for e in examples]),
        "other sources": score([e.target for e in examples], translate(shuffled(examples))),
    }
    return found | {"baselines": baselines}


def table(found: dict[str, Any], languages: bool = False) -> str:
    """`evaluate` for people."""
    columns = ("stripped_bleu", "bleu", "stripped_chrf", "chrf")
    rows = {"all": found["all"]} | {f"{k} resource": found["buckets"][k] for k in ("high", "middle", "low")
                                    if k in found["buckets"]} | found.get("baselines", {})  # fmt: skip
    if languages:
        rows |= found["languages"]
    lines = [f"{'':16}" + "".join(f"{c:>15}" for c in columns)]
    lines += [f"{name:16}" + "".join(f"{scores[c]:15.2f}" for c in columns) for name, scores in rows.items()]
    return "\n".join(lines)


class TranslationEvaluator:
    """Scores of a model's translations of a held-out split.

    Args:
      model: with shapes for parameters, on its mesh.
      cache: the prepared cache with the sentences.
      vocabulary: the folder with the model's vocabularies: the cache, or a release.
    """

    def __init__(self, model: Model, e: Experiment, cache: Path, vocabulary: Path):
        config: Any = e.eval
        self.folder = vocabulary
        self.translator = Translator(model, config, vocabulary)
        self.examples = read_examples(cache, config.split, config.per_language)

    @property
    def names(self) -> list[str]:
        """The scalars that a call returns."""
        known = set(buckets(read_manifest(self.folder)["languages"]).values())
        return [f"eval/{k}" for k in (*score([""], [""]), "sentences", *(f"stripped_bleu_{b}" for b in sorted(known)))]

    @property
    def samples(self) -> int:
        """How many held-out sentences a call translates."""
        return len(self.examples)

    def __call__(self, params: Any) -> dict[str, float]:
        """Returns `eval/...` scalars: of all languages together, stripped BLEU of each resource bucket, and of each language."""
        scores = report(self.examples, self.translator(params, self.examples), self.folder)
        named = {f"eval/{k}": v for k, v in scores["all"].items()}
        named |= {f"eval/stripped_bleu_{k}": v["stripped_bleu"] for k, v in scores["buckets"].items()}
        for lang, of_language in scores["languages"].items():
            named |= {f"eval/language/{lang}/{k}": of_language[k] for k in ("bleu", "chrf", "stripped_bleu")}
        return named

    def report(self, params: Any, *, details: bool = False) -> tuple[dict[str, Any], str]:
        """Returns `evaluate` of the split, and its table."""
        scores = evaluate(lambda these: self.translator(params, these), self.examples, self.folder)
        return scores, table(scores, languages=details)


EVALUATOR = TranslationEvaluator
