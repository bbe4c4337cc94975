"""Rows by index: of a prepared cache or random, and what is done to them each time they come. No TensorFlow."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from configs.experiment import Data
from data.features import Array
from data.labelled.config import LabelledData
from data.reading import caches
from data.reading.caches import DataError, cache_folder, check_model, read_manifest
from data.text import masking
from data.text.config import MaskedTextData
from data.vocabularies.tokenizers import Tokenizer

Row = dict[str, np.ndarray]


class Source(Protocol):
    """An endless sequence of rows."""

    @property
    def fingerprint(self) -> str:
        """What the rows depend on, besides the index."""
        ...

    def row(self, index: int) -> Row:
        """The row at a global index: int32 arrays [L]."""
        ...


class SyntheticSource:
    """Rows of random ids and labels, each one example that fills the row."""

    def __init__(self, data: Data, model: Any):
        self.data = data
        self.vocab = min(getattr(model, field) for field in model.vocabularies.values())
        self.labels = getattr(model, "labels", 0)
        self.fingerprint = f"synthetic-{data.seed}-{self.vocab}"

    def row(self, index: int) -> Row:
        rng = np.random.default_rng((self.data.seed, index))
        return {name: self._array(name, array.shape, rng) for name, array in self.data.stored().items()}

    def _array(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        if name.endswith("segments"):
            return np.ones(shape, np.int32)
        if name.endswith("positions"):
            return np.arange(*shape, dtype=np.int32)
        if name == "types":
            return np.zeros(shape, np.int32)
        if name.endswith("slots"):
            return np.arange(*shape, dtype=np.int32)
        if name == "pair_targets":
            return rng.integers(0, 2, shape, dtype=np.int32)
        if name == "targets" and len(shape) == 2:  # spans of two tokens
            return rng.integers(1, 8, (shape[0], 1), dtype=np.int32) + np.arange(2, dtype=np.int32)
        if name == "targets" and self.labels:
            return rng.integers(0, self.labels, shape, dtype=np.int32)
        if name == "targets" and name not in _token_arrays(self.data):  # pairs: neighbours belong together
            return np.arange(*shape, dtype=np.int32) // 2
        return rng.integers(3, self.vocab, shape, dtype=np.int32)


def _token_arrays(data: Data) -> set[str]:
    """Names of the arrays that hold token ids: those that come with segments."""
    names = data.stored()
    return {name for name in names if f"{name}_segments" in names or name == "tokens"}


class CacheSource:
    """Rows of a prepared cache, shuffled anew in every epoch, its parts (languages, sources of text) mixed in proportion
    to n^(1/T), by Grain."""

    def __init__(self, data: Data, folder: Path):
        import grain

        manifest = read_manifest(folder)
        self.stored = data.stored()
        check_shapes(data, manifest)
        found = {name: info for name, info in caches.parts(manifest).items() if info["rows"]}
        temperature = getattr(data, "temperature", 1.0)
        self.fingerprint = f"{manifest['fingerprint']}-{data.seed}-{temperature:g}"
        rows: list[Any] = [
            grain.MapDataset.source(
                cast(Any, grain.sources.ArrayRecordDataSource(str(folder / "train" / f"{name}.array_record")))
            )
            .seed(_seed(data.seed, name))
            .shuffle()
            .repeat()
            for name in found
        ]
        sizes = [info[_SIZES[manifest["kind"]]] for info in found.values()]
        weights = np.array(sizes, np.float64) ** (1 / temperature)
        self._rows = grain.MapDataset.mix(rows, weights=list(weights / weights.sum()))

    def row(self, index: int) -> Row:
        return unpack(np.frombuffer(cast(bytes, self._rows[index]), "<i4"), self.stored)


# What the size of a cache's part is counted in, by the cache's kind.
_SIZES = {"translation": "pairs", "text": "rows", "labelled": "rows"}


def unpack(record: np.ndarray, stored: dict[str, Array]) -> Row:
    """A stored record as named arrays."""
    ends = np.cumsum([int(np.prod(array.shape)) for array in stored.values()])
    pieces = np.split(record, ends[:-1])
    return {name: piece.reshape(array.shape) for (name, array), piece in zip(stored.items(), pieces, strict=True)}


def check_shapes(data: Data, manifest: dict) -> None:
    """Refuses data whose lengths are not those that the cache was packed with."""
    for field in ("source_length", "target_length", "length", "slots", "pairs"):
        if hasattr(data, field) and getattr(data, field) != manifest.get(field, 0):
            have = manifest.get(field, 0)
            raise DataError(f"data.{field}={getattr(data, field)}: cache {data.cache!r} was packed with {have}")


def _seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4], "little")


@dataclasses.dataclass(frozen=True)
class MaskedSource:
    """Rows with tokens masked anew each time: what is masked depends on the seed and the index alone."""

    data: MaskedTextData | LabelledData
    source: Source
    vocabulary: masking.Vocabulary

    @property
    def fingerprint(self) -> str:
        data = self.data
        how = f"{data.masked:g}" if isinstance(data, LabelledData) else f"{data.rate:g}-{data.whole_word}"
        return f"{self.source.fingerprint}-{how}"

    def row(self, index: int) -> Row:
        rng = np.random.default_rng((self.data.seed, 1, index))
        return masked(self.data, self.source.row(index), rng, self.vocabulary)


def masked(
    data: MaskedTextData | LabelledData, row: Row, rng: np.random.Generator, vocabulary: masking.Vocabulary
) -> Row:
    """The row with tokens to predict, or without those to do without, as the data says."""
    if isinstance(data, LabelledData):
        return masking.hide(row, rng, vocabulary, data.masked)
    return masking.mask(row, rng, vocabulary, rate=data.rate, whole_word=data.whole_word, predictions=data.predictions)


def finished(data: Data, source: Source, folder: Path | None) -> Source:
    """The source as the model gets it.

    Args:
      folder: where tokenizer.json lies; None for random tokens, none of which is special.
    """
    if not isinstance(data, MaskedTextData | LabelledData) or (isinstance(data, LabelledData) and not data.masked):
        return source
    if folder is None:
        assert isinstance(source, SyntheticSource)
        vocabulary = masking.Vocabulary.without_words(source.vocab)
    else:
        vocabulary = masking.Vocabulary.of(Tokenizer(folder))
    return MaskedSource(data, source, vocabulary)


def open_source(data: Data, model: Any) -> Source:
    """The rows of an experiment's data: stored or random ones, masked where the data says so."""
    if not data.cache:
        return finished(data, SyntheticSource(data, model), None)
    folder = cache_folder(data)
    check_model(model, read_manifest(folder))
    return finished(data, CacheSource(data, folder), folder)
