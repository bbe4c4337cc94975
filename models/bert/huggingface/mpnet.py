"""MPNet (arXiv 2004.09297): RoBERTa without token types, with biases of relative positions, T5's, that all layers share.

Positions count from the row behind that of padding, whose id is 1 whatever a config.json says; and there are 32 buckets.
"""

from models.bert.config import BertConfig
from models.bert.huggingface import bert, common
from models.interchange import Entry
from models.interchange.layers import Names, attention_names
from models.interchange.rows import ModelType, Row, constant, must_be
from models.interchange.settings import under
from models.interchange.tensors import matrix
from models.parts.attention.config import LearnedAndBuckets

_PADDING = 1
_LAYER: Names = {
    **attention_names("attention.attn", ("q", "k", "v", "o")),
    "attention.LayerNorm": "attention_norm",
    "intermediate.dense": "ffn.wi",
    "output.dense": "ffn.wo",
    "output.LayerNorm": "ffn_norm",
}


def _always(key: str, value: int) -> tuple[Row, Row]:
    """Returns the rows of a setting that has this value alone, and is written."""
    return must_be(key, value), constant(key, value)


_MPNET = ModelType(
    config=BertConfig,
    name="MPNet",
    fields=common.POST_NORM
    | {
        "positions.class": lambda c: "LearnedAndBuckets",
        **under("positions", first=_PADDING + 1, buckets=32, max_distance=128),
        "embedding.types": 0,
    },
    initial={"positions": LearnedAndBuckets},
    rows=(
        *_always("pad_token_id", _PADDING),
        *bert.rows(30_527, types=False),
        *_always("relative_attention_num_buckets", 32),
        common.head_row("MPNet", "MPNet", common.HEADS, masked_act="gelu"),
    ),
)
_POOLER = "mpnet.pooler.dense"
_layers = common.post_norm("mpnet", bert.LAYERS, _LAYER)


def _encoder(c: BertConfig) -> list[Entry]:
    assert isinstance(c.positions, LearnedAndBuckets)
    bias = ("relative_bias", (c.attention.heads, c.positions.buckets))
    return [*_layers(c), matrix("mpnet.encoder.relative_attention_bias.weight", bias)]


FILES = common.EncoderFiles(
    model_types={"mpnet": _MPNET},
    prefix="mpnet.",
    body=bert.BODY,
    heads=("lm_head.", "classifier.", "qa_outputs.", "mpnet.pooler."),
    encoder=_encoder,
    outputs=common.outputs(
        "lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "classifier.dense", labels="classifier.out_proj"
    ),
    copies={"lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"},
    pooler=_POOLER,
)
