"""T5, mT5 and Switch Transformer in Hugging Face's files. No JAX."""

from collections.abc import Mapping
from typing import Any

from models.errors import shortened
from models.interchange import (
    Entry,
    InterchangeError,
    demand,
    matrix,
    model_type,
    no_head,
    only,
    read_activation,
    setting,
    table,
    vector,
    write_activation,
)
from models.parts.moe.config import MoeConfig
from models.t5.config import T5Config

MODEL_TYPES = ("t5", "mt5", "switch_transformers")
_ARCHITECTURES = {
    "t5": ("T5ForConditionalGeneration",),
    "mt5": ("MT5ForConditionalGeneration",),
    "switch_transformers": ("SwitchTransformersForConditionalGeneration",),
}
_TABLE, _OUTPUT = "shared.weight", "lm_head.weight"
# Old releases have a table in an attention that `transformers` gives none.
_STRAY = ("EncDecAttention.relative_attention_bias.weight",)
_NO_LIMIT = 2**14  # a capacity that no row exceeds: our models drop no token in evaluation
_GROUP = 64  # tokens of a routing group: of our own training, not in their files


def read_config(theirs: Mapping[str, Any]) -> T5Config:
    """Returns the configuration of the model that a config.json describes.

    Raises:
      InterchangeError: a setting is missing, or our model does not support it.
    """
    kind = model_type(theirs, _ARCHITECTURES)
    only(theirs, pad_token_id=(0,), decoder_start_token_id=(0,))
    layers = setting(theirs, "num_layers", int)
    if (decoder := setting(theirs, "num_decoder_layers", int, layers)) != layers:
        raise InterchangeError(f"config.json: num_decoder_layers={decoder}: only as many as num_layers={layers}")
    words = setting(theirs, "feed_forward_proj", str, "gated-gelu" if kind == "mt5" else "relu").split("-")
    if len(words) > 2 or words[:-1] not in ([], ["gated"]):
        raise InterchangeError(f"config.json: feed_forward_proj={'-'.join(words)!r} is not supported")
    gated = len(words) == 2
    rate = setting(theirs, "dropout_rate", float, 0.1)
    # `gated-gelu` means the tanh form.
    activation = read_activation("gelu_new" if gated and words[-1] == "gelu" else words[-1])
    # Version 4 of transformers scales where it ties; 5 notes it apart, and never scales an mT5.
    tied = setting(theirs, "tie_word_embeddings", bool, True)
    scaled = setting(theirs, "scale_decoder_outputs", bool, tied) and kind != "mt5"
    return T5Config(
        vocab=setting(theirs, "vocab_size", int),
        layers=2 * layers,
        model_dim=setting(theirs, "d_model", int),
        hidden_dim=setting(theirs, "d_ff", int),
        heads=setting(theirs, "num_heads", int),
        head_dim=setting(theirs, "d_kv", int),
        buckets=setting(theirs, "relative_attention_num_buckets", int, 32),
        max_distance=setting(theirs, "relative_attention_max_distance", int, 128),
        norm_eps=setting(theirs, "layer_norm_epsilon", float, 1e-6),
        activation=activation,
        gated=gated,
        tied=tied,
        scale_logits=scaled,
        dropout=rate,
        hidden_dropout=rate,
        output_dropout=rate,
        **(_read_mixture(theirs, layers) if kind == "switch_transformers" else {}),
    )


def _read_mixture(theirs: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Returns the mixture's fields: layers 1, 3, 5 and so on have one, or all."""
    counts = [setting(theirs, f"num_sparse_{side}_layers", int, 3) for side in ("encoder", "decoder")]
    every = {layers // count if count else 0 for count in counts}
    if every not in ({1}, {2}):
        raise InterchangeError(
            f"config.json: {counts[0]} and {counts[1]} sparse layers of {layers}: only every layer of both sides, or every second"
        )
    only(theirs, router_bias=(False,), router_dtype=("float32",), feed_forward_proj=("relu",))
    moe = MoeConfig(
        experts=setting(theirs, "num_experts", int, 8),
        gating="top1",
        group_size=_GROUP,
        capacity_factor=1.25,
        input_jitter=setting(theirs, "router_jitter_noise", float, 0.01),
        balance_weight=setting(theirs, "router_aux_loss_coef", float, 0.001),
        z_weight=setting(theirs, "router_z_loss_coef", float, 0.001),
    )
    return {"moe": moe, "sparse_every": every.pop()}


def differences(theirs: Mapping[str, Any]) -> list[str]:
    """Returns in which outputs our model differs from the one that a config.json describes, which can be read."""
    capacity = theirs.get("expert_capacity", 64)
    if theirs["model_type"] != "switch_transformers" or (type(capacity) is int and capacity >= _NO_LIMIT):
        return []
    capacity = shortened(str(capacity), 30)
    return [
        f"expert_capacity={capacity}: in evaluation, `transformers` drops what exceeds {capacity} tokens of a row in an expert; "
        "here nothing is dropped, and longer rows may differ"
    ]


def write_config(c: T5Config) -> dict[str, Any]:
    """Returns the config.json of a model.

    Raises:
      InterchangeError: `transformers` has no class for the model; the message names the fields that differ.
    """
    demand(
        c,
        "T5",
        order="pre",
        norm="rms",
        norm_bias=False,
        positions="relative_shared",
        attention_scale=False,
        attention_bias=False,
        ffn_bias=False,
        per_dim_scale=False,
        logit_cap=0.0,
        groups=c.heads,
        start_id=0,
        **_NEEDS_OF_MIXTURE if c.moe else {},
    )
    kind = "switch_transformers" if c.moe else "t5"
    name = write_activation(c.activation)
    config = {
        "architectures": [_ARCHITECTURES[kind][0]],
        "model_type": kind,
        "is_encoder_decoder": True,
        "vocab_size": c.vocab,
        "d_model": c.model_dim,
        "d_kv": c.head_dim,
        "d_ff": c.hidden_dim,
        "num_layers": c.layers // 2,
        "num_decoder_layers": c.layers // 2,
        "num_heads": c.heads,
        "relative_attention_num_buckets": c.buckets,
        "relative_attention_max_distance": c.max_distance,
        "dropout_rate": c.dropout,
        "layer_norm_epsilon": c.norm_eps,
        "feed_forward_proj": f"gated-{'gelu' if name == 'gelu_new' else name}" if c.gated else name,
        "tie_word_embeddings": c.tied,
        "scale_decoder_outputs": c.scale_logits,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
    if c.scale_logits != c.tied and (c.moe or c.scale_logits):
        raise InterchangeError(f"no T5 of Hugging Face is like this model: scale_logits={c.scale_logits} with tied={c.tied}")
    if c.gated and c.activation == "gelu":
        raise InterchangeError("no T5 of Hugging Face is like this model: 'gated-gelu' means the tanh form there")
    if c.moe is None:
        return config
    demand(c.moe, "Switch Transformer", gating="top1", eval_capacity_factor=0.0)
    return config | {
        "num_experts": c.moe.experts,
        "num_sparse_encoder_layers": c.layer_groups,
        "num_sparse_decoder_layers": c.layer_groups,
        "expert_capacity": _NO_LIMIT,
        "router_bias": False,
        "router_jitter_noise": c.moe.input_jitter,
        "router_aux_loss_coef": c.moe.balance_weight,
        "router_z_loss_coef": c.moe.z_weight,
        "router_dtype": "float32",
    }


_NEEDS_OF_MIXTURE = {"gated": False, "activation": "relu"}


def entries(c: T5Config) -> list[Entry]:
    """Returns the entries of all tensors that `transformers` saves for such a model."""
    m, n = c.model_dim, c.heads
    mapped = [table(_TABLE, "embedding.table", (c.vocab, m))]
    for side in ("encoder", "decoder"):
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        mapped.append(matrix(bias, (f"{side}_bias", (n, c.buckets))))
        for i, name in enumerate(c.layer_group):
            mapped += _layer(c, side, name, i)
        mapped.append(vector(f"{side}.final_layer_norm.weight", (f"{side}_norm.scale", (m,))))
    return mapped if c.tied else [*mapped, matrix(_OUTPUT, ("softmax", (m, c.vocab)))]


def _layer(c: T5Config, side: str, name: str, first: int) -> list[Entry]:
    """Returns the entries of one layer of all units of a stack."""
    m, h, n, d = c.model_dim, c.hidden_dim, c.heads, c.head_dim
    at, ours, ffn = f"{side}.block.{{layer}}.layer", f"{side}.{name}", 2 if side == "decoder" else 1
    places: dict[str, Any] = dict(layers=c.layer_groups, first=first, every=len(c.layer_group))

    def norm(sublayer: int, to: str) -> Entry:
        return vector(f"{at}.{sublayer}.layer_norm.weight", (f"{ours}.{to}.scale", (m,)), **places)

    def attention(theirs: str, to: str) -> list[Entry]:
        projections = [matrix(f"{at}.{theirs}.{p}.weight", (f"{ours}.{to}.{p}", (m, n, d)), **places) for p in ("q", "k", "v")]
        return [*projections, matrix(f"{at}.{theirs}.o.weight", (f"{ours}.{to}.o", (n, d, m)), inputs=2, **places)]

    mapped = [norm(0, "attention_norm"), *attention("0.SelfAttention", "attention")]
    if side == "decoder":
        mapped += [norm(1, "cross_norm"), *attention("1.EncDecAttention", "cross_attention")]
    mapped.append(norm(ffn, "ffn_norm"))
    up = {"wi_0": "wg", "wi_1": "wi"} if c.gated else {"wi": "wi"}
    inside = f"{at}.{ffn}.{'mlp' if c.moe else 'DenseReluDense'}"
    if name == "sparse" and c.moe:
        router = matrix(f"{inside}.router.classifier.weight", (f"{ours}.ffn.router", (m, c.moe.experts)), **places)
        mapped.append(router)
        inside, places = f"{inside}.experts.expert_{{expert}}", places | {"experts": c.moe.experts}
    mapped += [matrix(f"{inside}.{theirs}.weight", (f"{ours}.ffn.{to}", (m, h)), **places) for theirs, to in up.items()]
    return [*mapped, matrix(f"{inside}.wo.weight", (f"{ours}.ffn.wo", (h, m)), **places)]


def untied(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that change where the output matrix differs from the table that it is said to be tied to: it is
    scaled all the same."""
    scaled = setting(theirs, "scale_decoder_outputs", bool, setting(theirs, "tie_word_embeddings", bool, True))
    return {"tie_word_embeddings": False, "scale_decoder_outputs": scaled}


def copies(c: T5Config) -> dict[str, str]:
    """Returns the tensors that a file may hold besides `readable`, and those that they repeat, by canonical name."""
    tables = {f"{side}.embed_tokens.weight": _TABLE for side in ("encoder", "decoder")}
    return tables | ({_OUTPUT: _TABLE} if c.tied else {})


def canonical(c: T5Config, theirs: str) -> str | None:
    """Returns the name of a file's tensor in `readable` or `copies`; None for a tensor that is not needed."""
    del c
    return None if theirs.endswith(_STRAY) else theirs


readable = entries  # the tensors to look for in a folder
is_head_tensor = no_head
