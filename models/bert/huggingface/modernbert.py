"""ModernBERT (arXiv 2412.13663): norms before sub-layers, gated feed-forward networks, and rotary positions, of which most layers
see near ones alone.

Version 4 of `transformers` writes two bases and how often a layer sees everything, version 5 `rope_parameters` and `layer_types`,
by name and layer by layer; either may lack in a file, and the second counts where both are there.
"""

from collections.abc import Mapping
from typing import Any

from models.bert.config import BertConfig
from models.bert.huggingface import common
from models.bert.huggingface.common import classes, head_dim, transform
from models.errors import nearest, shortened
from models.interchange import (
    Entry,
    InterchangeError,
    completed,
    demand,
    dense,
    matrix,
    norm,
    only,
    read_activation,
    setting,
    table,
    vector,
    write_activation,
)
from models.parts.attention.config import LayerVariant
from models.parts.heads_config import Classification, Head, MaskedLm, SentenceEmbedding, Span, Tagging
from models.parts.numbers import check_base

STEMS = {"modernbert": "ModernBert"}
PREFIX = "model."
BODY = ("embeddings.", "layers.", "final_norm.")
OUTPUTS = ("head.", "decoder.", "classifier.")
DEFAULTS = {
    "modernbert": dict(
        vocab_size=50_368,
        hidden_size=768,
        intermediate_size=1152,
        num_hidden_layers=22,
        num_attention_heads=12,
        hidden_activation="gelu",
        norm_eps=1e-5,
        norm_bias=False,
        attention_bias=False,
        attention_dropout=0.0,
        layer_types=None,
        rope_parameters=None,
        local_attention=128,
        mlp_bias=False,
        mlp_dropout=0.0,
        decoder_bias=True,
        classifier_pooling="cls",
        classifier_bias=False,
        classifier_activation="gelu",
        tie_word_embeddings=True,
        global_attn_every_n_layers=3,
        global_rope_theta=160_000.0,
        local_rope_theta=10_000.0,
    )
}
_FULL, _LOCAL = "full_attention", "sliding_attention"


def heads(pooling: str = "cls") -> dict[str, Head]:
    """Returns the heads, all of which have the transform of that for masked tokens."""
    classification = Classification(labels=2, transform=True, pooling="mean" if pooling == "mean" else "cls")
    return common.HEADS | {
        "ForSequenceClassification": classification,
        "ForTokenClassification": Tagging(labels=2, transform=True),
        "ForQuestionAnswering": Span(transform=True),
    }


def read(theirs: Mapping[str, Any]) -> BertConfig:
    """Returns the configuration of a ModernBERT. Dropout is that of attention, which in `transformers` its outputs have too, and
    apart from it that of hidden layers."""
    s = completed(theirs, DEFAULTS["modernbert"])
    only({"classifier_pooling": (pooling := setting(s, "classifier_pooling", str))}, classifier_pooling=("cls", "mean"))
    size = head_dim(s, "hidden_size", "num_attention_heads")
    only(theirs, head_dim=(size,), rope_scaling=({},), partial_rotary_factor=(1, 1.0))
    head = common.read_head(s, STEMS["modernbert"], heads(pooling))
    activation, bias = setting(s, "hidden_activation", str), setting(s, "mlp_bias", bool)
    if not isinstance(head, SentenceEmbedding):  # whose transform is made of what the layers are
        common.fixed(s, classifier_activation=activation, classifier_bias=bias)
    bases = _bases(s)
    return BertConfig(
        vocab=setting(s, "vocab_size", int),
        layers=setting(s, "num_hidden_layers", int),
        model_dim=setting(s, "hidden_size", int),
        hidden_dim=setting(s, "intermediate_size", int),
        heads=setting(s, "num_attention_heads", int),
        head_dim=size,
        positions="rotary",
        max_positions=0,
        rotary_base=bases[_FULL],
        kinds=_kinds(s, bases),
        types=0,
        order="pre",
        bare_first=True,
        norm_bias=setting(s, "norm_bias", bool),
        norm_eps=setting(s, "norm_eps", float),
        activation=read_activation(activation),
        gated=True,
        attention_bias=setting(s, "attention_bias", bool),
        ffn_bias=bias,
        softmax_bias=setting(s, "decoder_bias", bool),
        dropout=setting(s, "attention_dropout", float),
        hidden_dropout=setting(s, "mlp_dropout", float),
        head=head,
    )


def _bases(s: Mapping[str, Any]) -> dict[str, float]:
    """Returns the base of rotary positions by the kind of a layer."""
    given = setting(s, "rope_parameters", dict, None) or {}
    if unknown := sorted(given.keys() - {_FULL, _LOCAL}):
        raise InterchangeError(f"config.json: rope_parameters of {unknown[0]!r}: only of {_FULL} and {_LOCAL}")
    bases = {}
    for kind, old in ((_FULL, "global_rope_theta"), (_LOCAL, "local_rope_theta")):
        rope = {"rope_theta": setting(s, old, float)} | setting(given, kind, dict, {})
        only(rope, rope_type=("default",), type=("default",), partial_rotary_factor=(1, 1.0))
        bases[kind] = setting(rope, "rope_theta", float)
        check_base(bases[kind], f"{kind}: rope_theta")
    return bases


def _kinds(s: Mapping[str, Any], bases: Mapping[str, float]) -> tuple[LayerVariant, ...]:
    """Returns the kinds of layers: the shortest pattern that they follow."""
    layers, every = setting(s, "num_hidden_layers", int), setting(s, "global_attn_every_n_layers", int)
    if every < 1:
        raise InterchangeError(f"config.json: global_attn_every_n_layers={every}: must be 1 or more")
    types = setting(s, "layer_types", list, None)
    if types is None:
        types = [_LOCAL if i % every else _FULL for i in range(layers)]
    if len(types) != layers:
        raise InterchangeError(f"config.json: layer_types are {len(types)}, of num_hidden_layers={layers}")
    reach = setting(s, "local_attention", int) // 2  # on either side
    if reach < 1:
        raise InterchangeError(f"config.json: local_attention={setting(s, 'local_attention', int)}: must be 2 or more")
    made = {_FULL: LayerVariant(), _LOCAL: LayerVariant(window=reach + 1, base=bases[_LOCAL])}
    for name in types:
        if name not in made:
            raise InterchangeError(f"config.json: no layer_types {shortened(str(name))!r} here{nearest(str(name), made)}")
    periods = (n for n in range(1, layers + 1) if all(types[i] == types[i - n] for i in range(n, layers)))
    period = next(periods, 1)
    return tuple(made[name] for name in types[:period])


def write(c: BertConfig) -> dict[str, Any]:
    """Returns the settings of a ModernBERT; raises InterchangeError."""
    demand(
        c,
        "ModernBERT",
        positions="rotary",
        rotary=None,
        norm="layer",
        order="pre",
        bare_first=True,
        embedding_norm=True,
        gated=True,
        output_bias="same",
        key_bias=True,
        qk_norm=False,
        latent=None,
        sinks=False,
        attention_scale=True,
        attention_scalar=0.0,
        groups=c.heads,
        head_dim=c.model_dim // c.heads,
        per_dim_scale=False,
        logit_cap=0.0,
        embedding_scale=1.0,
        types=0,
    )
    if isinstance(c.head, MaskedLm):
        demand(c, "ModernBERT for masked tokens", tied=True, softmax_cap=0.0)
    local = next((kind for kind in c.kinds if kind.window), LayerVariant(window=65))
    kinds = (LayerVariant(), local) if c.kinds else (LayerVariant(),)
    if wrong := [kind for kind in c.kinds if kind not in kinds or not kind.rotary or kind.window == 1]:
        raise InterchangeError(f"no ModernBERT of Hugging Face is like this model: its layers are of two kinds, not {wrong[0]}")
    pattern = [_LOCAL if kind.window else _FULL for kind in c.kinds] or [_FULL]
    types = [pattern[i % len(pattern)] for i in range(c.layers)]
    bases = {_FULL: c.rotary_base, _LOCAL: local.base or c.rotary_base}
    pooling = getattr(c.head, "pooling", "cls")
    return (
        {
            "model_type": "modernbert",
            "vocab_size": c.vocab,
            "num_hidden_layers": c.layers,
            "hidden_size": c.model_dim,
            "intermediate_size": c.hidden_dim,
            "num_attention_heads": c.heads,
            "pad_token_id": None,  # the default would be that of the first release
            "hidden_activation": write_activation(c.activation),
            "norm_eps": c.norm_eps,
            "norm_bias": c.norm_bias,
            "attention_bias": c.attention_bias,
            "mlp_bias": c.ffn_bias,
            "decoder_bias": c.softmax_bias,
            "classifier_pooling": pooling,
            "classifier_bias": c.ffn_bias,
            "classifier_activation": write_activation(c.activation),
            "layer_types": types,
            "local_attention": 2 * (local.window - 1),
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
            "global_rope_theta": bases[_FULL],
            "local_rope_theta": bases[_LOCAL],
            "embedding_dropout": c.dropout,
            "attention_dropout": c.dropout,
            "mlp_dropout": c.hidden_dropout,
        }
        | _every(types)
        | common.write_head(c, "ModernBERT", STEMS["modernbert"], heads(pooling))
    )


def _every(types: list[str]) -> dict[str, int]:
    """Returns what version 4 has in place of `layer_types`, where it can say them."""
    every = next((n for n in range(1, len(types) + 1) if types == [_LOCAL if i % n else _FULL for i in range(len(types))]), 0)
    return {"global_attn_every_n_layers": every} if every else {}


def encoder(c: BertConfig) -> list[Entry]:
    """Returns the entries of the tensors outside the head."""
    return [
        table(f"{PREFIX}embeddings.tok_embeddings.weight", "embedding.table", (c.vocab, c.model_dim)),
        *_norm(c, f"{PREFIX}embeddings.norm", "embedding_norm"),
        *_layers(c, "first", layers=1),
        *_layers(c, "encoder", layers=c.layers - 1, first=1),
        *_norm(c, f"{PREFIX}final_norm", "final_norm"),
    ]


def _norm(c: BertConfig, theirs: str, ours: str, **places: Any) -> list[Entry]:
    scale, bias = norm(theirs, ours, c.model_dim, **places)
    return [scale, bias] if c.norm_bias else [scale]


def _layers(c: BertConfig, stack: str, **places: Any) -> list[Entry]:
    m, h, n, d = c.model_dim, c.hidden_dim, c.heads, c.head_dim
    at = f"{PREFIX}layers.{{layer}}"

    def fused(theirs: str, shape: tuple[int, ...], *ours: str, bias: bool) -> list[Entry]:
        weights = [(f"{stack}.{name}", shape) for name in ours]
        biases = [(f"{stack}.{name}_bias", shape[1:]) for name in ours]
        return [
            matrix(f"{at}.{theirs}.weight", *weights, **places),
            *([vector(f"{at}.{theirs}.bias", *biases, **places)] if bias else []),
        ]

    def out(theirs: str, ours: str, shape: tuple[int, ...], inputs: int, *, bias: bool) -> list[Entry]:
        name = f"{stack}.{ours}"
        return dense(f"{at}.{theirs}", name, shape, inputs, bias=None if bias else "", **places)

    return [
        *(_norm(c, f"{at}.attn_norm", f"{stack}.attention_norm", **places) if stack == "encoder" else []),
        *fused("attn.Wqkv", (m, n, d), "attention.q", "attention.k", "attention.v", bias=c.attention_bias),
        *out("attn.Wo", "attention.o", (n, d, m), 2, bias=c.attention_bias),
        *_norm(c, f"{at}.mlp_norm", f"{stack}.ffn_norm", **places),
        *fused("mlp.Wi", (m, h), "ffn.wg", "ffn.wi", bias=c.ffn_bias),
        *out("mlp.Wo", "ffn.wo", (h, m), 1, bias=c.ffn_bias),
    ]


def bare_pooler(c: BertConfig) -> list[Entry]:
    """Returns the entries of the pooler of a bare model: there is none."""
    del c
    return []


def outputs(c: BertConfig) -> list[Entry]:
    """Returns the entries of the head's tensors."""
    match c.head:
        case MaskedLm():
            return [*transform(c, "head.dense", "head.norm"), *common.logit_bias(c, "decoder.bias")]
        case SentenceEmbedding():
            return []
        case _:
            return [*transform(c, "head.dense", "head.norm"), *classes(c, "classifier")]


def copies() -> dict[str, str]:
    """Returns the tensors that a model for masked tokens may hold besides, and those that they repeat."""
    return {"decoder.weight": f"{PREFIX}embeddings.tok_embeddings.weight"}
