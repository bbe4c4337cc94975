"""Decoders in GGUF files, as llama.cpp's converter writes them: their settings as a config.json, their tensors by the names of
Hugging Face's, which models/gpt/huggingface/ reads. No JAX.

The converter's own table of names is in the `gguf` library. What it does to numbers besides renaming is undone here: rows of
queries and keys in another order, norms with 1 added, all experts of a layer in one tensor.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import gguf
import numpy as np

from models.gpt.config import GptConfig
from models.gpt.huggingface import INTERCHANGE as HUGGING_FACE
from models.interchange import Conversion, Entry, GgufFiles, InterchangeError, Part, Shape
from models.parts.attention.config import Llama3, Rotary

_TABLE, _OUTPUT = "token_embd.weight", "output.weight"
_ORIGINAL = "original_max_position_embeddings"
_PATTERN = "attention.sliding_window_pattern"
_ARCHS = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """An architecture of llama.cpp.

    Attributes:
      kind: the model type of `transformers` that it is.
      sparse: the same of files with experts, where one architecture is both.
      settings: settings of a config.json that no key has, or that an absent key has.
      keys: settings by the keys that have them, beside those of all architectures; needed, unless `settings` has them.
      alternating: some layers have a window; a key may say which.
      permuted: rows of queries and keys are in the order of neighbours that positions turn together.
      plus_one: norms are stored with 1 added.
      factors: the tensors by which rates of rotary positions are divided: of all rows, or of long rows and of short ones.
      truncate: of YaRN: the ramp's ends are rounded.
      largest: layers of the size whose logits are divided by the square root of width / heads, not of a head's size.
    """

    kind: str
    sparse: str = ""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    keys: dict[str, str] = dataclasses.field(default_factory=dict)
    alternating: bool = False
    permuted: bool = False
    plus_one: bool = False
    factors: tuple[str, ...] = ()
    truncate: bool = True
    largest: int = 0


_FREQS = ("rope_freqs.weight",)
_WINDOW = {"attention.sliding_window": "sliding_window"}
_LAST_CAP = {"final_logit_softcapping": "final_logit_softcapping"}
_EXPERTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
_NORM = {"expert_weights_norm": "norm_topk_prob"}
_HIDDEN = {"expert_feed_forward_length": "moe_intermediate_size"}
_SHARED = {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(kind="llama", sparse="mixtral", permuted=True, factors=_FREQS),
    "smollm3": Architecture(kind="smollm3", permuted=True, factors=_FREQS),
    "qwen2": Architecture(kind="qwen2"),
    "qwen3": Architecture(kind="qwen3"),
    "gemma2": Architecture(
        kind="gemma2",
        settings=dict(sliding_window=4096, attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
        keys=_WINDOW | _LAST_CAP | {"attn_logit_softcapping": "attn_logit_softcapping"},
        alternating=True,
        plus_one=True,
        largest=46,
    ),
    "gemma3": Architecture(
        kind="gemma3_text",
        settings=dict(rope_local_base_freq=10_000.0, final_logit_softcapping=0.0),
        keys=_WINDOW | _LAST_CAP | {"rope.freq_base_swa": "rope_local_base_freq"},
        alternating=True,
        plus_one=True,
        largest=62,
    ),
    "phi3": Architecture(
        kind="phi3",
        settings=dict(sliding_window=0),
        keys=_WINDOW,
        factors=("rope_factors_long.weight", "rope_factors_short.weight"),
    ),
    "olmo2": Architecture(kind="olmo2"),
    "qwen2moe": Architecture(kind="qwen2_moe", settings=dict(norm_topk_prob=False), keys=_EXPERTS | _NORM | _HIDDEN | _SHARED),
    "qwen3moe": Architecture(kind="qwen3_moe", settings=dict(norm_topk_prob=True), keys=_EXPERTS | _NORM | _HIDDEN),
    "olmoe": Architecture(kind="olmoe", settings=dict(norm_topk_prob=False), keys=_EXPERTS | _NORM),
    "gpt-oss": Architecture(
        kind="gpt_oss",
        keys=_EXPERTS | _WINDOW | {"expert_feed_forward_length": "intermediate_size"},
        alternating=True,
        truncate=False,
    ),
}
# Keys that change nothing that our models compute, and values of others at which they change nothing, beside 0 and "none".
_NO_MATTER = ("vocab_size", "tensor_data_layout", "rope.scaling.finetuned")
_NEUTRAL = {
    "attention.causal": True,
    "expert_weights_scale": 1.0,
    "expert_gating_func": 1,
    "rope.scaling.factor": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
}


class _Gguf(GgufFiles[GptConfig]):
    def read_config(self, architecture: str, settings: Mapping[str, Any], tensors: Mapping[str, Any]) -> GptConfig:
        row = ARCHITECTURES[architecture]
        keys = _Keys(architecture, settings)
        if _TABLE not in tensors:
            raise InterchangeError(f"{_TABLE} is missing")
        width, heads, layers = (keys(key) for key in ("embedding_length", "attention.head_count", "block_count"))
        size = max(keys("attention.key_length", 0) or width // heads, 1)
        turned, longest = keys("rope.dimension_count", size), keys("context_length")
        sparse = row.sparse if settings.get("expert_count") else ""
        theirs: dict[str, Any] = {
            "model_type": sparse or row.kind,
            "vocab_size": tensors[_TABLE].shape[0],
            "num_hidden_layers": layers,
            "hidden_size": width,
            "intermediate_size": keys("feed_forward_length"),
            "num_attention_heads": heads,
            "num_key_value_heads": keys("attention.head_count_kv", 0) or heads,
            "head_dim": size,
            "max_position_embeddings": longest,
            "rms_norm_eps": keys("attention.layer_norm_rms_epsilon"),
            "tie_word_embeddings": _OUTPUT not in tensors,
            "attention_bias": "blk.0.attn_q.bias" in tensors,
            "qkv_bias": "blk.0.attn_q.bias" in tensors,
            "mlp_bias": "blk.0.ffn_up.bias" in tensors,
            "query_pre_attn_scalar": width / heads if layers == row.largest else float(size),
            "rope_theta": keys("rope.freq_base", 10_000.0),
            "partial_rotary_factor": turned / size,
            **row.settings,
        }
        for key, name in (row.keys | (_EXPERTS if sparse else {})).items():
            theirs[name] = keys(key, theirs.get(name))
        if row.alternating and (slides := keys.left.pop(_PATTERN, None)) is not None:
            theirs["layer_types"] = _layer_types(slides, layers)
        factors = [[decimal(x) for x in tensors[name][...].tolist()] for name in row.factors if name in tensors]
        scaling = _scaling(row, keys, factors, theirs["rope_theta"], turned, longest)
        theirs["rope_scaling"] = scaling
        if scaling and _ORIGINAL in scaling:  # which Phi's folders have beside it
            theirs[_ORIGINAL] = scaling[_ORIGINAL]
        keys.refuse_others(
            {
                "attention.value_length": size,
                "attention.key_length_swa": size,
                "attention.value_length_swa": size,
                "rope.dimension_count_swa": turned,
            }
        )
        try:
            return HUGGING_FACE.read_config(theirs)
        except InterchangeError as error:
            raise InterchangeError(str(error).removeprefix("config.json: ")) from None

    def entries(self, architecture: str, c: GptConfig) -> list[Entry]:
        """Returns the entries of all tensors but those that `read_config` reads; experts are apart, as in old files."""
        row = ARCHITECTURES[architecture]
        names = gguf.get_tensor_name_map(_ARCHS[architecture], 1)
        pairs = {"q": c.attention.heads, "k": c.attention.groups} if row.permuted else {}
        mapped: list[Entry] = []
        for entry in (piece for whole in HUGGING_FACE.entries(c) for piece in _apart(whole)):
            theirs = entry.theirs.replace("{layer}", "0").replace(".{expert}", "")
            name = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
            if name is None:
                raise InterchangeError(f"models of architecture {architecture!r} have no {theirs}")
            last = entry.parts[-1].name.rpartition("attention.")[2].removesuffix("_bias")
            mapped.append(
                dataclasses.replace(
                    entry,
                    theirs=name.replace("blk.0.", "blk.{layer}.").replace("_exps.", ".{expert}."),
                    pairs=pairs.get(last, 0),
                    file=entry.shape[1:] if ".ffn_gate_inp_shexp." in name else entry.file,
                )
            )
        return mapped

    def auxiliary_tensors(self, architecture: str) -> tuple[str, ...]:
        return ARCHITECTURES[architecture].factors

    def conversions(self, architecture: str, shapes: Mapping[str, Shape]) -> dict[str, Conversion]:
        forms: dict[str, Conversion] = {}
        for name, shape in shapes.items():
            if "_exps." in name:
                for e in range(shape[0]):
                    forms[name.replace("_exps.", f".{e}.")] = Conversion((name,), shape[1:], _row(e))
            elif ".ffn_gate_inp_shexp." in name and len(shape) > 1:
                forms[name] = Conversion((name,), shape[1:], _row(0))
            elif ARCHITECTURES[architecture].plus_one and name.endswith("norm.weight"):
                forms[name] = Conversion((name,), shape, lambda tensor: tensor[...] - 1)
        return forms


class _Keys:
    """The keys of a file, each of which is to be read or to be neutral."""

    def __init__(self, architecture: str, settings: Mapping[str, Any]):
        self.architecture, self.left = architecture, dict(settings)

    def __call__(self, key: str, default: Any = None) -> Any:
        """Returns the one value of a key, which must be there and not 0 if there is no default."""
        value, wanted = self.left.pop(key, default), "a word" if isinstance(default, str) else "a number"
        if value is None or (default is None and value == 0):
            raise InterchangeError(f"{self.architecture}.{key} is {'missing' if value is None else value}")
        if isinstance(value, list):
            wanted = "one value for all layers"
        if isinstance(value, list) or isinstance(value, str) != isinstance(default, str):
            raise InterchangeError(f"{self.architecture}.{key}={repr(value)[:60]} is not supported, only {wanted}")
        return decimal(value) if isinstance(value, float) else value

    def refuse_others(self, neutral: Mapping[str, Any]) -> None:
        """Raises InterchangeError if a key was not read that changes what a model computes."""
        neutral = _NEUTRAL | dict(neutral)
        for key, value in self.left.items():
            off = () if neutral.get(key) is True else (0, "none", "", [])
            if key not in _NO_MATTER and value not in (*off, neutral.get(key)):
                only = f", only {neutral[key]!r}" if key in neutral else ""
                raise InterchangeError(f"{self.architecture}.{key}={repr(value)[:60]} is not supported here{only}")


def decimal(value: float) -> float:
    """Returns a float32 as the decimal number that it was rounded from: 1e-05, not 9.999999747378752e-06."""
    return float(f"{value:.7g}")


def _layer_types(slides: int | list[bool], layers: int) -> list[str]:
    """Returns the types of layers of a pattern: whether each has a window, or that every n-th has none."""
    if isinstance(slides, int):
        slides = [slides == 0 or (i + 1) % slides != 0 for i in range(layers)]
    return ["sliding_attention" if slide else "full_attention" for slide in slides]


# --- rotary positions ---


def _scaling(
    row: Architecture, keys: _Keys, factors: list[list[float]], base: float, turned: int, longest: int
) -> dict[str, Any] | None:
    """Returns how rates are stretched, as the rope_scaling of a config.json; None where they are not.

    Args:
      factors: the numbers of the file's tensors of `row.factors`.
      turned: how many dimensions of a head are turned.
      longest: the longest text of the model.
    """
    kind = keys("rope.scaling.type", "linear")
    original = max(keys("rope.scaling.original_context_length", 0) or longest, 1)
    if len(factors) not in (0, len(row.factors)):
        raise InterchangeError(f"only {len(factors)} of {' and '.join(row.factors)} is there")
    if factors and kind not in ("none", "linear", "longrope"):
        raise InterchangeError(f"{row.factors[0]} and {keys.architecture}.rope.scaling.type={kind!r} at once")
    if len(factors) == 1:
        return _by_factors(factors[0], base, turned, max(longest, 1))
    if factors:
        long, short = factors
        return _longrope(long, short, original, keys("rope.scaling.attn_factor", 1.0))
    if kind == "linear":  # also where only a factor is named
        factor = keys("rope.scaling.factor", 1.0) or 1.0
        return {"rope_type": "linear", "factor": factor} if factor != 1.0 else None
    if kind == "yarn":
        return {
            "rope_type": "yarn",
            "factor": keys("rope.scaling.factor"),
            _ORIGINAL: original,
            "beta_fast": keys("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": keys("rope.scaling.yarn_beta_slow", 1.0),
            "truncate": row.truncate,
        }
    if kind == "none":
        return None
    raise InterchangeError(f"{keys.architecture}.rope.scaling.type={kind!r} is not supported, only 'linear' or 'yarn'")


def _longrope(long: list[float], short: list[float], original: int, amplitude: float) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "long_factor": long,
        "short_factor": short,
        _ORIGINAL: original,
        "attention_factor": amplitude,
    }


def _by_factors(factors: list[float], base: float, turned: int, longest: int) -> dict[str, Any] | None:
    """Returns the settings of Llama 3.1's or 3.2's rates where these factors make them, else rates with these very factors."""
    plain = Rotary(base=base).rates(turned)
    for factor in (1.0, 8.0, 32.0):
        known = Rotary(base=base, scaling=Llama3(factor=factor, original=8192))
        wanted = [rate / stretched for rate, stretched in zip(plain, known.rates(turned), strict=True)]
        if len(factors) == len(wanted) and np.allclose(factors, wanted, rtol=1e-5, atol=0):
            llama3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, _ORIGINAL: 8192}
            return None if factor == 1.0 else llama3 | {"factor": factor}
    return _longrope(factors, factors, longest, 1.0)


# --- tensors ---


_PROJECTIONS = {"wg": "gate_proj", "wi": "up_proj", "wo": "down_proj"}


def _apart(entry: Entry) -> list[Entry]:
    """Returns the entries of each expert and each projection of gpt-oss's tensors of all; others as they are."""
    if entry.theirs.endswith(".sinks"):
        return [dataclasses.replace(entry, theirs=f"{entry.theirs}.weight")]
    at, experts, theirs = entry.theirs.rpartition(".experts.")
    if not experts or entry.experts:
        return [entry]
    suffix = "bias" if theirs.endswith("_bias") else "weight"
    mapped: list[Entry] = []
    for part in entry.parts:
        projection = _PROJECTIONS[part.name.rpartition(".")[2].removesuffix("_bias")]
        inside = Part(part.name, part.shape[1:], part.inputs - 1)
        name = f"{at}.experts.{{expert}}.{projection}.{suffix}"
        mapped.append(
            dataclasses.replace(
                entry, theirs=name, parts=(inside,), transposed=inside.inputs > 0, experts=part.shape[0], file=None, groups=1
            )
        )
    return mapped


def _row(i: int) -> Callable[..., np.ndarray]:
    return lambda tensor: tensor[i]


INTERCHANGE = _Gguf(ARCHITECTURES)
