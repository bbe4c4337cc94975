"""Tensors of mixtures of experts in Hugging Face's files. No JAX.

`transformers` 4 has a tensor for each expert, 5 all of a layer in one, which it takes apart again where it saves; we write the
former and read both (`conversions`). gpt-oss has one tensor in either, and is released in MXFP4, which reading unpacks.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from models.gpt.config import GptConfig
from models.interchange import Conversion, Entry, InterchangeError, Shape
from models.interchange.tensors import dense, matrix, vector
from models.parts.moe.config import TopK


def entries(c: GptConfig, kind: str, at: str, ours: str, **places: Any) -> list[Entry]:
    """Returns the entries of the mixture in layers named `at`."""
    moe = c.moe
    assert moe is not None
    m, h, e = c.model_dim, moe.experts.hidden_dim or c.feed_forward.hidden_dim, moe.experts.count
    if kind == "gpt_oss":
        return _oss_experts(m, h, e, f"{at}mlp", f"{ours}.ffn", **places)
    inside, (gate, up, down) = _NAMES.get(kind, ("mlp", ("gate_proj", "up_proj", "down_proj")))
    router = [*dense(f"{at}{inside}.gate", f"{ours}.ffn.router", (m, e), bias="", **places)]
    if isinstance(moe.router, TopK) and moe.router.correction:
        theirs = f"{at}{inside}.gate.e_score_correction_bias"
        router.append(vector(theirs, (f"{ours}.ffn.correction", (e,)), **places))

    def networks(theirs: str, to: str, size: int, names: tuple[str, str, str], **more: Any) -> list[Entry]:
        shapes = {names[0]: ("wg", (m, size)), names[1]: ("wi", (m, size)), names[2]: ("wo", (size, m))}
        return [
            matrix(f"{at}{inside}.{theirs}.{name}.weight", (f"{ours}.{to}.{ours_}", shape), **places, **more)
            for name, (ours_, shape) in shapes.items()
        ]

    tensors = [*router, *networks("experts.{expert}", "ffn", h, (gate, up, down), experts=e)]
    if shared := moe.experts.shared:
        theirs = "shared_experts" if kind == "deepseek_v3" else "shared_expert"
        tensors += networks(theirs, "ffn.shared", shared.hidden_dim, ("gate_proj", "up_proj", "down_proj"))
    if shared and shared.gated:
        tensors += dense(f"{at}{inside}.shared_expert_gate", f"{ours}.ffn.shared_gate", (m, 1), bias="", **places)
    return tensors


_NAMES = {"mixtral": ("block_sparse_moe", ("w1", "w3", "w2"))}


def _oss_experts(m: int, h: int, e: int, at: str, ours: str, **places: Any) -> list[Entry]:
    """Returns the entries of gpt-oss's mixture: all experts in one tensor [experts, in, out], whose outputs are gates and others
    in turn."""
    router = dense(f"{at}.router", f"{ours}.router", (m, e), **places)
    places, down, inside = dict(places, transposed=False), (e, h, m), f"{at}.experts"
    up = [(f"{ours}.{name}", (e, m, h)) for name in ("wg", "wi")]
    up_bias = [(f"{ours}.{name}_bias", (e, h)) for name in ("wg", "wi")]
    return [
        *router,
        matrix(f"{inside}.gate_up_proj", *up, inputs=2, file=(e, m, 2 * h), groups=h, **places),
        matrix(f"{inside}.gate_up_proj_bias", *up_bias, groups=h, **places),
        matrix(f"{inside}.down_proj", (f"{ours}.wo", down), inputs=2, file=down, **places),
        matrix(f"{inside}.down_proj_bias", (f"{ours}.wo_bias", (e, m)), **places),
    ]


def is_mxfp4(theirs: Mapping[str, Any]) -> bool:
    """Returns whether a config.json is of packed tensors that `conversions` unpacks."""
    settings = theirs.get("quantization_config")
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    return theirs["model_type"] == "gpt_oss" and method == "mxfp4"


def renamed(kind: str, theirs: str) -> str:
    """Returns the name on disk of a tensor that may have the one that it has in memory in version 5."""
    if kind == "mixtral":
        return theirs.replace(".mlp.gate.", ".block_sparse_moe.gate.")
    return theirs


def conversions(kind: str, shapes: Mapping[str, Shape]) -> dict[str, Conversion]:
    """Returns the tensors that a folder holds in another form, by their names on disk: experts of `transformers` 5, or MXFP4.

    Args:
      shapes: of the folder's tensors.
    """
    forms: dict[str, Conversion] = {}
    for theirs, shape in shapes.items():
        name = theirs if theirs.startswith("model.") else f"model.{theirs}"
        if kind == "gpt_oss":
            base = name.removesuffix("_blocks")
            scales = theirs.removesuffix("_blocks") + "_scales"
            if base != name and scales in shapes and len(shape) == 4:
                experts, out, blocks, half = shape
                forms[base] = Conversion((theirs, scales), (experts, 2 * half * blocks, out), unpacked, packed=True)
        elif theirs.endswith((".experts.gate_up_proj", ".experts.down_proj")) and len(shape) == 3:
            forms |= _apart(kind, name, theirs, shape)
    return forms


def _apart(kind: str, name: str, theirs: str, shape: Shape) -> dict[str, Conversion]:
    """Returns each expert's tensors of one of a whole layer's, [experts, out, in]."""
    _, (gate, up, down) = _NAMES.get(kind, ("mlp", ("gate_proj", "up_proj", "down_proj")))
    at = name.rpartition(".")[0]
    at = at.replace(".mlp.", ".block_sparse_moe.") if kind == "mixtral" else at
    forms: dict[str, Conversion] = {}
    for e in range(shape[0]):
        if theirs.endswith("down_proj"):
            forms[f"{at}.{e}.{down}.weight"] = Conversion((theirs,), shape[1:], _slice(e, slice(None)))
            continue
        half = shape[1] // 2
        for piece, rows in ((gate, slice(0, half)), (up, slice(half, None))):
            forms[f"{at}.{e}.{piece}.weight"] = Conversion((theirs,), (half, shape[2]), _slice(e, rows))
    return forms


def _slice(e: int, rows: slice) -> Callable[..., np.ndarray]:
    return lambda array: array[e, rows]


_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def unpacked(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Returns the numbers [experts, in, out] of MXFP4 blocks [experts, out, blocks, 16] of two 4-bit numbers a byte, the lower
    half first, and of a power of two for each block of 32 (OCP Microscaling Formats, version 1.0). Raises InterchangeError where
    they are no bytes."""
    if blocks.dtype != np.uint8 or scales.dtype != np.uint8:
        raise InterchangeError(f"MXFP4 blocks and scales are bytes, not {blocks.dtype} and {scales.dtype}")
    numbers = np.stack([_FP4[blocks & 15], _FP4[blocks >> 4]], axis=-1)
    numbers = np.ldexp(numbers.reshape(*blocks.shape[:3], -1), scales[..., None].astype(np.int32) - 127)
    return numbers.reshape(*blocks.shape[:2], -1).swapaxes(1, 2)
