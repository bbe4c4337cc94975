"""GPT-NeoX, OPT, GPT-J, Falcon and BLOOM in Hugging Face's files: settings and names of tensors, a table each. No JAX.

An absent key means what it means in `transformers` 5.23. All have layer norms with biases and feed-forward networks without
gates; queries, keys and values are one tensor, in which those of a group of heads stand together, but for OPT and GPT-J.
"""

from typing import Any

from models.gpt.config import GptConfig
from models.gpt.huggingface import base, rope
from models.gpt.huggingface.own_names import OwnNames, shared
from models.interchange import InterchangeError
from models.interchange.layers import Names, attention_names
from models.interchange.rows import Activation, Row, Setting, allowed, also, choice, head_count, must_be
from models.interchange.settings import MULTI_HEAD, Fields, Settings, setting, under, without
from models.parts.attention.config import Alibi, Rotary

_FIELDS: Fields = MULTI_HEAD | {
    **under("output", cap=0.0, bias=False, mtp=0.0, divisor=1.0),
    "embedding_scale": 1.0,
    "prefix": False,
    "moe": None,
}
_FUSED: Names = {"query_key_value": ("attention.q", "attention.k", "attention.v"), "dense": "attention.o"}
_NETWORK: Names = {"mlp.dense_h_to_4h": "ffn.wi", "mlp.dense_4h_to_h": "ffn.wo"}
_TWO_NORMS: Names = {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}


def _fused(attention: str) -> Names:
    """Returns the names of the projections of a layer whose attention is called so."""
    return {**{f"{attention}.{theirs}": ours for theirs, ours in _FUSED.items()}, **_NETWORK}


def _dropouts(*keys: str, default: float = 0.0) -> tuple[Row, ...]:
    """Returns the rows of rates of dropout, of which the largest is read."""

    def read(theirs: Settings) -> Fields:
        return {"dropout": max(setting(theirs, key, float, default) for key in keys)}

    return Row(read, absent=dict.fromkeys(keys, default)), *(also(key, "dropout") for key in keys)


def _biases(key: str, *, default: bool) -> Row:
    """Returns the row of a setting that all projections of a layer have biases."""

    def write(c: GptConfig) -> dict[str, Any]:
        of_attention, hidden = getattr(c.attention, "biases", None), c.feed_forward.bias
        if (of_attention, hidden) not in (("", False), ("qkvo", True)):
            raise InterchangeError(
                f"Hugging Face's classes with {key} have biases of all projections or of none, but attention.biases="
                f"{of_attention!r}, feed_forward.bias={hidden}"
            )
        return {key: hidden}

    def read(theirs: Settings) -> Fields:
        biased = setting(theirs, key, bool)
        return {"attention.biases": "qkvo" if biased else "", "feed_forward.bias": biased}

    return Row(read, write, {key: default})


# --- GPT-NeoX, Pythia ---


def _read_neox_rotary(theirs: Settings) -> Fields:
    head_dim = setting(theirs, "hidden_size", int) // setting(theirs, "num_attention_heads", int)
    given = setting(theirs, "rope_scaling", dict, {}) or setting(theirs, "rope_parameters", dict, {})
    outer = {
        "rope_theta": setting(theirs, "rotary_emb_base", float),
        "partial_rotary_factor": setting(theirs, "rotary_pct", float),
    }
    longest = setting(theirs, "max_position_embeddings", int)
    types = {"default": "default", "linear": "linear"}
    return {"positions": rope.turning(outer | given, head_dim, theta=1e4, longest=longest, partial=True, types=types)}


def _write_neox_rotary(c: GptConfig) -> dict[str, Any]:
    rotary = base.rotary_of(c)
    if rope.type_of(rotary) not in ("default", "linear") or (rotary.scaling and rope.type_of(rotary) == "default"):
        raise InterchangeError(f"Hugging Face's GPT-NeoX has no such rotary positions: {rotary}"[:200])
    written = rope.write(rotary, c.attention.rotary_dim)
    share = written.get("partial_rotary_factor", 1.0)
    return {"rotary_pct": share, "rotary_emb_base": rotary.base, "rope_scaling": written["rope_scaling"]}


_NEOX = OwnNames(
    config=GptConfig,
    name="GPT-NeoX",
    architectures=("GPTNeoXForCausalLM", "GPTNeoXModel"),
    fields=without(_FIELDS, "attention.biases") | {"positions.class": lambda c: "Rotary"},
    initial={"dialect": "gpt_neox"},
    rows=(
        *shared(tied=False),
        Setting("num_hidden_layers", "layers", int),
        Setting("hidden_size", "model_dim", int),
        Setting("intermediate_size", "feed_forward.hidden_dim", int),
        head_count("num_attention_heads", "hidden_size"),
        Setting("hidden_act", "feed_forward.activation", Activation, "gelu"),
        Setting("layer_norm_eps", "norm.eps", float, 1e-5),
        choice("use_parallel_residual", "norm.order", {True: "parallel_two", False: "pre"}, True),
        choice("attention_bias", "attention.biases", {True: "qkvo", False: ""}, True),
        *_dropouts("hidden_dropout", "attention_dropout"),
        Row(_read_neox_rotary, _write_neox_rotary, dict(rotary_emb_base=1e4, rotary_pct=0.25, max_position_embeddings=2048)),
    ),
    prefix="gpt_neox.",
    embedding="embed_in",
    stack="layers",
    final_norm="final_layer_norm",
    output="embed_out",
    names=lambda c: {**_TWO_NORMS, **_fused("attention")},
    groups=lambda c: c.attention.heads,
    buffers=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
)


# --- OPT ---


def _check_width(theirs: Settings) -> Fields:
    width = setting(theirs, "hidden_size", int)
    return allowed("word_embed_proj_dim", width).read(theirs)


_OPT = OwnNames(
    config=GptConfig,
    name="OPT",
    architectures=("OPTForCausalLM", "OPTModel"),
    fields=without(_FIELDS, "attention.biases", "feed_forward.bias")
    | {"norm.order": "pre", "norm.eps": 1e-5, "positions.class": lambda c: "Learned", "positions.first": 2},
    initial={"dialect": "opt"},
    rows=(
        *shared(tied=True),
        must_be("do_layer_norm_before", True),  # the 350M has norms behind its layers, and another width of embeddings
        must_be("_remove_final_layer_norm", False),
        must_be("layer_norm_elementwise_affine", True),
        Setting("num_hidden_layers", "layers", int),
        Setting("hidden_size", "model_dim", int),
        Setting("ffn_dim", "feed_forward.hidden_dim", int),
        head_count("num_attention_heads", "hidden_size"),
        Row(_check_width),
        Setting(
            "max_position_embeddings", "positions.rows", int, 2048, decode=lambda size: size + 2, encode=lambda rows: rows - 2
        ),
        Setting("activation_function", "feed_forward.activation", Activation, "relu"),
        _biases("enable_bias", default=True),
        Setting("dropout", "dropout", float, 0.1),
        also("attention_dropout", "dropout"),
    ),
    prefix="model.decoder.",
    embedding="embed_tokens",
    positions="embed_positions",
    stack="layers",
    final_norm="final_layer_norm",
    names=lambda c: (
        {"self_attn_layer_norm": "attention_norm", "final_layer_norm": "ffn_norm", "fc1": "ffn.wi", "fc2": "ffn.wo"}
        | attention_names("self_attn", ("q_proj", "k_proj", "v_proj", "out_proj"))
    ),
)


# --- GPT-J ---


def _read_gptj_rotary(theirs: Settings) -> Fields:
    size, dims = setting(theirs, "n_embd", int) // setting(theirs, "n_head", int), setting(theirs, "rotary_dim", int)
    if dims < 1:
        raise InterchangeError(f"config.json: rotary_dim={dims}: must be 2 or more; GPT-J's is 64")
    return {"positions": Rotary(dims=0 if dims == size else dims)}


_GPTJ = OwnNames(
    config=GptConfig,
    name="GPT-J",
    architectures=("GPTJForCausalLM", "GPTJModel"),
    fields=_FIELDS
    | {
        "attention.biases": "",
        "norm.order": "parallel",
        "output.bias": True,
        "positions.class": lambda c: "Rotary",
        **under("positions", base=10_000.0, scaling=None),
    },
    initial={"dialect": "gptj"},
    rows=(
        *shared(tied=False),
        Setting("n_layer", "layers", int),
        Setting("n_embd", "model_dim", int),
        Row(
            lambda theirs: {"feed_forward.hidden_dim": setting(theirs, "n_inner", int, 4 * setting(theirs, "n_embd", int))},
            lambda c: {"n_inner": c.feed_forward.hidden_dim},
        ),
        head_count("n_head", "n_embd"),
        Row(_read_gptj_rotary, lambda c: {"rotary_dim": c.positions.dims or c.attention.head_dim}, {"rotary_dim": 64}),
        Setting("activation_function", "feed_forward.activation", Activation, "gelu_new"),
        Setting("layer_norm_epsilon", "norm.eps", float, 1e-5),
        *_dropouts("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    ),
    prefix="transformer.",
    embedding="wte",
    stack="h",
    final_norm="ln_f",
    names=lambda c: (
        {"ln_1": "attention_norm", "mlp.fc_in": "ffn.wi", "mlp.fc_out": "ffn.wo"}
        | attention_names("attn", ("q_proj", "k_proj", "v_proj", "out_proj"))
    ),
    neighbours=True,
    buffers=(".attn.bias", ".attn.masked_bias", ".attn.embed_positions"),
)


# --- Falcon ---


def _read_falcon(theirs: Settings) -> Fields:
    """Returns the order of norms and the heads of keys and values, which the 7B, the 40B and the first ones say differently."""
    new, shared_heads, parallel = (
        setting(theirs, key, bool) for key in ("new_decoder_architecture", "multi_query", "parallel_attn")
    )
    heads, norms = setting(theirs, "num_attention_heads", int), setting(theirs, "num_ln_in_parallel_attn", int, None)
    given = setting(theirs, "num_kv_heads", int, heads)
    kv_heads = given if new else 1 if shared_heads else heads
    if not new and not shared_heads and given != heads:
        raise InterchangeError(f"config.json: num_kv_heads={given}: without multi_query only num_attention_heads={heads}")
    if kv_heads < 1 or heads % kv_heads:
        raise InterchangeError(f"config.json: num_attention_heads={heads} is no multiple of num_kv_heads={kv_heads}")
    if norms is not None and (new or parallel) and norms not in ((1, 2) if new else (1,)):
        known = "1 or 2" if new else "1 without new_decoder_architecture"
        raise InterchangeError(f"config.json: num_ln_in_parallel_attn={norms} is not supported, only {known}")
    if new and not parallel:
        raise InterchangeError("config.json: parallel_attn=false is not supported with new_decoder_architecture, only true")
    order = "parallel_two" if new and norms != 1 else "parallel" if parallel else "pre"
    return {"norm.order": order, "attention.kv_heads": 0 if kv_heads == heads else kv_heads}


def _write_falcon(c: GptConfig) -> dict[str, Any]:
    kv_heads, heads, order = c.attention.groups, c.attention.heads, c.norm.order
    if order not in ("parallel", "parallel_two", "pre") or (order == "pre" and kv_heads not in (1, heads)):
        raise InterchangeError(
            f"no Falcon of Hugging Face is like this model: norm.order={order!r} with attention.kv_heads={kv_heads}, only "
            "'parallel' and 'parallel_two', or 'pre' with 1 or as many as heads"
        )
    new = order == "parallel_two" or (order == "parallel" and kv_heads not in (1, heads))
    return {
        "new_decoder_architecture": new,
        "num_kv_heads": kv_heads if new else heads,
        "num_ln_in_parallel_attn": (2 if order == "parallel_two" else 1) if new else None,
        "multi_query": kv_heads == 1,
        "parallel_attn": order != "pre",
    }


def _falcon_norms(c: GptConfig) -> Names:
    if c.norm.order == "parallel_two":
        return {"ln_attn": "attention_norm", "ln_mlp": "ffn_norm"}
    return _TWO_NORMS if c.norm.order == "pre" else {"input_layernorm": "attention_norm"}


_FALCON = OwnNames(
    config=GptConfig,
    name="Falcon",
    architectures=("FalconForCausalLM", "FalconModel"),
    fields=without(_FIELDS, "attention.groups", "attention.biases", "feed_forward.bias")
    | {"positions.class": lambda c: "Rotary"},
    initial={"dialect": "falcon"},
    rows=(
        *shared(tied=True),
        must_be("alibi", False),  # whose slopes and distances Falcon multiplies in bfloat16
        Setting("num_hidden_layers", "layers", int),
        Setting("hidden_size", "model_dim", int),
        Row(
            lambda theirs: {
                "feed_forward.hidden_dim": setting(theirs, "ffn_hidden_size", int, 4 * setting(theirs, "hidden_size", int))
            },
            lambda c: {"ffn_hidden_size": c.feed_forward.hidden_dim},
        ),
        head_count("num_attention_heads", "hidden_size"),
        Row(_read_falcon, _write_falcon, dict(new_decoder_architecture=False, multi_query=True, parallel_attn=True)),
        Setting("activation", "feed_forward.activation", Activation, "gelu"),
        Setting("layer_norm_epsilon", "norm.eps", float, 1e-5),
        _biases("bias", default=False),
        *_dropouts("hidden_dropout", "attention_dropout"),
        base.rotary_row()("Falcon"),
    ),
    other_defaults=dict(max_position_embeddings=2048),
    prefix="transformer.",
    embedding="word_embeddings",
    stack="h",
    final_norm="ln_f",
    names=lambda c: {**_falcon_norms(c), **_fused("self_attention")},
    groups=lambda c: c.attention.groups,
    buffers=(".rotary_emb.inv_freq", ".self_attention.rotary.inv_freq"),
)


# --- BLOOM ---

# Names of the first release, and those of all models in `transformers`.
_BLOOM_ALSO = {"n_embed": "hidden_size", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}


class _Bloom(OwnNames):
    """BLOOM, of which some settings have two names."""

    def read(self, theirs: Settings) -> GptConfig:
        return super().read({_BLOOM_ALSO.get(key, key): value for key, value in theirs.items()})


_BLOOM = _Bloom(
    config=GptConfig,
    name="BLOOM",
    architectures=("BloomForCausalLM", "BloomModel"),
    fields=_FIELDS
    | {
        **under("norm", order="pre", embedding=True),
        "positions.class": lambda c: "Alibi",
        **under("feed_forward", activation="gelu_tanh", hidden_dim=lambda c: 4 * c.model_dim),
    },
    initial={"dialect": "bloom"},
    rows=(
        *shared(tied=True),
        must_be("apply_residual_connection_post_layernorm", False),
        Setting("n_layer", "layers", int),
        Setting("hidden_size", "model_dim", int),
        Row(lambda theirs: {"feed_forward.hidden_dim": 4 * setting(theirs, "hidden_size", int), "positions": Alibi()}),
        head_count("n_head", "hidden_size"),
        Setting("layer_norm_epsilon", "norm.eps", float, 1e-5),
        *_dropouts("hidden_dropout", "attention_dropout"),
    ),
    prefix="transformer.",
    embedding="word_embeddings",
    embedding_norm="word_embeddings_layernorm",
    stack="h",
    final_norm="ln_f",
    names=lambda c: {**_TWO_NORMS, **_fused("self_attention")},
    groups=lambda c: c.attention.heads,
)

CLASSICS: dict[str, OwnNames] = {"gpt_neox": _NEOX, "opt": _OPT, "gptj": _GPTJ, "falcon": _FALCON, "bloom": _BLOOM}
