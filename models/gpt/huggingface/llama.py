"""Decoders of LLaMA's shape in Hugging Face's files (models/gpt/huggingface/dialects.py has the classes). No JAX."""

import functools
from collections.abc import Mapping
from typing import Any

from models.gpt.config import GptConfig
from models.gpt.huggingface import dialects, experts, mixtures, rope
from models.gpt.huggingface.dialects import DEFAULTS, NULLABLE, PLAIN, Dialect, Fields
from models.interchange import (
    Entry,
    InterchangeError,
    Shape,
    completed,
    demand,
    matrix,
    only,
    read_activation,
    setting,
    table,
    vector,
    write_activation,
)
from models.parts.attention.config import Rotary

__all__ = ["ARCHITECTURES", "BODY", "PREFIX", "TABLE", "entries", "fitting", "read", "write"]

PREFIX = "model."  # of all tensors but the output matrix, in files that have one
BODY = ("embed_tokens.", "layers.", "norm.")
TABLE = "model.embed_tokens.weight"
_DROPOUT = ("attention_dropout", "resid_pdrop", "embd_pdrop")
DIALECTS = dialects.DIALECTS | mixtures.MIXTURES
ARCHITECTURES = dialects.ARCHITECTURES | dialects.classes(mixtures.MIXTURES)
_ORIGINAL = "original_max_position_embeddings"  # beside the settings of rotary positions, in Phi's files


def read(theirs: Mapping[str, Any]) -> GptConfig:
    """Returns the configuration of a model of one of these classes.

    Raises:
      InterchangeError: a setting is missing, or our model does not support it.
    """
    only(theirs, pretraining_tp=(1,), use_bidirectional_attention=(False,))
    dialect = DIALECTS[theirs["model_type"]]
    theirs = completed(_under_one_name(theirs, dialect.same), DEFAULTS | dialect.defaults, NULLABLE + dialect.nullable)
    width, heads = setting(theirs, "hidden_size", int), setting(theirs, "num_attention_heads", int)
    kv_heads = setting(theirs, "num_key_value_heads", int, heads)
    if heads % kv_heads:
        raise InterchangeError(f"config.json: num_attention_heads={heads} is no multiple of num_key_value_heads={kv_heads}")
    head_dim = setting(theirs, "head_dim", int, width // heads)
    layers, (qkv, out, inner) = setting(theirs, "num_hidden_layers", int), _read_biases(theirs, dialect)
    fields: Fields = dict(
        vocab=setting(theirs, "vocab_size", int),
        layers=layers,
        model_dim=width,
        hidden_dim=setting(theirs, "intermediate_size", int),
        heads=heads,
        head_dim=head_dim,
        kv_heads=0 if kv_heads == heads else kv_heads,
        positions="rotary",
        norm_eps=setting(theirs, "rms_norm_eps", float),
        activation=read_activation(setting(theirs, _activation(dialect), str)),
        gated=True,
        attention_bias=qkv,
        output_bias="same" if out == qkv else ("yes" if out else "no"),
        ffn_bias=inner,
        tied=setting(theirs, "tie_word_embeddings", bool),
        dropout=max(setting(theirs, name, float, 0.0) for name in _DROPOUT),
        dialect=theirs["model_type"],
    )
    fields |= dialect.shape | dialect.read(theirs, layers)
    if "rotary_base" not in fields:
        longest = setting(theirs, "max_position_embeddings", int)
        first = theirs.get(_ORIGINAL) if _ORIGINAL in dialect.defaults else None
        base, rotary = rope.read(theirs, head_dim, theta=dialect.theta, longest=longest, original=first, **dialect.rope)
        fields |= dict(rotary_base=base, rotary=rotary)
    return GptConfig(**fields)


def _under_one_name(theirs: Mapping[str, Any], same: tuple[str, ...]) -> dict[str, Any]:
    """Returns a config.json that has the first of several names of one setting."""
    given = {key: theirs[key] for key in same if key in theirs}
    if len(set(map(str, given.values()))) > 1:
        raise InterchangeError(f"config.json: {' and '.join(given)} are not the same: {list(given.values())}"[:200])
    return {key: value for key, value in theirs.items() if key not in given} | dict(zip(same[:1], given.values(), strict=False))


def _read_biases(theirs: Mapping[str, Any], dialect: Dialect) -> list[bool]:
    keys = ("attention_bias", "attention_bias", "mlp_bias")
    return [setting(theirs, key, bool) if b is None else b for b, key in zip(dialect.biases, keys, strict=True)]


def _activation(dialect: Dialect) -> str:
    return "hidden_activation" if "hidden_activation" in dialect.defaults else "hidden_act"


def fitting(c: GptConfig) -> str:
    """Returns the first class that a model can be written as, or else LLaMA's, which it is nearest to."""
    for kind in DIALECTS:
        try:
            write(c, kind)
        except InterchangeError:
            continue
        return kind
    return "llama"


def write(c: GptConfig, kind: str) -> dict[str, Any]:
    """Returns the settings of a model of this class in config.json, those of all decoders left out.

    Raises:
      InterchangeError: it is no such model; the message names the fields that differ.
    """
    dialect = DIALECTS[kind]
    wanted = {name: value for name, value in (PLAIN | dialect.shape).items() if name not in dialect.free}
    out = c.attention_bias if c.output_bias == "same" else c.output_bias == "yes"
    for field, has, bias in zip(
        ("attention_bias", "output_bias", "ffn_bias"), (c.attention_bias, out, c.ffn_bias), dialect.biases, strict=True
    ):
        if has != (bias if bias is not None else c.attention_bias if field == "output_bias" else has):
            raise InterchangeError(f"Hugging Face's {dialect.name} has no such biases: {field}={getattr(c, field)!r}")
    demand(c, dialect.name, **wanted)
    rotary = c.rotary or Rotary()
    types = dialect.rope.get("types", rope.TYPES).values()
    if (rotary.dims and not dialect.rope.get("partial")) or rotary.scaling not in ("none", *types):
        raise InterchangeError(f"Hugging Face's {dialect.name} has no such rotary positions: {rotary}"[:200])
    if c.model_dim % c.heads:
        raise InterchangeError(f"Hugging Face's models need model_dim={c.model_dim} to be a multiple of heads={c.heads}")
    biases = {"attention_bias": c.attention_bias, "mlp_bias": c.ffn_bias}
    return {
        "num_hidden_layers": c.layers,
        "hidden_size": c.model_dim,
        "intermediate_size": c.hidden_dim,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.groups,
        "head_dim": c.head_dim,
        _activation(dialect): write_activation(c.activation),
        "rms_norm_eps": c.norm_eps,
        **{key: biases[key] for key, bias in zip(biases, dialect.biases[1:], strict=True) if bias is None},
        "attention_dropout": c.dropout,
        **rope.write(c.rotary_base, c.rotary, c.head_dim),
        **({_ORIGINAL: rotary.original} if _ORIGINAL in dialect.defaults and rotary.original else {}),
        **dialect.write(c),
    }


def entries(c: GptConfig, kind: str) -> list[Entry]:
    """Returns the entries of all tensors but the output matrix."""
    layers = _layers(c, kind, "decoder.", layers=c.layers) if c.moe is None else []
    if c.leading_layers:
        layers += _layers(c, kind, "leading.", layers=c.leading_layers)
    for i, name in enumerate(c.layer_group if c.moe else ()):
        places = dict(layers=c.layer_groups, first=c.leading_layers + i, every=len(c.layer_group))
        layers += _layers(c, kind, f"decoder.{name}.", sparse=name == "sparse", **places)
    norm = vector("model.norm.weight", ("final_norm.scale", (c.model_dim,)))
    return [table(TABLE, "embedding.table", (c.vocab, c.model_dim)), *layers, norm]


def _layers(c: GptConfig, kind: str, ours: str, *, sparse: bool = False, **places: Any) -> list[Entry]:
    """Returns the entries of layers of one kind, which are called `ours` here."""
    m, h = c.model_dim, c.hidden_dim
    at = "model.layers.{layer}."
    normed = [vector(f"{at}{theirs}.weight", (f"{ours}{name}.scale", (m,)), **places) for theirs, name in _NORMS[c.order].items()]
    attention = _attention(c, kind, at, ours, **places)
    if c.latent is not None:
        attention = _latent_attention(c, at, ours, **places)
    if sparse:
        return [*normed, *attention, *experts.entries(c, kind, at, ours, **places)]
    dense = functools.partial(_dense, at, ours, bias=c.ffn_bias, **places)
    gate, up = ("ffn.wg", (m, h)), ("ffn.wi", (m, h))
    if DIALECTS[kind].fused:
        hidden = dense("mlp.gate_up_proj", gate, up)
    else:
        hidden = [*dense("mlp.gate_proj", gate), *dense("mlp.up_proj", up)]
    return [*normed, *attention, *hidden, *dense("mlp.down_proj", ("ffn.wo", (h, m)))]


def _attention(c: GptConfig, kind: str, at: str, ours: str, **places: Any) -> list[Entry]:
    m, n, g, d = c.model_dim, c.heads, c.groups, c.head_dim
    dense = functools.partial(_dense, at, ours, **places)
    q, k, v = ("attention.q", (m, n, d)), ("attention.k", (m, g, d)), ("attention.v", (m, g, d))
    out = c.attention_bias if c.output_bias == "same" else c.output_bias == "yes"
    if DIALECTS[kind].fused:
        inputs = dense("self_attn.qkv_proj", q, k, v, bias=c.attention_bias)
    else:
        inputs = [
            entry
            for p, name in ((q, "q"), (k, "k"), (v, "v"))
            for entry in dense(f"self_attn.{name}_proj", p, bias=c.attention_bias)
        ]
    further: list[Entry] = []
    if c.qk_norm:
        sizes = (n * d, g * d) if c.qk_norm_over == "all" else (d, d)
        further = [
            vector(f"{at}self_attn.{x}_norm.weight", (f"{ours}attention.{x}_norm.scale", (size,)), **places)
            for x, size in zip("qk", sizes, strict=True)
        ]
    if c.sinks:
        further.append(vector(f"{at}self_attn.sinks", (f"{ours}attention.sinks", (n,)), **places))
    return [*inputs, *dense("self_attn.o_proj", ("attention.o", (n, d, m)), bias=out, inputs=2), *further]


def _latent_attention(c: GptConfig, at: str, ours: str, **places: Any) -> list[Entry]:
    """Returns the entries of latent attention in layers named `at`."""
    assert c.latent is not None
    m, n, latent = c.model_dim, c.heads, c.latent
    head, rank = latent.head_dim + c.head_dim, latent.query_rank

    def weight(theirs: str, name: str, shape: Shape, inputs: int = 1) -> Entry:
        return matrix(f"{at}self_attn.{theirs}.weight", (f"{ours}attention.{name}", shape), inputs=inputs, **places)

    def scale(theirs: str, name: str, size: int) -> Entry:
        return vector(f"{at}self_attn.{theirs}.weight", (f"{ours}attention.{name}.scale", (size,)), **places)

    queries = [weight("q_proj", "q", (m, n, head))]
    if rank:
        queries = [
            weight("q_a_proj", "q_down", (m, rank)),
            scale("q_a_layernorm", "q_norm", rank),
            weight("q_b_proj", "q", (rank, n, head)),
        ]
    return [
        *queries,
        weight("kv_a_proj_with_mqa", "kv_down", (m, latent.rank + c.head_dim)),
        scale("kv_a_layernorm", "kv_norm", latent.rank),
        weight("kv_b_proj", "kv", (latent.rank, n, latent.head_dim + latent.value_dim)),
        weight("o_proj", "o", (n, latent.value_dim, m), inputs=2),
    ]


def _dense(
    at: str, ours: str, theirs: str, *parts: tuple[str, tuple[int, ...]], bias: bool, inputs: int = 1, **places: Any
) -> list[Entry]:
    placed = [(f"{ours}{name}", shape) for name, shape in parts]
    biases = [(f"{ours}{name}_bias", shape[inputs:]) for name, shape in parts]
    weight = matrix(f"{at}{theirs}.weight", *placed, inputs=inputs, **places)
    return [weight, *([vector(f"{at}{theirs}.bias", *biases, **places)] if bias else [])]


# Their names of a layer's norms, by its order: "post_attention_layernorm" stands before the feed-forward network in some.
_NORMS = {
    "pre": {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"},
    "sandwich": {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "attention_out_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "ffn_out_norm",
    },
    "reordered": {"post_attention_layernorm": "attention_norm", "post_feedforward_layernorm": "ffn_norm"},
}


def is_further_layer(c: GptConfig, theirs: str) -> bool:
    """Returns whether a tensor is of a layer behind the last, which predicts a second token."""
    number = theirs.removeprefix("model.layers.").partition(".")[0]
    return c.latent is not None and number.isdigit() and int(number) >= c.layers
