"""Hugging Face folders as weights: config.json and safetensors, or Flax's msgpack, whole or in shards, a tensor at a time.

safetensors are written; Flax's files (flax_files.py), which version 4 of `transformers` wrote, are read.

Each family maps the names and the layout of tensors (models/<family>/huggingface.py).
"""

import contextlib
import dataclasses
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from data import paths, untrusted
from data.vocabularies import boundaries, chat_templates, files
from data.vocabularies.files import TOKENIZER
from data.vocabularies.tokenizers import Tokenizer
from models.errors import nearest, shortened, told
from models.families import FAMILIES, interchange_of
from models.interchange import Conversion, Entry, Index, Interchange, InterchangeError, Shape, tensors
from models.interchange.settings import setting
from trainers.weights import sentences, tensor_files
from trainers.weights.flax_files import FlaxFile, pytorch_name
from trainers.weights.source import most_stored
from trainers.weights.tensor_files import NamedArrays, TensorFile

CONFIG, ONE_FILE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
FLAX, FLAX_INDEX = "flax_model.msgpack", "flax_model.msgpack.index.json"
# What makes inputs of sounds, pictures and sentences, and the parts of it in a file for several inputs.
PREPROCESSORS = {
    "preprocessor_config.json": (),
    "processor_config.json": ("feature_extractor", "image_processor"),
    sentences.LIMITS: (),
}
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def refuse_pickle(path: Path) -> None:
    """Raises InterchangeError if a file's name is that of a PyTorch pickle."""
    if path.suffix in PICKLES:
        raise InterchangeError(
            f"{path} is a pickle, and loading a pickle runs whatever code its author put into it; it is never loaded "
            "here: use a copy saved as safetensors"
        )


def _interchanges() -> dict[str, Interchange]:
    """Returns how these files are read and written, by family."""
    return {name: interchange for name in FAMILIES if (interchange := interchange_of(name))}


def interchange_for(family: str) -> Interchange:
    """Returns how a family's models are read from and written to these files; raises InterchangeError if they are not."""
    known = _interchanges()
    if family not in known:
        raise InterchangeError(f"models of family {family!r} have no Hugging Face form; {' and '.join(known)} have")
    return known[family]


class HuggingFace:
    """A Hugging Face folder as weights to start from (see trainers.weights.source).

    Attributes:
      theirs: the contents of config.json.
      folder: the folder that was read.
      written_as: the form of its tensors, for people.

    Raises:
      InterchangeError: a file is missing, damaged or a pickle; the model is not one of ours; or the tensors are not those
        of the model that config.json describes. A head may be missing, or be another model's.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.theirs = _json(folder / CONFIG) | sentences.read(folder)
        self._reader = _ConfigReader(folder, self.theirs, interchange_of_type(self.theirs))
        config = self._reader.read()
        for line in self._reader.interchange.differences(self.theirs):
            print(f"{folder}: {line}", file=sys.stderr, flush=True)
        self.config, in_folder = _without_copies(self._reader, config, _folder_tensors(self._reader, config))
        entries = _entries_to_read(self._reader, self.config, in_folder)
        self.shapes = tensors.shapes(entries)
        self._read = tensors.reader(entries, in_folder.fetch, folder)
        by_file = dict.fromkeys(in_folder.files.values())
        self.written_as = "Flax's msgpack" if any(isinstance(file, FlaxFile) for file in by_file) else "safetensors"
        floats = ((dtype.name, file.shapes[name]) for file in by_file for name, dtype in file.floats.items())
        self.stored = most_stored(floats)  # packed numbers are computed as those beside them
        self.vocabulary = folder if files.readable(folder) else None

    def data_fields(self) -> dict[str, Any]:
        """Returns the fields of the data that the folder's preprocessor sets, beside those of its family (Family.adapt_data).

        Raises:
          InterchangeError: nothing here reads sounds or pictures so.
        """
        for file, parts in PREPROCESSORS.items():
            if not (self.folder / file).exists():
                continue
            theirs = _json(self.folder / file)
            theirs = next((theirs[part] for part in parts if part in theirs), theirs)
            try:
                return self._reader.interchange.data_fields(self.config, theirs)
            except InterchangeError as error:
                raise InterchangeError(f"{self.folder / file}: {str(error).removeprefix('config.json: ')}") from None
        return {}

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """Returns a piece of the parameter of this name, as it is stored."""
        return self._read(name, index)


@dataclasses.dataclass(frozen=True)
class _ConfigReader:
    """Reads the config.json of a folder, as it is or with settings changed."""

    folder: Path
    theirs: dict[str, Any]
    interchange: Interchange

    def read(self, changed: Mapping[str, Any] = MappingProxyType({})) -> Any:
        try:
            self.interchange.check_quantization(self.theirs)
            return self.interchange.read_config(self.theirs | dict(changed))
        except InterchangeError as error:
            raise InterchangeError(f"{self.folder}: {error}") from None
        except Exception as error:  # a config's own check, or values of other types than any that is looked for
            raise InterchangeError(f"{self.folder}: {CONFIG}: {told(error)}") from error


@dataclasses.dataclass(frozen=True)
class _FolderTensors:
    """The tensors that a folder holds, by canonical name.

    Attributes:
      files: the file of each tensor, by its name there.
      names: the names in files.
      conversions: those that are made of others.
    """

    files: Mapping[str, NamedArrays]
    names: Mapping[str, str]
    conversions: Mapping[str, Conversion]

    @property
    def shapes(self) -> dict[str, Shape]:
        shapes = {known: self.files[name].shapes[name] for known, name in self.names.items()}
        return shapes | {known: conversion.shape for known, conversion in self.conversions.items()}

    def fetch(self, known: str) -> np.ndarray:
        if known in self.conversions:
            conversion = self.conversions[known]
            return conversion.convert(*(self.files[name](name) for name in conversion.sources))
        return self.files[self.names[known]](self.names[known])

    def require_floats(self, known: str) -> None:
        """Raises InterchangeError if a tensor's numbers are no floats, unless they are packed."""
        conversion = self.conversions.get(known)
        for name in (self.names[known],) if conversion is None else () if conversion.packed else conversion.sources:
            self.files[name].require_floats([name])


def _folder_tensors(reader: _ConfigReader, config: Any) -> _FolderTensors:
    """Returns the tensors of a folder; raises InterchangeError for one that is there twice."""
    listed = [(name, file) for file in files_of(reader.folder) for name in file.shapes]
    conversions = reader.interchange.conversions(config, {name: file.shapes[name] for name, file in listed})
    sources = {name for conversion in conversions.values() for name in conversion.sources}
    names: dict[str, str] = {}
    for name, _ in listed:
        known = None if name in sources else reader.interchange.canonical_name(config, name)
        if known and (known in names or known in conversions):
            raise InterchangeError(f"{reader.folder}: {shortened(known)} is there twice")
        if known:
            names[known] = name
    return _FolderTensors(dict(listed), names, conversions)


def _without_copies(reader: _ConfigReader, config: Any, in_folder: _FolderTensors) -> tuple[Any, _FolderTensors]:
    """Returns the configuration and the tensors without those that repeat others. If one differs, the model is read as untied
    whatever config.json says, as `transformers` (5.23) does.

    Raises:
      InterchangeError: the family has no untied model.
    """
    ties = reader.interchange.tied_tensors
    for copy, original in ties(config).items():
        if not {copy, original} <= in_folder.names.keys() or tensors.equal(in_folder.fetch(copy), in_folder.fetch(original)):
            continue
        with contextlib.suppress(InterchangeError):
            config = reader.read(reader.interchange.untied(reader.theirs))
        if copy in ties(config):
            raise InterchangeError(
                f"{reader.folder}: {copy} differs from {original}, whose copy it has to be: no untied "
                f"{reader.theirs['model_type']!r} can be read"
            )
        break
    names = {known: name for known, name in in_folder.names.items() if known not in ties(config)}
    return config, dataclasses.replace(in_folder, names=names)


def _entries_to_read(reader: _ConfigReader, config: Any, in_folder: _FolderTensors) -> list[Entry]:
    """Returns the entries whose tensors a folder holds; raises InterchangeError if they are not those of its model."""
    readable = reader.interchange.readable_entries(config)
    want, stored = tensors.their_shapes(readable), in_folder.shapes
    optional = {name for name in want.keys() ^ stored.keys() if reader.interchange.is_head_tensor(name)}
    want, stored = ({k: v for k, v in shapes.items() if k not in optional} for shapes in (want, stored))
    if wrong := tensors.problems(want, stored):
        if lost := _lost_output(reader, want, stored):
            raise InterchangeError(f"{reader.folder}: {lost}")
        raise InterchangeError(f"{reader.folder}: not the tensors of the model in its {CONFIG}: {wrong}")
    for known in stored:
        in_folder.require_floats(known)
    return [entry for entry in readable if all(name in stored for name in entry.names())]


def _lost_output(reader: _ConfigReader, want: Mapping[str, Shape], stored: Mapping[str, Shape]) -> str:
    """Returns advice for a model that lacks only the output matrix that it should have; "" for any other."""
    tied = reader.interchange.tied_tensors(reader.read({"tie_word_embeddings": True}))
    for output, table in tied.items():
        if stored == {name: shape for name, shape in want.items() if name != output}:
            return (
                f"it holds no output matrix ({output}), a bare model has none: use a folder saved with it, or set "
                f"tie_word_embeddings to true in {CONFIG} if {table} is the output too"
            )
    return ""


def _json(path: Path) -> dict[str, Any]:
    return untrusted.read_json(path, InterchangeError)


def interchange_of_type(theirs: dict[str, Any]) -> Interchange:
    """Returns how the model of a config.json is read; raises InterchangeError for one of no family."""
    by_type = {kind: interchange for interchange in _interchanges().values() for kind in interchange.model_types}
    kind = setting(theirs, "model_type", str)
    if kind not in by_type:
        raise InterchangeError(f"config.json: no model of type {shortened(kind)!r} here{nearest(kind, by_type)}")
    return by_type[kind]


def files_of(folder: Path) -> list[NamedArrays]:
    """Returns a folder's files of tensors: of safetensors, or of Flax where there are none of these.

    Raises:
      InterchangeError: there are neither, or a file or a tensor is missing.
    """
    forms = ((ONE_FILE, INDEX, TensorFile, str), (FLAX, FLAX_INDEX, FlaxFile, pytorch_name))
    for one, index, opener, known_as in forms:
        if (folder / one).exists():
            return [opener(folder / one)]
        if (folder / index).exists():
            return _shards_of(folder, index, opener, known_as)
    for file in sorted(folder.iterdir()):
        refuse_pickle(file)
    raise InterchangeError(f"{folder}: neither {ONE_FILE} nor {INDEX} is there, and no {FLAX}")


def _shards_of(
    folder: Path, index: str, opener: Callable[[Path], NamedArrays], known_as: Callable[[str], str]
) -> list[NamedArrays]:
    names = setting(_json(folder / index), "weight_map", dict)
    files = []
    for shard in sorted(set(map(str, names.values()))):
        refuse_pickle(folder / shard)
        files.append(opener(untrusted.member(folder, shard, InterchangeError)))
    lost = sorted(set(map(known_as, names)) - {name for file in files for name in file.shapes})
    if lost:
        raise InterchangeError(f"{folder}: {len(lost)} tensors of {index} are in no file, {shortened(lost[0])} among them")
    return files


def write_folder(weights: Any, to: Path, *, max_shard_bytes: int = 5 * 10**9) -> Path:
    """Writes weights as a new Hugging Face folder, float32, which `transformers` loads.

    Args:
      weights: weights of any source (trainers.weights.source.Weights).
      max_shard_bytes: the largest size of a file, unless one tensor is larger.

    Raises:
      InterchangeError: `to` exists, `transformers` has no class for the model, or a tensor is missing.
    """
    if to.exists():
        raise InterchangeError(f"{to} exists; choose a new folder")
    interchange = interchange_for(weights.config.family)
    config, entries = interchange.write_config(weights.config), interchange.entries(weights.config)
    want = tensors.shapes(entries)
    if wrong := tensors.problems(want, {name: shape for name, shape in weights.shapes.items() if name in want}):
        raise InterchangeError(f"not the tensors of the model to write: {wrong}")
    written = ((name, (array,)) for name, array in tensors.written(entries, weights.read))
    with paths.new_folder(to.absolute()) as folder:
        shards = list(_shards(tensors.their_shapes(entries), max_shard_bytes))
        places = {}
        for i, shapes in enumerate(shards, 1):
            name = ONE_FILE if len(shards) == 1 else f"model-{i:05}-of-{len(shards):05}.safetensors"
            tensor_files.write(folder / name, shapes, itertools.islice(written, len(shapes)), {"format": "pt"})
            places |= dict.fromkeys(shapes, name)
        if len(shards) > 1:
            total = sum(map(_bytes, (shape for shapes in shards for shape in shapes.values())))
            write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": places})
        if weights.vocabulary and files.readable(weights.vocabulary):
            named = _write_vocabulary(weights.vocabulary, folder)
            # An id that the model's settings have stays: RoBERTa's positions depend on padding's.
            config |= {k: v for k, v in named.items() if config.get(k) is None}
        write_json(folder / CONFIG, config)
        tokenizer = Tokenizer(folder) if (folder / TOKENIZER).exists() else None
        for name, settings in interchange.companion_files(weights.config, tokenizer).items():
            own = weights.vocabulary / name if weights.vocabulary else folder / name
            write_json(folder / name, settings | (_json(own) if own.exists() else {}))
        if vector := interchange.sentence_vector(weights.config):
            sentences.write(folder, vector, weights.config.model_dim, weights.vocabulary)
    return to


def _shards(shapes: dict[str, Shape], most: int) -> Iterator[dict[str, Shape]]:
    shard: dict[str, Shape] = {}
    for name, shape in shapes.items():
        if shard and sum(map(_bytes, shard.values())) + _bytes(shape) > most:
            yield shard
            shard = {}
        shard[name] = shape
    yield shard


def _bytes(shape: Shape) -> int:
    return 4 * math.prod(shape)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


# --- vocabularies ------------------------------------------------------------------------------------------------


def _write_vocabulary(vocabulary: Path, folder: Path) -> dict[str, Any]:
    """Copies a vocabulary; returns its entries of config.json.

    A tokenizer.json gets a tokenizer_config.json, if it has none, that makes `transformers` use it as it is. With a chat template
    a generation_config.json says that the end of a turn ends a text too. There is none otherwise: it would hide what a family's
    config.json says of how a text is begun.
    """
    files.copy(vocabulary, folder)
    if not (folder / TOKENIZER).exists():
        (folder / files.GENERATION).unlink(missing_ok=True)
        return {}
    tokenizer, file = Tokenizer(folder), folder / files.CONFIG
    if not file.exists():
        ids = {k: getattr(tokenizer, f"{k}_id") for k in ("unk", "cls", "sep", "mask", "pad", "eos")}
        pieces = {added["id"]: added["content"] for added in _json(folder / TOKENIZER)["added_tokens"]}
        named = {f"{k}_token": pieces[id_] for k, id_ in ids.items() if id_ in pieces}
        # Without a class name, `transformers` would build the usual tokenizer of the model's type.
        write_json(file, {"tokenizer_class": "PreTrainedTokenizerFast"} | named)
    named = {k: boundaries.named(folder, k, tokenizer.id_of) for k in ("bos_token", "pad_token")}
    ids: dict[str, Any] = {f"{k}_id": id_ for k, id_ in named.items() if id_ is not None}
    ends = list(boundaries.ends(folder, tokenizer.id_of))
    if ends:
        ids["eos_token_id"] = ends if len(ends) > 1 else ends[0]
    (folder / files.GENERATION).unlink(missing_ok=True)
    if chat_templates.has_template(folder):
        ends = list(dict.fromkeys([chat_templates.ChatEncoder(folder).end, *ends]))
        write_json(folder / files.GENERATION, ids | {"eos_token_id": ends})
    return ids
