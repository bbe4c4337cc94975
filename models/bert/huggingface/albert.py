"""ALBERT (arXiv 1909.11942): BERT whose layers share their parameters, with embeddings of a size of their own.

`num_hidden_groups` layers have parameters of their own. A group may hold several layers in `transformers`, and embeddings of the
model's size are projected there all the same; no released model has either, and none is read.
"""

from models.bert.config import BertConfig
from models.bert.huggingface import bert, common
from models.interchange import InterchangeError
from models.interchange.layers import Names, attention_names
from models.interchange.rows import ModelType, Row, must_be
from models.interchange.settings import Fields, Settings, setting, without

_LAYERS = "encoder.albert_layer_groups.{layer}.albert_layers.0"
_LAYER: Names = {
    **attention_names("attention", ("query", "key", "value", "dense")),
    "attention.LayerNorm": "attention_norm",
    "ffn": "ffn.wi",
    "ffn_output": "ffn.wo",
    "full_layer_layer_norm": "ffn_norm",
}


def _read_groups(theirs: Settings) -> Fields:
    groups, layers = (setting(theirs, key, int) for key in ("num_hidden_groups", "num_hidden_layers"))
    if groups < 1 or layers % groups:
        raise InterchangeError(f"config.json: num_hidden_groups={groups} must divide num_hidden_layers={layers}; nearest is 1")
    return {"embedding.distinct": groups}


def _read_size(theirs: Settings) -> Fields:
    size, width = setting(theirs, "embedding_size", int), setting(theirs, "hidden_size", int)
    if size == width or size < 1:
        raise InterchangeError(f"config.json: embedding_size={size} is not supported with hidden_size={width}, only another")
    return {"embedding.size": size}


_ALBERT = ModelType(
    config=BertConfig,
    name="ALBERT",
    fields=without(common.POST_NORM, "embedding.size", "embedding.distinct")
    | {
        "positions.first": 0,
        "embedding.types": lambda c: c.embedding.types or 2,
        "embedding.size": lambda c: c.embedding.size if common.projects(c) else "another than model_dim",
    },
    rows=(
        *bert.rows(30_000),
        Row(_read_size, lambda c: {"embedding_size": c.embedding.size}, {"embedding_size": 128}),
        Row(_read_groups, lambda c: {"num_hidden_groups": c.embedding.distinct}, {"num_hidden_groups": 1}),
        must_be("inner_group_num", 1),
        common.head_row("ALBERT", "Albert", common.HEADS),
    ),
    other_defaults=dict(
        hidden_size=4096, num_attention_heads=64, intermediate_size=16_384, hidden_act="gelu_new", hidden_dropout_prob=0.0
    ),
)
_POOLER = "albert.pooler"
FILES = common.EncoderFiles(
    model_types={"albert": _ALBERT},
    prefix="albert.",
    body=("embeddings.", "encoder.", "pooler."),
    heads=("predictions.", "sop_classifier.", "classifier.", "qa_outputs.", "albert.pooler.", "pooler."),
    encoder=common.post_norm("albert", _LAYERS, _LAYER, "encoder.embedding_hidden_mapping_in"),
    outputs=common.outputs("predictions.dense", "predictions.LayerNorm", "predictions.bias", _POOLER),
    copies={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    pooler=_POOLER,
)
