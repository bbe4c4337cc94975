"""GPT-2 and LLaMA in Hugging Face's files: the two classes of `transformers` that our decoder's settings cover. No JAX."""

from collections.abc import Mapping
from typing import Any

from models.gpt.config import GptConfig
from models.interchange import (
    Entry,
    InterchangeError,
    demand,
    kept_apart,
    matrix,
    model_type,
    no_head,
    norm,
    only,
    read_activation,
    setting,
    table,
    vector,
    write_activation,
)

MODEL_TYPES = ("gpt2", "llama")
_ARCHITECTURES = {"gpt2": ("GPT2LMHeadModel", "GPT2Model"), "llama": ("LlamaForCausalLM", "LlamaModel")}
_PREFIX = {"gpt2": "transformer.", "llama": "model."}  # of all tensors but the output matrix, in files that have one
_BODY = {"gpt2": ("wte.", "wpe.", "h.", "ln_f."), "llama": ("embed_tokens.", "layers.", "norm.")}
_BUFFERS = (
    ".attn.bias",
    ".attn.masked_bias",
    ".rotary_emb.inv_freq",
)  # old releases saved buffers that can be computed
_TABLE = {"gpt2": "transformer.wte.weight", "llama": "model.embed_tokens.weight"}
_OUTPUT = "lm_head.weight"


def _kind(c: GptConfig) -> str:
    """Returns which of the two classes a model is, or is nearest to."""
    return "llama" if c.positions == "rotary" else "gpt2"


def read_config(theirs: Mapping[str, Any]) -> GptConfig:
    """Returns the configuration of the model that a config.json describes.

    Raises:
      InterchangeError: a setting is missing, or our model does not support it.
    """
    return _read_llama(theirs) if model_type(theirs, _ARCHITECTURES) == "llama" else _read_gpt2(theirs)


def _read_gpt2(theirs: Mapping[str, Any]) -> GptConfig:
    """Returns the configuration of a GPT-2 that reads its own text alone."""
    only(theirs, add_cross_attention=(False,))
    return read_gpt2(theirs)


def read_gpt2(theirs: Mapping[str, Any]) -> GptConfig:
    """Returns the configuration of a GPT-2, whether it attends to another model's output or not; its dropout is that of the
    residual branches, the only one that we have."""
    only(theirs, scale_attn_weights=(True,), scale_attn_by_inverse_layer_idx=(False,))
    width, heads = setting(theirs, "n_embd", int), setting(theirs, "n_head", int)
    if width % heads:
        raise InterchangeError(f"config.json: n_embd={width} is no multiple of n_head={heads}")
    return GptConfig(
        vocab=setting(theirs, "vocab_size", int),
        layers=setting(theirs, "n_layer", int),
        model_dim=width,
        hidden_dim=setting(theirs, "n_inner", int, 4 * width),
        heads=heads,
        head_dim=width // heads,
        positions="learned",
        max_positions=setting(theirs, "n_positions", int),
        norm="layer",
        norm_bias=True,
        norm_eps=setting(theirs, "layer_norm_epsilon", float, 1e-5),
        activation=read_activation(setting(theirs, "activation_function", str, "gelu_new")),
        attention_bias=True,
        ffn_bias=True,
        tied=setting(theirs, "tie_word_embeddings", bool, True),
        dropout=setting(theirs, "resid_pdrop", float, 0.1),
    )


def _read_llama(theirs: Mapping[str, Any]) -> GptConfig:
    only(theirs, sliding_window=(), partial_rotary_factor=(1, 1.0), pretraining_tp=(1,))
    # Up to version 4 transformers wrote rope_theta and rope_scaling, from 5 on both are in rope_parameters.
    rope = {"rope_theta": theirs.get("rope_theta")}
    for key in ("rope_scaling", "rope_parameters"):
        settings = setting(theirs, key, dict, {})
        rope |= settings
        kind = settings.get("rope_type", settings.get("type", "default"))
        if kind != "default":
            raise InterchangeError(f"config.json: {key} of type {kind!r} is not supported, only 'default'")
    only(rope, partial_rotary_factor=(1, 1.0))
    width, heads = setting(theirs, "hidden_size", int), setting(theirs, "num_attention_heads", int)
    head_dim = setting(theirs, "head_dim", int, width // heads)
    kv_heads = setting(theirs, "num_key_value_heads", int, heads)
    if heads % kv_heads:
        raise InterchangeError(
            f"config.json: num_attention_heads={heads} is no multiple of num_key_value_heads={kv_heads}"
        )
    return GptConfig(
        vocab=setting(theirs, "vocab_size", int),
        layers=setting(theirs, "num_hidden_layers", int),
        model_dim=width,
        hidden_dim=setting(theirs, "intermediate_size", int),
        heads=heads,
        head_dim=head_dim,
        kv_heads=0 if kv_heads == heads else kv_heads,
        positions="rotary",
        rotary_base=setting(rope, "rope_theta", float, 10_000.0),
        norm_eps=setting(theirs, "rms_norm_eps", float, 1e-6),
        activation=read_activation(setting(theirs, "hidden_act", str, "silu")),
        gated=True,
        attention_bias=setting(theirs, "attention_bias", bool, False),
        ffn_bias=setting(theirs, "mlp_bias", bool, False),
        tied=setting(theirs, "tie_word_embeddings", bool, False),
        dropout=setting(theirs, "attention_dropout", float, 0.0),
    )


def write_config(c: GptConfig) -> dict[str, Any]:
    """Returns the config.json of a model. Our configuration has no longest text of a LLaMA: `transformers`' default applies.

    Raises:
      InterchangeError: `transformers` has no class for the model; the message names the fields that differ.
    """
    kind = _kind(c)
    demand(
        c, {"gpt2": "GPT-2", "llama": "LLaMA"}[kind], order="pre", per_dim_scale=False, logit_cap=0.0, softmax_cap=0.0,
        softmax_bias=False, prefix=False, **_NEEDS[kind](c),
    )  # fmt: skip
    if c.model_dim % c.heads:
        raise InterchangeError(
            f"Hugging Face's models need model_dim={c.model_dim} to be a multiple of heads={c.heads}"
        )
    both = {
        "architectures": [_ARCHITECTURES[kind][0]],
        "model_type": kind,
        "vocab_size": c.vocab,
        "tie_word_embeddings": c.tied,
        "bos_token_id": None,  # the default would be those of the first release of this type
        "eos_token_id": None,
    }
    if kind == "gpt2":
        return both | {
            "n_layer": c.layers,
            "n_embd": c.model_dim,
            "n_inner": c.hidden_dim,
            "n_head": c.heads,
            "n_positions": c.max_positions,
            "activation_function": write_activation(c.activation),
            "layer_norm_epsilon": c.norm_eps,
            "resid_pdrop": c.dropout,
            "embd_pdrop": c.dropout,
            "attn_pdrop": c.dropout,
        }
    return both | {
        "num_hidden_layers": c.layers,
        "hidden_size": c.model_dim,
        "intermediate_size": c.hidden_dim,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.groups,
        "head_dim": c.head_dim,
        "hidden_act": write_activation(c.activation),
        "rms_norm_eps": c.norm_eps,
        "rope_theta": c.rotary_base,
        "rope_scaling": None,
        "attention_bias": c.attention_bias,
        "mlp_bias": c.ffn_bias,
        "attention_dropout": c.dropout,
    }


_NEEDS = {
    "gpt2": lambda c: dict(
        positions="learned", norm="layer", norm_bias=True, gated=False, attention_bias=True, ffn_bias=True,
        groups=c.heads, head_dim=c.model_dim // c.heads,
    ),
    "llama": lambda c: dict(norm="rms", norm_bias=False, gated=True),
}  # fmt: skip


def entries(c: GptConfig) -> list[Entry]:
    """Returns the entries of all tensors that `transformers` saves for such a model."""
    body = _llama(c) if _kind(c) == "llama" else _gpt2(c)
    return body if c.tied else [*body, matrix(_OUTPUT, ("softmax.weight", (c.model_dim, c.vocab)))]


def _gpt2(c: GptConfig) -> list[Entry]:
    """Returns the entries of a GPT-2."""
    return [
        table(_TABLE["gpt2"], "embedding.table", (c.vocab, c.model_dim)),
        table("transformer.wpe.weight", "position_embedding.table", (c.max_positions, c.model_dim)),
        *gpt2_layers(c, "decoder"),
        *norm("transformer.ln_f", "final_norm", c.model_dim),
    ]


def gpt2_layers(c: GptConfig, stack: str, *, cross: bool = False) -> list[Entry]:
    """Returns the entries of a GPT-2's layers: matrices are [in, out] (its Conv1D); queries, keys and values are one tensor.

    Args:
      stack: our name of the layers.
      cross: they attend to another model's output too.
    """
    m, h, n, d, layers = c.model_dim, c.hidden_dim, c.heads, c.head_dim, c.layers
    at = "transformer.h.{layer}."

    def dense(theirs: str, shape: tuple[int, ...], *ours: str, inputs: int = 1) -> list[Entry]:
        weights = [(f"{stack}.{name}", shape) for name in ours]
        biases = [(f"{stack}.{name}_bias", shape[inputs:]) for name in ours]
        return [
            matrix(f"{at}{theirs}.weight", *weights, inputs=inputs, layers=layers, transposed=False),
            vector(f"{at}{theirs}.bias", *biases, layers=layers),
        ]

    attended = [
        *norm(f"{at}ln_cross_attn", f"{stack}.cross_norm", m, layers=layers),
        *dense("crossattention.q_attn", (m, n, d), "cross_attention.q"),
        *dense("crossattention.c_attn", (m, n, d), "cross_attention.k", "cross_attention.v"),
        *dense("crossattention.c_proj", (n, d, m), "cross_attention.o", inputs=2),
    ]
    return [
        *norm(f"{at}ln_1", f"{stack}.attention_norm", m, layers=layers),
        *dense("attn.c_attn", (m, n, d), "attention.q", "attention.k", "attention.v"),
        *dense("attn.c_proj", (n, d, m), "attention.o", inputs=2),
        *(attended if cross else []),
        *norm(f"{at}ln_2", f"{stack}.ffn_norm", m, layers=layers),
        *dense("mlp.c_fc", (m, h), "ffn.wi"),
        *dense("mlp.c_proj", (h, m), "ffn.wo"),
    ]


def _llama(c: GptConfig) -> list[Entry]:
    m, h, n, g, d, layers = c.model_dim, c.hidden_dim, c.heads, c.groups, c.head_dim, c.layers
    at = "model.layers.{layer}."

    def dense(theirs: str, ours: str, shape: tuple[int, ...], bias: bool, inputs: int = 1) -> list[Entry]:
        weight = matrix(f"{at}{theirs}.weight", (f"decoder.{ours}", shape), inputs=inputs, layers=layers)
        extra = vector(f"{at}{theirs}.bias", (f"decoder.{ours}_bias", shape[inputs:]), layers=layers)
        return [weight, extra] if bias else [weight]

    return [
        table(_TABLE["llama"], "embedding.table", (c.vocab, m)),
        vector(f"{at}input_layernorm.weight", ("decoder.attention_norm.scale", (m,)), layers=layers),
        *dense("self_attn.q_proj", "attention.q", (m, n, d), c.attention_bias),
        *dense("self_attn.k_proj", "attention.k", (m, g, d), c.attention_bias),
        *dense("self_attn.v_proj", "attention.v", (m, g, d), c.attention_bias),
        *dense("self_attn.o_proj", "attention.o", (n, d, m), c.attention_bias, inputs=2),
        vector(f"{at}post_attention_layernorm.weight", ("decoder.ffn_norm.scale", (m,)), layers=layers),
        *dense("mlp.gate_proj", "ffn.wg", (m, h), c.ffn_bias),
        *dense("mlp.up_proj", "ffn.wi", (m, h), c.ffn_bias),
        *dense("mlp.down_proj", "ffn.wo", (h, m), c.ffn_bias),
        vector("model.norm.weight", ("final_norm.scale", (m,))),
    ]


def copies(c: GptConfig) -> dict[str, str]:
    """Returns the tensors that a file may hold besides `readable`, and those that they repeat, by canonical name."""
    return {_OUTPUT: _TABLE[_kind(c)]} if c.tied else {}


def canonical(c: GptConfig, theirs: str) -> str | None:
    """Returns the name of a file's tensor in `readable` or `copies`; None for a tensor that is not needed."""
    if theirs.startswith(_BODY[_kind(c)]):
        theirs = _PREFIX[_kind(c)] + theirs
    return None if theirs.endswith(_BUFFERS) else theirs


readable = entries  # the tensors to look for in a folder
untied = kept_apart
is_head_tensor = no_head
