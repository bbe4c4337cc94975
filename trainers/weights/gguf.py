"""GGUF files as weights: models as llama.cpp stores them, quantized or not, with their vocabulary.

Tensors are dequantized to float32 one at a time, of a layer's experts one expert at a time. Each family maps settings and
tensors (models/<family>/gguf.py).
"""

import functools
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from data import gguf_reader, paths, untrusted
from data.vocabularies import files, tokenizers
from data.vocabularies.files import CONFIG
from models.errors import UserError, nearest, shortened, told
from models.families import FAMILIES, gguf_of
from models.interchange import GgufFiles, Index, InterchangeError, Shape, tensors
from trainers.weights.source import most_stored

_AT_ONCE = 1 << 17  # numbers that are dequantized together, which stay in a processor's cache


def _dequantized(stored: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Returns the numbers of stored rows. The library alone makes 16 rows at a time, and takes up to three times as long.

    Raises:
      NotImplementedError: the library does not know how they are stored.
    """
    if stored.dtype != np.uint8:  # floats, which are no blocks
        return gguf.dequantize(stored, kind)
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    blocks, step = stored.reshape(-1, size), _AT_ONCE // numbers
    result = np.empty((len(blocks), numbers), np.float32)
    for start in range(0, len(blocks), step):
        piece = blocks[start : start + step].reshape(1, -1)
        result[start : start + step] = gguf.dequantize(piece, kind).reshape(-1, numbers)
    return result.reshape(*stored.shape[:-1], -1)


def _is_read(kind: gguf.GGMLQuantizationType) -> bool:
    """Returns whether the library knows how numbers of a type are stored."""
    block = np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    try:
        gguf.dequantize(block, kind)
    except NotImplementedError:
        return False
    return True


def _nearest(kind: gguf.GGMLQuantizationType) -> str:
    """Returns the name of the type that is read whose numbers have most nearly as many bits."""
    bits = {other: size / numbers for other, (numbers, size) in gguf.GGML_QUANT_SIZES.items()}
    return min(filter(_is_read, bits), key=lambda other: abs(bits[other] - bits[kind])).name


class _Tensor:
    """A tensor of a file, of which an index along the outermost dimension reads no more than it names."""

    def __init__(self, path: Path, tensor: gguf.ReaderTensor):
        self._path, self._tensor = path, tensor
        # GGUF lists shapes with the innermost dimension first.
        self.shape: Shape = tuple(map(int, reversed(tensor.shape)))
        kind = tensor.tensor_type.name
        self.form = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}.get(kind, kind)

    def __getitem__(self, index: Any, /) -> np.ndarray:
        kind = self._tensor.tensor_type
        try:
            return _dequantized(self._tensor.data[index], kind)
        except NotImplementedError:
            name = shortened(self._tensor.name)
            raise InterchangeError(
                f"{self._path}: {name} is {kind.name}, which cannot be read; the nearest type that can is {_nearest(kind)}"
            ) from None


class Gguf:
    """A GGUF file as weights to start from (see trainers.weights.source).

    Raises:
      InterchangeError: the file is damaged, of another architecture, or our model does not support one of its settings.
    """

    def __init__(self, path: Path):
        self.path = path
        self._file = gguf_reader.opened(path, InterchangeError)
        self._tensors = {tensor.name: _Tensor(path, tensor) for tensor in self._file.tensors}
        if (parts := self._value("split.count", 0, int)) > 1:
            raise InterchangeError(f"{path}: one of {parts} parts of a model, which must be merged into one file first")
        architecture = self._value("general.architecture", kind=str)
        family = _family(path, architecture)
        before = f"{architecture}."
        settings = {k.removeprefix(before): self._value(k) for k in self._file.fields if k.startswith(before)}
        try:
            self.config = family.read_config(architecture, settings, self._tensors)
            entries = family.entries(architecture, self.config)
        except InterchangeError as error:
            raise InterchangeError(f"{path}: {error}") from None
        except Exception as error:  # a config's own check, or values of other types than any that is looked for
            raise InterchangeError(f"{path}: {told(error)}") from error
        shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        self._conversions = family.conversions(architecture, shapes)
        used = {name for form in self._conversions.values() for name in form.sources}
        used |= set(family.auxiliary_tensors(architecture))
        stored = {name: shape for name, shape in shapes.items() if name not in used}
        stored |= {name: form.shape for name, form in self._conversions.items()}
        if wrong := tensors.problems(tensors.their_shapes(entries), stored):
            raise InterchangeError(f"{path}: not the tensors of the model that it describes: {wrong}")
        self.shapes = tensors.shapes(entries)
        self.stored = most_stored((t.form, t.shape) for t in self._tensors.values())
        self._read = tensors.reader(entries, self._fetch, path)

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """Returns a piece of the parameter of this name, float32."""
        return self._read(name, index)

    def _fetch(self, name: str) -> np.ndarray:
        if conversion := self._conversions.get(name):
            return conversion.convert(*(self._tensors[source] for source in conversion.sources))
        return self._tensors[name][...]

    def _value(self, key: str, default: Any = None, kind: type = object) -> Any:
        """Returns a value of the file's description, of this kind, which must be there if there is no default."""
        value = gguf_reader.value(self._file, key, InterchangeError)
        if value is None and default is None:
            raise InterchangeError(f"{self.path}: {key} is missing")
        if not isinstance(value, (kind, type(None))):
            expected = "a text" if kind is str else "a whole number"
            raise InterchangeError(f"{self.path}: {key} is {shortened(repr(value))}, expected {expected}")
        return default if value is None else value

    @property
    def vocabulary(self) -> Path | None:
        """Returns the folder of a tokenizer.json: the one beside the file, else one made from the file's vocabulary.

        Raises:
          InterchangeError: its kind of vocabulary cannot be written as a tokenizer.json here.
        """
        return self._vocabulary

    @functools.cached_property
    def _vocabulary(self) -> Path:
        if (self.path.parent / tokenizers.FILE).exists():
            return self._completed(self.path.parent)
        for key in ("model", "pre", "tokens", "merges", "eos_token_id"):
            self._value(f"tokenizer.ggml.{key}")
        folder = self._folder()
        if not folder.exists():
            try:
                with paths.new_folder(folder) as new, untrusted.damage("the vocabulary", InterchangeError):
                    tokenizers.from_gguf(self.path, new / tokenizers.FILE)
                    tokenizers.config_from_gguf(self.path, new / CONFIG)
            except UserError as error:
                raise InterchangeError(f"{self.path}: its vocabulary cannot be read: {error}") from None
        return folder

    def _completed(self, beside: Path) -> Path:
        """Returns the folder of a tokenizer.json, or a copy with the special tokens of the file if the folder names none."""
        explained = files.token_ids(beside) or any((beside / name).exists() for name in (CONFIG, files.SPECIAL))
        if explained or "tokenizer.ggml.tokens" not in self._file.fields:
            return beside
        folder = self._folder(*(paths.sha256(file) for file in files.listed(beside)))
        if not folder.exists():
            with paths.new_folder(folder) as new, untrusted.damage(f"{self.path}: its vocabulary", InterchangeError):
                files.copy(beside, new)
                tokenizers.config_from_gguf(self.path, new / CONFIG)
        return folder

    def _folder(self, *others: str) -> Path:
        """Returns the folder of what is made from all that the file says of its vocabulary, and from these other contents: two
        files with the same pieces may have other chat templates."""
        described = {key: self._value(key, "") for key in self._file.fields if key.startswith("tokenizer.")}
        return paths.data_dir() / "vocabularies" / f"gguf-{paths.digest([described, others, CONFIG])[:32]}"


def _family(path: Path, architecture: str) -> GgufFiles:
    """Returns how models of an architecture are read; raises InterchangeError where they are not."""
    known = {name: family for key in FAMILIES if (family := gguf_of(key)) for name in family.architectures}
    if architecture not in known:
        raise InterchangeError(
            f"{path}: models of architecture '{shortened(architecture)}' cannot be read{nearest(architecture, known)}"
        )
    return known[architecture]
