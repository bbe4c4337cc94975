"""LLaMA and Mistral in MaxText's checkpoints. No JAX.

The model is the one that its config.yml describes; sizes are those of the arrays. MaxText does not scale attention's products:
its queries' matrices are ours divided by the square root of a head's size. Its Llama 3.1 turns neighbouring dimensions of a head.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from models.gpt.config import GptConfig
from models.gpt.huggingface import INTERCHANGE as HUGGING_FACE
from models.interchange import ArrayFiles, Entry, InterchangeError, Shape
from models.interchange.layers import Names, attention_names, layers
from models.interchange.settings import Settings, only, setting
from models.interchange.tensors import as_linen, matrix, table, vector
from models.parts.attention.config import Llama3, Rotary

_TABLE, _OUTPUT = "token_embedder.embedding", "decoder.logits_dense"
_FIRST = "decoder.layers_0."
_NAMES: Names = {
    "pre_self_attention_layer_norm": "attention_norm",
    **attention_names("self_attention", ("query", "key", "value", "out")),
    "post_self_attention_layer_norm": "ffn_norm",
    "mlp.wi_0": "ffn.wg",
    "mlp.wi_1": "ffn.wi",
    "mlp.wo": "ffn.wo",
}
_BLOCKS = ("llama2", "mistral")
_SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_ORIGINAL = {"original_max_position_embeddings": 8192}
_SCALING = Llama3(factor=8.0, original=8192)  # the only one that MaxText has
# Settings that would change what is computed, with what they are by default, and here alone.
_ONLY: dict[str, tuple[Any, ...]] = {
    "mlp_activations": (["silu", "linear"],),
    "attention_type": ("global",),
    "rope_type": ("default", "llama3.1"),
    **dict.fromkeys(("attn_logits_soft_cap", "final_logits_soft_cap", "quantization"), (None, 0.0, "")),
    **dict.fromkeys(("use_qk_norm", "attention_bias", "mlp_bias", "fused_qkv", "fused_mlp", "share_kv_projections"), (False,)),
    **dict.fromkeys(("rope_min_timescale", "num_experts"), (1,)),
    **dict.fromkeys(("rope_linear_scaling_factor", "partial_rotary_factor"), (1.0,)),
    **dict.fromkeys(("mtp_num_layers", "local_rope_max_timescale"), (0, -1)),
    "nope_layer_interval": (-1,),
    "temperature_tuning": (False,),
}


class _MaxText(ArrayFiles[GptConfig]):
    def read_config(self, shapes: Mapping[str, Shape], settings: Settings) -> GptConfig:
        """Returns the configuration of the model of a checkpoint. Raises InterchangeError for another than LLaMA's or Mistral's,
        or where an array that tells a size is missing."""

        def sizes(name: str, dimensions: int) -> Shape:
            if len(shape := shapes.get(name, ())) != dimensions:
                raise InterchangeError(f"no LLaMA of MaxText: {name} {f'has shape {shape}' if shape else 'is missing'}")
            return shape

        try:
            return HUGGING_FACE.read_config(self._translated(sizes, shapes, settings))
        except InterchangeError as error:
            raise InterchangeError(str(error).replace("config.json", "config.yml")) from None

    def _translated(self, sizes: Any, shapes: Mapping[str, Shape], settings: Settings) -> dict[str, Any]:
        """Returns the settings that a folder of Hugging Face's has for the model."""
        block = setting(settings, "decoder_block", str)
        if block not in _BLOCKS:
            raise InterchangeError(f"config.json: decoder_block={block[:40]!r}: only {' and '.join(_BLOCKS)} are read")
        only(settings, **_ONLY)
        tied = f"{_OUTPUT}.kernel" not in shapes
        if tied:
            only({"normalize_embedding_logits": True} | dict(settings), normalize_embedding_logits=(False,))
        (vocab, width), (_, heads, head_dim) = sizes(_TABLE, 2), sizes(f"{_FIRST}self_attention.query.kernel", 3)
        (_, keys, _), (_, hidden) = sizes(f"{_FIRST}self_attention.key.kernel", 3), sizes(f"{_FIRST}mlp.wi_0.kernel", 2)
        translated: dict[str, Any] = dict(
            model_type="llama",
            vocab_size=vocab,
            hidden_size=width,
            intermediate_size=hidden,
            num_hidden_layers=len({name.split(".")[1] for name in shapes if name.startswith("decoder.layers_")}),
            num_attention_heads=heads,
            num_key_value_heads=keys,
            head_dim=head_dim,
            rms_norm_eps=setting(settings, "normalization_layer_epsilon", float),
            rope_theta=float(setting(settings, "rope_max_timescale", int)),
            tie_word_embeddings=tied,
        )
        if _is_llama3(settings):
            scaled = setting(settings, "rope_use_scale", bool, True)
            if not scaled:
                raise InterchangeError("config.json: rope_use_scale=False: of Llama 3.1's positions only True is read")
            translated["rope_scaling"] = _SCALED | _ORIGINAL
        return translated

    def write_settings(self, c: GptConfig) -> dict[str, Any]:
        """Returns the settings of config.yml that describe the model."""
        theirs = HUGGING_FACE.model_types["llama"].write(c)
        assert isinstance(c.positions, Rotary)
        if theirs["attention_bias"] or theirs["mlp_bias"] or c.feed_forward.activation != "silu":
            raise InterchangeError("MaxText's LLaMA has no biases and the activation silu, the nearest to the model's")
        if c.positions.scaling not in (None, _SCALING):
            raise InterchangeError(f"MaxText's LLaMA has no such positions: {c.positions}; the nearest are Llama 3.1's"[:200])
        if c.positions.base != int(c.positions.base):
            raise InterchangeError(f"positions.base={c.positions.base}: whole in MaxText; nearest is {round(c.positions.base)}")
        return {
            "decoder_block": "llama2",
            "base_emb_dim": c.model_dim,
            "base_num_query_heads": c.attention.heads,
            "base_num_kv_heads": c.attention.groups,
            "base_mlp_dim": c.feed_forward.hidden_dim,
            "base_num_decoder_layers": c.layers,
            "head_dim": c.attention.head_dim,
            "vocab_size": c.vocab,
            "mlp_activations": ["silu", "linear"],
            "enable_dropout": False,
            "logits_via_embedding": c.output.tied,
            "normalize_embedding_logits": False,
            "normalization_layer_epsilon": c.norm.eps,
            "rope_type": "llama3.1" if c.positions.scaling else "default",
            "rope_max_timescale": int(c.positions.base),
        }

    def entries(self, c: GptConfig) -> list[Entry]:
        m, turned = c.model_dim, isinstance(c.positions, Rotary) and c.positions.scaling is not None
        mapped = [
            *layers(c, "decoder", "decoder.layers_{layer}.", _NAMES, layers=c.layers),
            vector("decoder.decoder_norm.weight", ("final_norm.scale", (m,))),
        ]
        if not c.output.tied:
            mapped.append(matrix(f"{_OUTPUT}.weight", ("softmax.weight", (m, c.vocab))))
        linen = as_linen(mapped, joined=False)
        return [table(_TABLE, "embedding.table", (c.vocab, m)), *(_queries_and_keys(c, e, turned=turned) for e in linen)]


def _queries_and_keys(c: GptConfig, e: Entry, *, turned: bool) -> Entry:
    """Returns the entry with what is special about the projections of queries and keys."""
    kind = e.parts[0].name.rpartition(".")[2]
    if kind == "q":
        e = dataclasses.replace(e, scale=c.attention.head_dim**0.5)
    if turned and kind in ("q", "k"):
        assert e.file is not None
        _, heads, _ = e.file
        e = dataclasses.replace(e, pairs=heads, order=(1, 2, 0), transposed=True)
    return e


def _is_llama3(settings: Settings) -> bool:
    """Returns whether MaxText computes Llama 3.1's rotary positions: so its name says, or the kind of positions."""
    return any(str(settings.get(key, "")).startswith("llama3.1") for key in ("model_name", "rope_type"))


INTERCHANGE = _MaxText()
