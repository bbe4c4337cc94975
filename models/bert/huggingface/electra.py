"""ELECTRA (arXiv 2003.10555): BERT with embeddings of a size of their own, and without a pooler in a bare model.

`ElectraForPreTraining` is its discriminator, `ElectraForMaskedLM` the generator that it was trained with. Embeddings of the
model's size are said, too: by `embedding.size` an ELECTRA is told from a BERT.
"""

from models.bert.config import BertConfig
from models.bert.huggingface import bert, common
from models.bert.huggingface.common import transform
from models.interchange import Entry, InterchangeError
from models.interchange.rows import ModelType, Row
from models.interchange.settings import Fields, Settings, setting, without
from models.interchange.tensors import dense
from models.parts.heads_config import Classification, Detection, Head

_HEADS: dict[str, Head] = common.HEADS | {
    "ForSequenceClassification": Classification(labels=2, pooler="gelu"),
    "ForPreTraining": Detection(),
}
_DETECTION = "discriminator_predictions"
_OTHERS = common.outputs(
    "generator_predictions.dense",
    "generator_predictions.LayerNorm",
    "generator_lm_head.bias",
    "classifier.dense",
    labels="classifier.out_proj",
)


def _read_size(theirs: Settings) -> Fields:
    if (size := setting(theirs, "embedding_size", int)) < 1:
        raise InterchangeError(f"config.json: embedding_size={size}: must be 1 or more")
    return {"embedding.size": size}


def _outputs(c: BertConfig) -> list[Entry]:
    if not isinstance(c.head, Detection):
        return _OTHERS(c)
    weight = dense(f"{_DETECTION}.dense_prediction", "head.weight", (c.model_dim, 1), bias="head.bias")
    return [*transform(c, f"{_DETECTION}.dense", ""), *weight]


_ELECTRA = ModelType(
    config=BertConfig,
    name="ELECTRA",
    fields=without(common.POST_NORM, "embedding.size")
    | {"positions.first": 0, "embedding.types": lambda c: c.embedding.types or 2},
    rows=(
        *bert.rows(),
        Row(_read_size, lambda c: {"embedding_size": c.embedding.size}, {"embedding_size": 128}),
        common.head_row("ELECTRA", "Electra", _HEADS, masked_act="gelu"),
    ),
    other_defaults=dict(hidden_size=256, num_attention_heads=4, intermediate_size=1024),
)
FILES = common.EncoderFiles(
    model_types={"electra": _ELECTRA},
    prefix="electra.",
    body=("embeddings.", "embeddings_project.", "encoder."),
    heads=("generator_predictions.", "generator_lm_head.", f"{_DETECTION}.", "classifier.", "qa_outputs."),
    encoder=common.post_norm("electra", bert.LAYERS, bert.LAYER, "embeddings_project"),
    outputs=_outputs,
    copies={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
)
