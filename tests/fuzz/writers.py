"""Writers of formats that the project only reads, for samples of the readers and for tests: GGUF, CTranslate2's model.bin."""

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_APART = ("general.", "split.", "tokenizer.")  # keys that do not belong to an architecture
_TYPES = {"<f4": 0, "|i1": 1, "<i2": 2, "<i4": 3, "<f2": 4}  # of CTranslate2's variables


def gguf(
    path: Path, architecture: str, settings: Mapping[str, Any], tensors: Iterable[tuple[str, np.ndarray]], kind: str = "F32"
) -> Path:
    """Writes a GGUF file and returns its path.

    Args:
      settings: values by key, without the architecture's name.
      tensors: by llama.cpp's names; those of integers are stored as they are.
      kind: the type of matrices, of those in gguf.GGMLQuantizationType that can be written; vectors are float32.
    """
    import gguf as library

    file, wanted = library.GGUFWriter(path, architecture), library.GGMLQuantizationType[kind]
    add = {bool: file.add_bool, int: file.add_uint32, float: file.add_float32, str: file.add_string, list: file.add_array}
    for key, value in settings.items():
        add[type(value)](key if key.startswith(_APART) else f"{architecture}.{key}", value)
    for name, x in tensors:
        if np.issubdtype(x.dtype, np.floating):
            x = np.ascontiguousarray(x, np.float32)
        if x.ndim > 1 and kind != "F32" and x.dtype == np.float32:
            file.add_tensor(name, library.quants.quantize(x, wanted), raw_dtype=wanted)
        else:
            file.add_tensor(name, x)
    for write_part in (file.write_header_to_file, file.write_kv_data_to_file, file.write_tensors_to_file, file.close):
        write_part()
    return path


def gguf_settings(c: Any) -> dict[str, Any]:
    """Returns the settings of a decoder (models.gpt.config.GptConfig) of the architecture "llama"."""
    return {
        "block_count": c.layers,
        "embedding_length": c.model_dim,
        "feed_forward_length": c.feed_forward.hidden_dim,
        "attention.head_count": c.attention.heads,
        "attention.head_count_kv": c.attention.groups,
        "attention.layer_norm_rms_epsilon": c.norm.eps,
        "rope.freq_base": c.positions.base,
    }


def gguf_vocabulary(tokens: list[str], merges: list[str], types: list[int], end: int, kind: str = "smollm") -> dict[str, Any]:
    """Returns the settings of a byte-level BPE.

    Args:
      types: of the tokens: 1 is a normal one, 3 a special one.
      end: the token that ends a text.
      kind: the manner in which text is cut into words.
    """
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": end,
    }


def ctranslate2(path: Path, variables: Mapping[str, np.ndarray], aliases: Mapping[str, str] | None = None) -> None:
    """Writes a file of a Whisper, as CTranslate2 version 6 does: variables by name, and further names of some of them."""

    def name(text: str) -> bytes:
        return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"

    parts = [struct.pack("<I", 6), name("WhisperSpec"), struct.pack("<II", 3, len(variables))]
    for key, x in variables.items():
        parts.append(name(key) + struct.pack(f"<B{x.ndim}I", x.ndim, *x.shape))
        parts.append(struct.pack("<BI", _TYPES[x.dtype.str], x.nbytes) + x.tobytes())
    parts.append(struct.pack("<I", len(aliases or {})))
    parts += [name(alias) + name(key) for alias, key in (aliases or {}).items()]
    path.write_bytes(b"".join(parts))
