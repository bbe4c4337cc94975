"""DeBERTa's later releases (v2 and v3, arXiv 2111.09543), which are one model: BERT whose logits have the vectors of distances
(arXiv 2006.03654) and whose embeddings have neither positions nor types.

Read are those whose layers share the projections of tokens and a table with a norm, in logarithmic buckets: v3 of every size. v2
has a convolution beside its first layer, which no other model has. The first release has a `model_type` of its own.

Masked tokens have the head of BERT under two sets of names, of which `legacy` tells which a class of `transformers` has; both are
read, and the "legacy" one is written.
"""

from typing import Any

from models.bert.config import BertConfig
from models.bert.huggingface import bert, common
from models.interchange import Entry, InterchangeError
from models.interchange.layers import Names, attention_names
from models.interchange.rows import Activation, ModelType, Row, Setting, allowed, also, constant, head_count
from models.interchange.settings import Fields, Settings, only, setting
from models.interchange.tensors import norm, table
from models.parts.attention.config import Disentangled
from models.parts.heads_config import Classification, Head

_HEADS: dict[str, Head] = common.HEADS | {"ForSequenceClassification": Classification(labels=2, pooler="gelu")}
_LAYER: Names = {
    **attention_names("attention", ("self.query_proj", "self.key_proj", "self.value_proj", "output.dense")),
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "ffn.wi",
    "output.dense": "ffn.wo",
    "output.LayerNorm": "ffn_norm",
}
_AT = "deberta.encoder"
# What an absent key means is another model each time.
_ALWAYS = dict(relative_attention=True, share_att_key=True, norm_rel_ebd="layer_norm", position_biased_input=False)
_MEANT = dict(relative_attention=False, share_att_key=False, norm_rel_ebd="none", position_biased_input=True)
_PRODUCTS = {"p2c", "c2p"}


def _needed(key: str) -> Row:
    """Returns the row of a setting that has one value here, and another where it is absent."""

    def read(theirs: Settings) -> Fields:
        only(theirs, **{key: (_ALWAYS[key],)})
        return {}

    return Row(read, lambda c: {key: _ALWAYS[key]}, {key: _MEANT[key]})


def _read_products(theirs: Settings) -> Fields:
    given = theirs.get("pos_att_type")
    names = given.lower().split("|") if isinstance(given, str) else given
    if not isinstance(names, list) or {str(name).strip() for name in names} != _PRODUCTS:
        raise InterchangeError(f"config.json: pos_att_type={str(given)[:60]!r} is not supported, only 'p2c|c2p'")
    return {}


def _read_buckets(theirs: Settings) -> Fields:
    buckets, most = (setting(theirs, key, int) for key in ("position_buckets", "max_relative_positions"))
    if buckets < 2:
        raise InterchangeError(f"config.json: position_buckets={buckets} is not supported, only 2 or more; DeBERTa v3 has 256")
    return {"positions.buckets": buckets, "positions.max_distance": most if most > 0 else setting(theirs, _LENGTH, int)}


_LENGTH = "max_position_embeddings"


def _write_buckets(c: BertConfig) -> dict[str, Any]:
    assert isinstance(c.positions, Disentangled)
    return {_LENGTH: c.positions.max_distance, "max_relative_positions": -1, "position_buckets": c.positions.buckets}


def _same_size(key: str) -> Row:
    return Row(lambda theirs: only(theirs, **{key: (setting(theirs, "hidden_size", int),)}) or {})


_DEBERTA = ModelType(
    config=BertConfig,
    name="DeBERTa v3",
    fields=common.POST_NORM | {"positions.class": lambda c: "Disentangled"},
    initial={"positions": Disentangled},
    rows=(
        Setting("vocab_size", "vocab", int, 128_100),
        Setting("num_hidden_layers", "layers", int, 24),
        Setting("hidden_size", "model_dim", int, 1536),
        Setting("intermediate_size", "feed_forward.hidden_dim", int, 6144),
        head_count("num_attention_heads", "hidden_size", 24),
        Setting("type_vocab_size", "embedding.types", int, 0),
        Setting("hidden_act", "feed_forward.activation", Activation, "gelu"),
        Setting("layer_norm_eps", "norm.eps", float, 1e-7),
        Setting("hidden_dropout_prob", "dropout", float, 0.1),
        also("attention_probs_dropout_prob", "dropout"),
        *map(_needed, _ALWAYS),
        Row(_read_products, lambda c: {"pos_att_type": ["p2c", "c2p"]}, {"pos_att_type": None}),
        Row(_read_buckets, _write_buckets, {_LENGTH: 512, "max_relative_positions": -1, "position_buckets": -1}),
        *map(_same_size, ("embedding_size", "pooler_hidden_size")),
        Row(lambda theirs: only(theirs, attention_head_size=(theirs["hidden_size"] // theirs["num_attention_heads"],)) or {}),
        allowed("conv_kernel_size", 0),
        Row(allowed("pooler_hidden_act", "gelu").read, absent={"pooler_hidden_act": "gelu"}),
        constant("legacy", True),
        common.BIASED_LOGITS,
        common.head_row("DeBERTa v3", "DebertaV2", _HEADS),
    ),
)
_layers = common.post_norm("deberta", bert.LAYERS, _LAYER)


def _encoder(c: BertConfig) -> list[Entry]:
    assert isinstance(c.positions, Disentangled)
    distances = table(f"{_AT}.rel_embeddings.weight", "distance_embedding.table", (2 * c.positions.buckets, c.model_dim))
    return [*_layers(c), distances, *norm(f"{_AT}.LayerNorm", "distance_norm", c.model_dim)]


FILES = common.EncoderFiles(
    model_types={"deberta-v2": _DEBERTA},
    prefix="deberta.",
    body=("embeddings.", "encoder."),
    heads=("cls.", "lm_predictions.", "mask_predictions.", "pooler.", "classifier.", "qa_outputs."),
    encoder=_encoder,
    outputs=common.outputs(
        "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias", "pooler.dense"
    ),
    copies={
        "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    others={"lm_predictions.lm_head.bias": "cls.predictions.bias", "lm_predictions.lm_head.": "cls.predictions.transform."},
)
