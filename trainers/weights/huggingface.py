"""Hugging Face folders as weights: config.json and safetensors, whole or in shards, read and written a tensor at a time.

What a tensor is called there, and how it lies, is each family's matter (models/<family>/huggingface.py).
"""

import itertools
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data import paths
from data.vocabularies.tokenizers import FILE as TOKENIZER
from data.vocabularies.tokenizers import Tokenizer
from models import interchange
from models.errors import nearest, shortened
from models.families import FAMILIES, interchange_of
from models.interchange import Index, InterchangeError, Shape
from trainers.weights import tensor_files
from trainers.weights.tensor_files import TensorFile

CONFIG, ONE_FILE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def refuse_pickle(path: Path) -> None:
    """Raises InterchangeError where a file's name says that it is one of PyTorch's pickles."""
    if path.suffix in PICKLES:
        raise InterchangeError(
            f"{path} is a pickle, and loading a pickle runs whatever code its author put into it; it is never loaded "
            "here: use a copy saved as safetensors"
        )


def _mappings() -> dict[str, Any]:
    """Returns the modules that read and write these files, by family."""
    return {name: module for name in FAMILIES if (module := interchange_of(name))}


def _mapping(family: str) -> Any:
    """Returns the family's side of these files; raises InterchangeError where it has none."""
    known = _mappings()
    if family not in known:
        raise InterchangeError(f"models of family {family!r} have no Hugging Face form; {' and '.join(known)} have")
    return known[family]


class HuggingFace:
    """A Hugging Face folder as weights to start from (see trainers.weights.source).

    Attributes:
      theirs: what config.json says.
      folder: where it was read from.

    Raises:
      InterchangeError: a file is missing, damaged or a pickle; the model is not one of ours; or the tensors are not those
        of the model that config.json describes. A head may be missing, or be another's.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.theirs = _json(folder / CONFIG)
        mapping = _of_type(self.theirs)
        self.config = self._read_config(mapping)
        self._tensors: dict[str, tuple[TensorFile, str]] = {}
        for file in _files(folder):
            for name in file.shapes:
                if known := mapping.canonical(self.config, name):
                    if known in self._tensors:
                        raise InterchangeError(f"{folder}: {shortened(known)} is there twice")
                    self._tensors[known] = file, name
        self._settle_copies(mapping)
        readable = mapping.readable(self.config)
        want = interchange.their_shapes(readable)
        found = {known: file.shapes[name] for known, (file, name) in self._tensors.items()}
        kept = {k for k in want.keys() | found.keys() if (k in want and k in found) or not mapping.of_head(k)}
        want, found = ({k: v for k, v in of.items() if k in kept} for of in (want, found))
        if wrong := interchange.problems(want, found):
            if lost := self._lost_output(mapping, want, found):
                raise InterchangeError(f"{folder}: {lost}")
            raise InterchangeError(f"{folder}: not the tensors of the model in its {CONFIG}: {wrong}")
        for known in found:
            file, name = self._tensors[known]
            file.require_floats([name])
        entries = [e for e in readable if all(name in found for name in e.names())]
        self.shapes = interchange.shapes(entries)
        self._read = interchange.reader(entries, self._fetch, folder)
        self.vocabulary = folder if (folder / TOKENIZER).exists() else None

    def _read_config(self, mapping: Any, **changed: Any) -> Any:
        """Our config of what config.json says, with some settings changed."""
        try:
            interchange.only(self.theirs, quantization_config=())
            return mapping.read_config(self.theirs | changed)
        except InterchangeError as error:
            raise InterchangeError(f"{self.folder}: {error}") from None
        except ValueError as error:  # a config's own check
            raise InterchangeError(f"{self.folder}: {CONFIG}: {error}") from None

    def _settle_copies(self, mapping: Any) -> None:
        """Drops tensors that repeat others. Where one differs, the model is read as untied whatever config.json says, which
        is how `transformers` (5.23) takes it.

        Raises:
          InterchangeError: the family has no untied model.
        """
        copies = {copy: of for copy, of in mapping.copies(self.config).items() if {copy, of} <= self._tensors.keys()}
        for copy, of in copies.items():
            if interchange.equal(self._fetch(copy), self._fetch(of)):
                continue
            try:
                self.config = self._read_config(mapping, tie_word_embeddings=False)
            except InterchangeError:
                raise InterchangeError(
                    f"{self.folder}: {copy} differs from {of}, whose copy it has to be: no untied "
                    f"{self.theirs['model_type']!r} can be read"
                ) from None
            break
        for copy in mapping.copies(self.config):
            self._tensors.pop(copy, None)

    def _lost_output(self, mapping: Any, want: Mapping[str, Shape], found: Mapping[str, Shape]) -> str:
        """What to do about a model that lacks nothing but the output matrix that it should have; "" of any other."""
        tied = mapping.copies(self._read_config(mapping, tie_word_embeddings=True))
        for output, table in tied.items():
            if found == {name: shape for name, shape in want.items() if name != output}:
                return (
                    f"it holds no output matrix ({output}), a bare model has none: use a folder saved with it, or set "
                    f"tie_word_embeddings to true in {CONFIG} if {table} is the output too"
                )
        return ""

    def _fetch(self, known: str) -> np.ndarray:
        file, name = self._tensors[known]
        return file(name)

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """A piece of the parameter of this name, as it is stored."""
        return self._read(name, index)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        raise InterchangeError(f"{path.parent}: {path.name} is missing") from None
    except ValueError as error:
        raise InterchangeError(f"{path} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise InterchangeError(f"{path} is damaged: expected an object")
    return value


def _of_type(theirs: dict[str, Any]) -> Any:
    """The family's side for a config.json."""
    known = _mappings()
    families = {kind: family for family, module in known.items() for kind in module.MODEL_TYPES}
    kind = interchange.setting(theirs, "model_type", str)
    if kind not in families:
        raise InterchangeError(f"config.json: no model of type {kind!r} here{nearest(kind, families)}")
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
        if Path(shard).name != shard or not (folder / shard).exists():
            raise InterchangeError(f"{folder}: {shard}, which {INDEX} names, is missing")
        refuse_pickle(folder / shard)
        files.append(TensorFile(folder / shard))
    lost = sorted(names.keys() - {name for file in files for name in file.shapes})
    if lost:
        raise InterchangeError(f"{folder}: {len(lost)} tensors of {INDEX} are in no file, {lost[0]} among them")
    return files


def write_folder(weights: Any, to: Path, *, max_shard_bytes: int = 5 * 10**9) -> Path:
    """Writes weights as a new Hugging Face folder, float32, which `transformers` loads.

    Args:
      weights: see trainers.weights.source.Weights; of any source.
      max_shard_bytes: files are no longer than this, unless one tensor is.

    Raises:
      InterchangeError: `to` exists, `transformers` has no class for the model, or a tensor is missing.
    """
    if to.exists():
        raise InterchangeError(f"{to} exists; choose a new folder")
    mapping = _mapping(weights.config.family)
    config, entries = mapping.write_config(weights.config), mapping.entries(weights.config)
    wrong = interchange.problems(
        want := interchange.shapes(entries), {k: v for k, v in weights.shapes.items() if k in want}
    )
    if wrong:
        raise InterchangeError(f"not the tensors of the model to write: {wrong}")
    tensors = interchange.written(entries, weights.read)
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
        if weights.vocabulary and (weights.vocabulary / TOKENIZER).exists():
            config |= _write_tokenizer(weights.vocabulary, folder)
        write_json(folder / CONFIG, config)
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


def copy_tokenizer(vocabulary: Path, to: Path) -> None:
    """Copies a vocabulary's files, as far as they are there: tokenizer.json and what says which token ends a text."""
    for name in (TOKENIZER, TOKENIZER_CONFIG):
        if (vocabulary / name).exists():
            shutil.copyfile(vocabulary / name, to / name)


def _write_tokenizer(vocabulary: Path, folder: Path) -> dict[str, Any]:
    """Copies a vocabulary, with a tokenizer_config.json that makes `transformers` take it as it is; what config.json says
    of it."""
    copy_tokenizer(vocabulary, folder)
    tokenizer, file = Tokenizer(folder), folder / TOKENIZER_CONFIG
    if not file.exists():
        ids = {k: getattr(tokenizer, f"{k}_id") for k in ("unk", "cls", "sep", "mask", "pad", "eos")}
        pieces = {added["id"]: added["content"] for added in _json(folder / TOKENIZER)["added_tokens"]}
        named = {f"{k}_token": pieces[id_] for k, id_ in ids.items() if id_ in pieces}
        # Without a class of its own name, `transformers` would build the tokenizer that it knows for the model's type.
        write_json(file, {"tokenizer_class": "PreTrainedTokenizerFast"} | named)
    named = {k: _json(file).get(f"{k}_token") for k in ("pad", "eos")}
    pieces = {k: v["content"] if isinstance(v, dict) else v for k, v in named.items()}  # some write a piece's settings
    return {f"{k}_token_id": tokenizer.id_of(v) for k, v in pieces.items() if v}
