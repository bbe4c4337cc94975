"""Hugging Face folders as weights: config.json and safetensors, whole or in shards, read and written a tensor at a time.

Each family maps the names and the layout of tensors (models/<family>/huggingface.py).
"""

import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from data import paths, untrusted
from data.vocabularies import boundaries, chat_templates, files
from data.vocabularies.files import TOKENIZER
from data.vocabularies.tokenizers import Tokenizer
from models import interchange
from models.errors import nearest, shortened, told
from models.families import FAMILIES, interchange_of
from models.interchange import Index, InterchangeError, Shape
from trainers.weights import tensor_files
from trainers.weights.source import most_stored
from trainers.weights.tensor_files import TensorFile

CONFIG, ONE_FILE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
# What makes inputs of sounds and pictures, and the parts of it in a file for several inputs.
PREPROCESSORS = {"preprocessor_config.json": (), "processor_config.json": ("feature_extractor", "image_processor")}
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def refuse_pickle(path: Path) -> None:
    """Raises InterchangeError if a file's name is that of a PyTorch pickle."""
    if path.suffix in PICKLES:
        raise InterchangeError(
            f"{path} is a pickle, and loading a pickle runs whatever code its author put into it; it is never loaded "
            "here: use a copy saved as safetensors"
        )


def _mappings() -> dict[str, Any]:
    """Returns the modules that read and write these files, by family."""
    return {name: module for name in FAMILIES if (module := interchange_of(name))}


def _mapping(family: str) -> Any:
    """Returns the family's mapping to these files; raises InterchangeError if it has none."""
    known = _mappings()
    if family not in known:
        raise InterchangeError(f"models of family {family!r} have no Hugging Face form; {' and '.join(known)} have")
    return known[family]


class HuggingFace:
    """A Hugging Face folder as weights to start from (see trainers.weights.source).

    Attributes:
      theirs: the contents of config.json.
      folder: the folder that was read.

    Raises:
      InterchangeError: a file is missing, damaged or a pickle; the model is not one of ours; or the tensors are not those
        of the model that config.json describes. A head may be missing, or be another model's.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.theirs = _json(folder / CONFIG)
        mapping = _of_type(self.theirs)
        self.config = self._read_config(mapping)
        for line in getattr(mapping, "differences", lambda theirs: [])(self.theirs):
            print(f"{folder}: {line}", file=sys.stderr, flush=True)
        self._tensors: dict[str, tuple[TensorFile, str]] = {}
        files_ = _files(folder)
        self._sources = {name: file for file in files_ for name in file.shapes}
        remade = getattr(mapping, "remade", interchange.as_it_is)
        self._remade = remade(self.config, {name: file.shapes[name] for name, file in self._sources.items()})
        used = {name for form in self._remade.values() for name in form.sources}
        for file in files_:
            for name in file.shapes:
                if name not in used and (known := mapping.canonical(self.config, name)):
                    if known in self._tensors or known in self._remade:
                        raise InterchangeError(f"{folder}: {shortened(known)} is there twice")
                    self._tensors[known] = file, name
        self._settle_copies(mapping)
        readable = mapping.readable(self.config)
        want = interchange.their_shapes(readable)
        stored = {known: file.shapes[name] for known, (file, name) in self._tensors.items()}
        stored |= {known: form.shape for known, form in self._remade.items()}
        kept = {k for k in want.keys() | stored.keys() if (k in want and k in stored) or not mapping.is_head_tensor(k)}
        want, stored = ({k: v for k, v in tensor_shapes.items() if k in kept} for tensor_shapes in (want, stored))
        if wrong := interchange.problems(want, stored):
            if lost := self._lost_output(mapping, want, stored):
                raise InterchangeError(f"{folder}: {lost}")
            raise InterchangeError(f"{folder}: not the tensors of the model in its {CONFIG}: {wrong}")
        for known in stored:
            for file, name in self._parts(known):
                file.require_floats([name])
        entries = [e for e in readable if all(name in stored for name in e.names())]
        self.shapes = interchange.shapes(entries)
        self._read = interchange.reader(entries, self._fetch, folder)
        floats = ((dtype.name, file.shapes[name]) for file in files_ for name, dtype in file.floats.items())
        self.stored = most_stored(floats)  # packed numbers are computed as those beside them
        self.vocabulary = folder if files.readable(folder) else None

    def reading(self) -> dict[str, Any]:
        """Returns the fields of the data that the folder's preprocessor sets, beside those of its family (Family.adapt_data).

        Raises:
          InterchangeError: nothing here reads sounds or pictures so.
        """
        read = getattr(_of_type(self.theirs), "reading", None)
        for file, parts in PREPROCESSORS.items():
            if read is None or not (self.folder / file).exists():
                continue
            theirs = _json(self.folder / file)
            theirs = next((theirs[part] for part in parts if part in theirs), theirs)
            try:
                return read(self.config, theirs)
            except InterchangeError as error:
                raise InterchangeError(f"{self.folder / file}: {str(error).removeprefix('config.json: ')}") from None
        return {}

    def _read_config(self, mapping: Any, changed: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """Returns our configuration of config.json, with some settings changed."""
        try:
            getattr(mapping, "check_packing", interchange.is_not_packed)(self.theirs)
            return mapping.read_config(self.theirs | dict(changed))
        except InterchangeError as error:
            raise InterchangeError(f"{self.folder}: {error}") from None
        except Exception as error:  # a config's own check, or values of other types than any that a mapping looks for
            raise InterchangeError(f"{self.folder}: {CONFIG}: {told(error)}") from error

    def _settle_copies(self, mapping: Any) -> None:
        """Drops tensors that repeat others. If one differs, the model is read as untied whatever config.json says, as
        `transformers` (5.23) does.

        Raises:
          InterchangeError: the family has no untied model.
        """
        copies = {
            copy: original for copy, original in mapping.copies(self.config).items() if {copy, original} <= self._tensors.keys()
        }
        for copy, original in copies.items():
            if interchange.equal(self._fetch(copy), self._fetch(original)):
                continue
            try:
                config = self._read_config(mapping, mapping.untied(self.theirs))
            except InterchangeError:
                config = self.config
            if copy in mapping.copies(config):
                raise InterchangeError(
                    f"{self.folder}: {copy} differs from {original}, whose copy it has to be: no untied "
                    f"{self.theirs['model_type']!r} can be read"
                )
            self.config = config
            break
        for copy in mapping.copies(self.config):
            self._tensors.pop(copy, None)

    def _lost_output(self, mapping: Any, want: Mapping[str, Shape], stored: Mapping[str, Shape]) -> str:
        """Returns advice for a model that lacks only the output matrix that it should have; "" for any other."""
        tied = mapping.copies(self._read_config(mapping, {"tie_word_embeddings": True}))
        for output, table in tied.items():
            if stored == {name: shape for name, shape in want.items() if name != output}:
                return (
                    f"it holds no output matrix ({output}), a bare model has none: use a folder saved with it, or set "
                    f"tie_word_embeddings to true in {CONFIG} if {table} is the output too"
                )
        return ""

    def _parts(self, known: str) -> list[tuple[TensorFile, str]]:
        """Returns where the numbers of a tensor are, unless they are packed."""
        form = self._remade.get(known)
        if form is None:
            return [self._tensors[known]]
        return [] if form.packed else [(self._sources[name], name) for name in form.sources]

    def _fetch(self, known: str) -> np.ndarray:
        form = self._remade.get(known)
        if form is not None:
            return form.make(*(self._sources[name](name) for name in form.sources))
        file, name = self._tensors[known]
        return file(name)

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """Returns a piece of the parameter of this name, as it is stored."""
        return self._read(name, index)


def _json(path: Path) -> dict[str, Any]:
    return untrusted.read_json(path, InterchangeError)


def _of_type(theirs: dict[str, Any]) -> Any:
    """Returns the family's mapping for a config.json."""
    known = _mappings()
    families = {kind: family for family, module in known.items() for kind in module.MODEL_TYPES}
    kind = interchange.setting(theirs, "model_type", str)
    if kind not in families:
        raise InterchangeError(f"config.json: no model of type {shortened(kind)!r} here{nearest(kind, families)}")
    return known[families[kind]]


def _files(folder: Path) -> list[TensorFile]:
    if (folder / ONE_FILE).exists():
        return [TensorFile(folder / ONE_FILE)]
    if not (folder / INDEX).exists():
        for file in sorted(folder.iterdir()):
            refuse_pickle(file)
        raise InterchangeError(f"{folder}: neither {ONE_FILE} nor {INDEX} is there")
    names = interchange.setting(_json(folder / INDEX), "weight_map", dict)
    files = []
    for shard in sorted(set(map(str, names.values()))):
        refuse_pickle(folder / shard)
        files.append(TensorFile(untrusted.member(folder, shard, InterchangeError)))
    lost = sorted(names.keys() - {name for file in files for name in file.shapes})
    if lost:
        raise InterchangeError(f"{folder}: {len(lost)} tensors of {INDEX} are in no file, {shortened(lost[0])} among them")
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
    mapping = _mapping(weights.config.family)
    config, entries = mapping.write_config(weights.config), mapping.entries(weights.config)
    wrong = interchange.problems(want := interchange.shapes(entries), {k: v for k, v in weights.shapes.items() if k in want})
    if wrong:
        raise InterchangeError(f"not the tensors of the model to write: {wrong}")
    tensors = ((name, (array,)) for name, array in interchange.written(entries, weights.read))
    with paths.new_folder(to.absolute()) as folder:
        shards = list(_shards(interchange.their_shapes(entries), max_shard_bytes))
        places = {}
        for i, shapes in enumerate(shards, 1):
            name = ONE_FILE if len(shards) == 1 else f"model-{i:05}-of-{len(shards):05}.safetensors"
            tensor_files.write(folder / name, shapes, itertools.islice(tensors, len(shapes)), {"format": "pt"})
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
        for name, settings in getattr(mapping, "beside", _nothing)(weights.config, tokenizer).items():
            own = weights.vocabulary / name if weights.vocabulary else folder / name
            write_json(folder / name, settings | (_json(own) if own.exists() else {}))
    return to


def _nothing(config: Any, tokenizer: Any) -> dict[str, dict[str, Any]]:
    """Returns the further files of a family's folder: none."""
    del config, tokenizer
    return {}


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
