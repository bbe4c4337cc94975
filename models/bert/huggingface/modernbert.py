"""ModernBERT (arXiv 2412.13663): norms before sub-layers, gated feed-forward networks, and rotary positions, of which most layers
see near ones alone.

Version 4 of `transformers` writes two bases and how often a layer sees everything, version 5 `rope_parameters` and `layer_types`,
by name and layer by layer; either may lack in a file, and the second counts where both are there.
"""

from typing import Any

from models.bert.config import BertConfig
from models.bert.huggingface import common
from models.bert.huggingface.common import classes, transform
from models.errors import nearest, shortened
from models.interchange import Entry, InterchangeError
from models.interchange.layers import Names, layers
from models.interchange.rows import (
    Activation,
    ModelType,
    Row,
    Setting,
    allowed,
    also,
    constant,
    head_count,
    must_be,
    write_activation,
)
from models.interchange.settings import MULTI_HEAD, Fields, Settings, only, setting, under, without
from models.interchange.tensors import norm, table
from models.parts.attention.config import LayerVariant, Rotary
from models.parts.heads_config import Classification, Head, MaskedLm, SentenceEmbedding, Span, Tagging
from models.parts.numbers import check_base

_PREFIX = "model."
_FULL, _LOCAL = "full_attention", "sliding_attention"
_LAYER: Names = {
    "attn_norm": "attention_norm",
    "attn.Wqkv": ("attention.q", "attention.k", "attention.v"),
    "attn.Wo": "attention.o",
    "mlp_norm": "ffn_norm",
    "mlp.Wi": ("ffn.wg", "ffn.wi"),
    "mlp.Wo": "ffn.wo",
}
_FIRST: Names = {theirs: ours for theirs, ours in _LAYER.items() if theirs != "attn_norm"}


# --- heads ---


def _heads(pooling: str) -> dict[str, Head]:
    """Returns the heads, all of which have the transform of that for masked tokens."""
    classification = Classification(labels=2, transform=True, pooling="mean" if pooling == "mean" else "cls")
    return common.HEADS | {
        "ForSequenceClassification": classification,
        "ForTokenClassification": Tagging(labels=2, transform=True),
        "ForQuestionAnswering": Span(transform=True),
    }


def _read_head(theirs: Settings) -> Fields:
    pooling = setting(theirs, "classifier_pooling", str)
    only({"classifier_pooling": pooling}, classifier_pooling=("cls", "mean"))
    head = common.read_head(theirs, "ModernBert", _heads(pooling))
    if not isinstance(head, SentenceEmbedding):  # whose transform is made of what the layers are
        activation, bias = setting(theirs, "hidden_activation", str), setting(theirs, "mlp_bias", bool)
        must_be("classifier_activation", activation).read(theirs)
        must_be("classifier_bias", bias).read(theirs)
    return {"head": head}


def _write_classifier(c: BertConfig) -> dict[str, Any]:
    return {
        "classifier_pooling": getattr(c.head, "pooling", "cls"),
        "classifier_bias": c.feed_forward.bias,
        "classifier_activation": write_activation(c.feed_forward.activation),
    }


def _write_head(c: BertConfig) -> dict[str, Any]:
    return common.write_head(c, "ModernBERT", "ModernBert", _heads(getattr(c.head, "pooling", "cls")))


# --- layers ---


def _read_layers(theirs: Settings) -> Fields:
    bases = _bases(theirs)
    return {"positions.base": bases[_FULL], "attention.pattern": _kinds(theirs, bases)}


def _bases(s: Settings) -> dict[str, float]:
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


def _kinds(s: Settings, bases: dict[str, float]) -> tuple[LayerVariant, ...]:
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
    kinds = {_FULL: LayerVariant(), _LOCAL: LayerVariant(window=reach + 1, base=bases[_LOCAL])}
    for name in types:
        if name not in kinds:
            raise InterchangeError(f"config.json: no layer_types {shortened(str(name))!r} here{nearest(str(name), kinds)}")
    periods = (n for n in range(1, layers + 1) if all(types[i] == types[i - n] for i in range(n, layers)))
    period = next(periods, 1)
    return tuple(kinds[name] for name in types[:period])


def _write_layers(c: BertConfig) -> dict[str, Any]:
    local = next((kind for kind in c.attention.pattern if kind.window), LayerVariant(window=65))
    kinds = (LayerVariant(), local) if c.attention.pattern else (LayerVariant(),)
    if wrong := [kind for kind in c.attention.pattern if kind not in kinds or not kind.rotary or kind.window == 1]:
        raise InterchangeError(f"no ModernBERT of Hugging Face is like this model: its layers are of two kinds, not {wrong[0]}")
    pattern = [_LOCAL if kind.window else _FULL for kind in c.attention.pattern] or [_FULL]
    assert isinstance(c.positions, Rotary)  # as the table demands
    bases = {_FULL: c.positions.base, _LOCAL: local.base or c.positions.base}
    return {
        "layer_types": [pattern[i % len(pattern)] for i in range(c.layers)],
        "local_attention": 2 * (local.window - 1),
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        "global_rope_theta": bases[_FULL],
        "local_rope_theta": bases[_LOCAL],
    }


def _write_every(c: BertConfig) -> dict[str, Any]:
    """Returns what version 4 has in place of `layer_types`, where it can say them."""
    types = _write_layers(c)["layer_types"]
    every = next((n for n in range(1, len(types) + 1) if types == [_LOCAL if i % n else _FULL for i in range(len(types))]), 0)
    return {"global_attn_every_n_layers": every} if every else {}


def _read_head_dim(theirs: Settings) -> Fields:
    size = setting(theirs, "hidden_size", int) // setting(theirs, "num_attention_heads", int)
    only(theirs, head_dim=(size,))
    return {}


def _all_or_none(biases: str) -> bool:
    if biases not in ("", "qkvo"):
        raise InterchangeError(f"no ModernBERT of Hugging Face is like this model: attention.biases={biases!r}")
    return bool(biases)


_OF_ROWS = ("norm.bias", "attention.biases", "feed_forward.bias", "attention.pattern")
_MODERNBERT = ModelType(
    config=BertConfig,
    name="ModernBERT",
    fields=without(MULTI_HEAD, *_OF_ROWS)
    | {
        "positions.class": lambda c: "Rotary",
        **under("positions", dims=0, scaling=None),
        "norm.order": "pre",
        "bare_first": True,
        "embedding_scale": 1.0,
        "feed_forward.gated": True,
        **under("embedding", norm=True, types=0, size=0, distinct=0),
    },
    initial={"positions": Rotary},
    rows=(
        Setting("vocab_size", "vocab", int, 50_368),
        Setting("num_hidden_layers", "layers", int, 22),
        Setting("hidden_size", "model_dim", int, 768),
        Setting("intermediate_size", "feed_forward.hidden_dim", int, 1152),
        head_count("num_attention_heads", "hidden_size", 12),
        constant("pad_token_id", None),  # the default would be that of the first release
        Setting("hidden_activation", "feed_forward.activation", Activation, "gelu"),
        Setting("norm_eps", "norm.eps", float, 1e-5),
        Setting("norm_bias", "norm.bias", bool, False),
        Setting("attention_bias", "attention.biases", bool, False, lambda on: "qkvo" if on else "", _all_or_none),
        Setting("mlp_bias", "feed_forward.bias", bool, False),
        Setting("decoder_bias", "output.bias", bool, True),
        Row(
            write=_write_classifier,
            absent={"classifier_pooling": "cls", "classifier_bias": False, "classifier_activation": "gelu"},
        ),
        Row(
            _read_layers,
            _write_layers,
            {
                "layer_types": None,
                "rope_parameters": None,
                "local_attention": 128,
                "global_attn_every_n_layers": 3,
                "global_rope_theta": 160_000.0,
                "local_rope_theta": 10_000.0,
            },
        ),
        # Dropout is that of attention, which in `transformers` its outputs have too, and apart from it that of hidden layers.
        also("embedding_dropout", "dropout"),
        Setting("attention_dropout", "dropout", float, 0.0),
        Setting("mlp_dropout", "feed_forward.dropout", float, 0.0),
        Row(write=_write_every),
        Row(_read_head_dim),
        allowed("rope_scaling", {}),
        allowed("partial_rotary_factor", 1, 1.0),
        Row(_read_head, _write_head, {"tie_word_embeddings": True}),
    ),
)


def _encoder(c: BertConfig) -> list[Entry]:
    at = f"{_PREFIX}layers.{{layer}}."
    return [
        table(f"{_PREFIX}embeddings.tok_embeddings.weight", "embedding.table", (c.vocab, c.model_dim)),
        *norm(f"{_PREFIX}embeddings.norm", "embedding_norm", c.model_dim, bias=c.norm.bias),
        *layers(c, "first", at, _FIRST, layers=1),
        *layers(c, "encoder", at, _LAYER, layers=c.layers - 1, first=1),
        *norm(f"{_PREFIX}final_norm", "final_norm", c.model_dim, bias=c.norm.bias),
    ]


def _outputs(c: BertConfig) -> list[Entry]:
    match c.head:
        case MaskedLm():
            return [*transform(c, "head.dense", "head.norm"), *common.logit_bias(c, "decoder.bias")]
        case SentenceEmbedding():
            return []
        case _:
            return [*transform(c, "head.dense", "head.norm"), *classes(c, "classifier")]


FILES = common.EncoderFiles(
    model_types={"modernbert": _MODERNBERT},
    prefix=_PREFIX,
    body=("embeddings.", "layers.", "final_norm."),
    heads=("head.", "decoder.", "classifier."),
    encoder=_encoder,
    outputs=_outputs,
    copies={"decoder.weight": f"{_PREFIX}embeddings.tok_embeddings.weight"},
)
