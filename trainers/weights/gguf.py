"""GGUF files as weights: models of LLaMA's shape as llama.cpp stores them, quantized or not, with their vocabulary.

Tensors are dequantized to float32 one at a time. The names and the order of rows are those of llama.cpp's own converter.
"""

import functools
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from data import paths
from data.vocabularies import tokenizers
from data.vocabularies.files import CONFIG
from models import interchange
from models.gpt.config import GptConfig
from models.interchange import Entry, Index, InterchangeError, matrix, table, vector

_TABLE, _OUTPUT = "token_embd.weight", "output.weight"


class Gguf:
    """A GGUF file as weights to start from (see trainers.weights.source).

    Raises:
      InterchangeError: the file is damaged, of another architecture, or our model does not support one of its settings.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            self._file = gguf.GGUFReader(path)
            self._tensors = {tensor.name: tensor for tensor in self._file.tensors}
        except (ValueError, IndexError, KeyError) as error:
            raise InterchangeError(f"{path}: damaged or no GGUF file: {str(error).splitlines()[0]}") from None
        self.config = self._config()
        entries = _entries(self.config)
        # GGUF lists shapes with the innermost dimension first.
        stored = {name: tuple(map(int, reversed(t.shape))) for name, t in self._tensors.items()}
        if wrong := interchange.problems(interchange.their_shapes(entries), stored):
            raise InterchangeError(f"{path}: not the tensors of the model that it describes: {wrong}")
        self.shapes = interchange.shapes(entries)
        self._read = interchange.reader(entries, self._fetch, path)

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """Returns a piece of the parameter of this name, float32."""
        return self._read(name, index)

    def _fetch(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        try:
            return gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise InterchangeError(f"{self.path}: {name} is {tensor.tensor_type.name}, which cannot be read") from None

    def _value(self, key: str, default: Any = None) -> Any:
        """Returns a value of the file's description, which must be there if there is no default."""
        if (field := self._file.get_field(key)) is not None:
            return field.contents()
        if default is None:
            raise InterchangeError(f"{self.path}: {key} is missing")
        return default

    def _config(self) -> GptConfig:
        if (kind := self._value("general.architecture")) != "llama":
            raise InterchangeError(f"{self.path}: models of architecture {kind!r} cannot be read, only 'llama'")
        for key, neutral in {"expert_count": 0, "attention.sliding_window": 0, "rope.scaling.type": "none"}.items():
            if (value := self._value(f"llama.{key}", neutral)) != neutral:
                raise InterchangeError(f"{self.path}: llama.{key}={value!r} is not supported, only {neutral!r}")
        if _TABLE not in self._tensors:
            raise InterchangeError(f"{self.path}: {_TABLE} is missing")
        width, heads = self._value("llama.embedding_length"), self._value("llama.attention.head_count")
        kv_heads = self._value("llama.attention.head_count_kv", heads)
        size = self._value("llama.attention.key_length", width // heads)
        if (turned := self._value("llama.rope.dimension_count", size)) != size:
            raise InterchangeError(f"{self.path}: rotary positions in {turned} of a head's {size} dimensions only")
        return GptConfig(
            vocab=int(self._tensors[_TABLE].shape[1]),
            layers=self._value("llama.block_count"),
            model_dim=width,
            hidden_dim=self._value("llama.feed_forward_length"),
            heads=heads,
            head_dim=size,
            kv_heads=0 if kv_heads == heads else kv_heads,
            positions="rotary",
            rotary_base=_decimal(self._value("llama.rope.freq_base", 10_000.0)),
            norm_eps=_decimal(self._value("llama.attention.layer_norm_rms_epsilon")),
            activation="silu",
            gated=True,
            attention_bias="blk.0.attn_q.bias" in self._tensors,
            ffn_bias="blk.0.ffn_up.bias" in self._tensors,
            tied=_OUTPUT not in self._tensors,
        )

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
            return self.path.parent
        kept = {k: self._value(f"tokenizer.ggml.{k}") for k in ("model", "pre", "tokens", "merges", "eos_token_id")}
        folder = paths.data_dir() / "vocabularies" / f"gguf-{paths.digest([kept, CONFIG])[:16]}"
        if not folder.exists():
            with paths.new_folder(folder) as new:
                try:
                    tokenizers.from_gguf(self.path, new / tokenizers.FILE)
                except (ValueError, KeyError) as error:
                    raise InterchangeError(f"{self.path}: its vocabulary cannot be read: {error}") from None
                tokenizers.config_from_gguf(self.path, new / CONFIG)
        return folder


def _decimal(value: float) -> float:
    """Returns a float32 as the decimal number that it was rounded from: 1e-05, not 9.999999747378752e-06."""
    return float(f"{value:.7g}")


def _entries(c: GptConfig) -> list[Entry]:
    m, h, n, g, d, layers = c.model_dim, c.hidden_dim, c.heads, c.groups, c.head_dim, c.layers

    def dense(
        theirs: str, ours: str, shape: tuple[int, ...], bias: bool, inputs: int = 1, pairs: int = 0
    ) -> list[Entry]:
        at, name = f"blk.{{layer}}.{theirs}", f"decoder.{ours}"
        weight = matrix(f"{at}.weight", (name, shape), inputs=inputs, layers=layers, pairs=pairs)
        extra = vector(f"{at}.bias", (f"{name}_bias", shape[inputs:]), layers=layers, pairs=pairs)
        return [weight, extra] if bias else [weight]

    def norm(theirs: str, ours: str) -> Entry:
        return vector(f"blk.{{layer}}.{theirs}.weight", (f"decoder.{ours}.scale", (m,)), layers=layers)

    entries = [
        table(_TABLE, "embedding.table", (c.vocab, m)),
        norm("attn_norm", "attention_norm"),
        *dense("attn_q", "attention.q", (m, n, d), c.attention_bias, pairs=n),
        *dense("attn_k", "attention.k", (m, g, d), c.attention_bias, pairs=g),
        *dense("attn_v", "attention.v", (m, g, d), c.attention_bias),
        *dense("attn_output", "attention.o", (n, d, m), c.attention_bias, inputs=2),
        norm("ffn_norm", "ffn_norm"),
        *dense("ffn_gate", "ffn.wg", (m, h), c.ffn_bias),
        *dense("ffn_up", "ffn.wi", (m, h), c.ffn_bias),
        *dense("ffn_down", "ffn.wo", (h, m), c.ffn_bias),
        vector("output_norm.weight", ("final_norm.scale", (m,))),
    ]
    return entries if c.tied else [*entries, matrix(_OUTPUT, ("softmax.weight", (m, c.vocab)))]
