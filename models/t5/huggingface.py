"""T5, ByT5, UL2, mT5 and Switch Transformer in Hugging Face's files. No JAX."""

import dataclasses
from typing import Any

from models.errors import shortened
from models.interchange import Entry, Interchange, InterchangeError
from models.interchange.layers import Names, attention_names, encoder_decoder_layers
from models.interchange.rows import ModelType, Row, Setting, constant, fixed, read_activation, write_activation
from models.interchange.settings import STANDARD, Fields, Settings, only, setting, under, without
from models.interchange.tensors import matrix, table, vector
from models.parts.attention.config import RelativeBuckets
from models.parts.moe.config import MoeConfig, Top1
from models.t5.config import T5Config

_TABLE, _OUTPUT = "shared.weight", "lm_head.weight"
# Old releases have a table in an attention that `transformers` gives none.
_STRAY = ("EncDecAttention.relative_attention_bias.weight",)
_NO_LIMIT = 2**14  # a capacity that no row exceeds: our models drop no token in evaluation
_GROUP = 64  # tokens of a routing group: of our own training, not in their files


def _depth(*, same: bool) -> Row:
    """Returns the row of the layers of both stacks, which a mixture has as many of (`same`)."""

    def read(theirs: Settings) -> Fields:
        encoder = setting(theirs, "num_layers", int)
        decoder = setting(theirs, "num_decoder_layers", int, encoder)
        if same and decoder != encoder:
            raise InterchangeError(f"config.json: num_decoder_layers={decoder}: only as many as num_layers={encoder}")
        return {"layers": encoder + decoder, "decoder.layers": 0 if encoder == decoder else decoder}

    def write(c: T5Config) -> dict[str, Any]:
        size = len(c.layer_group)
        return {"num_layers": c.encoder_groups * size, "num_decoder_layers": c.decoder_groups * size}

    return Row(read, write)


def _feed_forward(default: str) -> Row:
    """Returns the row of the activation, before which stands whether it is gated; "gated-gelu" means the tanh form."""

    def read(theirs: Settings) -> Fields:
        words = setting(theirs, "feed_forward_proj", str, default).split("-")
        if len(words) > 2 or words[:-1] not in ([], ["gated"]):
            raise InterchangeError(f"config.json: feed_forward_proj={'-'.join(words)!r} is not supported")
        gated = len(words) == 2
        name = "gelu_new" if gated and words[-1] == "gelu" else words[-1]
        only(theirs, dense_act_fn=(name,), is_gated_act=(gated,))  # which files repeat, and `transformers` obeys
        return {"feed_forward.gated": gated, "feed_forward.activation": read_activation(name)}

    def write(c: T5Config) -> dict[str, Any]:
        if c.feed_forward.gated and c.feed_forward.activation == "gelu":
            raise InterchangeError("no T5 of Hugging Face is like this model: 'gated-gelu' means the tanh form there")
        name = write_activation(c.feed_forward.activation)
        return {"feed_forward_proj": f"gated-{'gelu' if name == 'gelu_new' else name}" if c.feed_forward.gated else name}

    return Row(read, write)


def _output(scaled: bool) -> Row:
    """Returns the row of what is tied and scaled. Version 4 of `transformers` scales where it ties; 5 notes it apart, and never
    scales an mT5."""

    def read(theirs: Settings) -> Fields:
        tied = setting(theirs, "tie_word_embeddings", bool, True)
        return {"tied": tied, "scale_logits": setting(theirs, "scale_decoder_outputs", bool, tied) and scaled}

    def write(c: T5Config) -> dict[str, Any]:
        if c.scale_logits != c.tied and (c.moe or c.scale_logits):
            raise InterchangeError(f"no T5 of Hugging Face is like this model: scale_logits={c.scale_logits} with tied={c.tied}")
        return {"tie_word_embeddings": c.tied, "scale_decoder_outputs": c.scale_logits}

    return Row(read, write)


def _rows(feed_forward: str = "relu", *, scaled: bool = True, same_depth: bool = False) -> tuple[Row, ...]:
    return (
        constant("is_encoder_decoder", True),
        Setting("vocab_size", "vocab", int),
        Setting("d_model", "model_dim", int),
        Setting("d_kv", "attention.head_dim", int),
        Setting("d_ff", "feed_forward.hidden_dim", int),
        _depth(same=same_depth),
        Setting("num_heads", "attention.heads", int),
        Setting("relative_attention_num_buckets", "positions.buckets", int, 32),
        Setting("relative_attention_max_distance", "positions.max_distance", int, 128),
        Setting("dropout_rate", ("dropout", "feed_forward.dropout", "decoder.source_dropout"), float, 0.1),
        Setting("layer_norm_epsilon", "norm.eps", float, 1e-6),
        _feed_forward(feed_forward),
        _output(scaled),
        fixed("decoder_start_token_id", 0),
        fixed("pad_token_id", 0),
        constant("eos_token_id", 1),
    )


_T5 = ModelType(
    null_is_default=True,
    config=T5Config,
    name="T5",
    architectures=("T5ForConditionalGeneration",),
    fields=without(STANDARD, "feed_forward.gated")
    | {
        **under("norm", order="pre", kind="rms", bias=False),
        "positions.class": lambda c: "RelativeBuckets",
        "positions.shared": True,
        **under("attention", scale_dim=1.0, biases=""),
        "feed_forward.bias": False,
        "attention.groups": lambda c: c.attention.heads,
        "decoder.start_id": 0,
    },
    rows=_rows(),
)


def _read_sparse_layers(theirs: Settings) -> Fields:
    """Returns which layers have a mixture: 1, 3, 5 and so on, or all."""
    layers = setting(theirs, "num_layers", int)
    encoder, decoder = (setting(theirs, f"num_sparse_{side}_layers", int, 3) for side in ("encoder", "decoder"))
    every = {layers // count if count else 0 for count in (encoder, decoder)}
    if every not in ({1}, {2}):
        raise InterchangeError(
            f"config.json: {encoder} and {decoder} sparse layers of {layers}: only every layer of both sides, or every second"
        )
    return {"moe.every": every.pop()}


_SWITCH = dataclasses.replace(
    _T5,
    name="Switch Transformer",
    architectures=("SwitchTransformersForConditionalGeneration",),
    fields=_T5.fields
    | {
        "feed_forward.gated": False,
        "feed_forward.activation": "relu",
        "moe.router.class": lambda c: "Top1",
        "moe.capacity.eval_factor": 0.0,
        "decoder.layers": 0,
    },
    initial={"moe": MoeConfig, "moe.router": Top1, "moe.group_size": _GROUP, "moe.capacity.factor": 1.25},
    rows=(
        *_rows(same_depth=True),
        fixed("feed_forward_proj", "relu"),
        Setting("num_experts", "moe.experts.count", int, 8),
        Row(_read_sparse_layers, lambda c: {f"num_sparse_{side}_layers": c.layer_groups for side in ("encoder", "decoder")}),
        constant("expert_capacity", _NO_LIMIT),
        fixed("router_bias", False),
        Setting("router_jitter_noise", "moe.router.jitter", float, 0.01),
        Setting("router_aux_loss_coef", "moe.losses.balance_weight", float, 0.001),
        Setting("router_z_loss_coef", "moe.losses.z_weight", float, 0.001),
        fixed("router_dtype", "float32"),
    ),
)
_MT5 = dataclasses.replace(_T5, architectures=("MT5ForConditionalGeneration",), rows=_rows("gated-gelu", scaled=False))


def _names(c: T5Config, side: str) -> dict[bool, Names]:
    """Returns the names of a layer's parts, by whether it has experts."""
    projections, ffn = ("q", "k", "v", "o"), 2 if side == "decoder" else 1
    shared = {
        "0.layer_norm": "attention_norm",
        **attention_names("0.SelfAttention", projections),
        **({"1.layer_norm": "cross_norm"} if side == "decoder" else {}),
        **attention_names("1.EncDecAttention", projections, "cross_attention"),
        f"{ffn}.layer_norm": "ffn_norm",
    }
    inside = {"wi_0": "ffn.wg", "wi_1": "ffn.wi"} if c.feed_forward.gated else {"wi": "ffn.wi"}
    inside["wo"] = "ffn.wo"
    dense, mixture = f"{ffn}.{'mlp' if c.moe else 'DenseReluDense'}", f"{ffn}.mlp.experts.expert_{{expert}}"
    return {
        False: shared | {f"{dense}.{theirs}": ours for theirs, ours in inside.items()},
        True: shared
        | {f"{ffn}.mlp.router.classifier": "ffn.router"}
        | {f"{mixture}.{theirs}": ours for theirs, ours in inside.items()},
    }


class _HuggingFace(Interchange[T5Config]):
    def model_type_of(self, c: T5Config) -> str:
        return "switch_transformers" if c.moe else "t5"

    def differences(self, theirs: Settings) -> list[str]:
        capacity = theirs.get("expert_capacity", 64)
        if theirs["model_type"] != "switch_transformers" or (type(capacity) is int and capacity >= _NO_LIMIT):
            return []
        capacity = shortened(str(capacity), 30)
        return [
            f"expert_capacity={capacity}: in evaluation, `transformers` drops what exceeds {capacity} tokens of a row in an "
            "expert; here nothing is dropped, and longer rows may differ"
        ]

    def entries(self, c: T5Config) -> list[Entry]:
        assert isinstance(c.positions, RelativeBuckets)
        m = c.model_dim
        mapped = [table(_TABLE, "embedding.table", (c.vocab, m))]
        for side in ("encoder", "decoder"):
            bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            names = _names(c, side)
            mapped.append(matrix(bias, (f"{side}_bias", (c.attention.heads, c.positions.buckets))))
            mapped += encoder_decoder_layers(c, side, f"{side}.block.{{layer}}.layer.", names[False], names[True])
            mapped.append(vector(f"{side}.final_layer_norm.weight", (f"{side}_norm.scale", (m,))))
        return mapped if c.tied else [*mapped, matrix(_OUTPUT, ("softmax", (m, c.vocab)))]

    def untied(self, theirs: Settings) -> dict[str, Any]:
        """Returns the settings of an untied model, which is scaled all the same."""
        scaled = setting(theirs, "scale_decoder_outputs", bool, setting(theirs, "tie_word_embeddings", bool, True))
        return {"tie_word_embeddings": False, "scale_decoder_outputs": scaled}

    def tied_tensors(self, c: T5Config) -> dict[str, str]:
        tables = {f"{side}.embed_tokens.weight": _TABLE for side in ("encoder", "decoder")}
        return tables | ({_OUTPUT: _TABLE} if c.tied else {})

    def canonical_name(self, c: T5Config, theirs: str) -> str | None:
        return None if theirs.endswith(_STRAY) else theirs


INTERCHANGE = _HuggingFace({"t5": _T5, "mt5": _MT5, "switch_transformers": _SWITCH})
