"""RoBERTa (arXiv 1907.11692) and XLM-R (arXiv 1911.02116), which are one model of two vocabularies; RoBERTa is written.

The first token has the row of positions after that of padding, whose number is padding's id. Tokens have one type.
"""

from models.bert.config import BertConfig
from models.bert.huggingface import bert, common
from models.interchange import InterchangeError
from models.interchange.rows import ModelType, Row
from models.interchange.settings import Fields, Settings, setting


def _read_padding(theirs: Settings) -> Fields:
    pad, rows = setting(theirs, "pad_token_id", int), setting(theirs, "max_position_embeddings", int)
    if not 0 <= pad < rows - 1:
        raise InterchangeError(f"config.json: pad_token_id={pad}: no row of {rows} positions follows that of padding")
    return {"positions.first": pad + 1}


def _model_type(stem: str, vocab: int) -> ModelType:
    """Returns the settings of a class whose name begins with `stem`."""

    return ModelType(
        config=BertConfig,
        name="RoBERTa",
        fields=common.POST_NORM | {"embedding.types": lambda c: c.embedding.types or 1},
        rows=(
            Row(_read_padding, lambda c: {"pad_token_id": c.positions.first - 1}, {"pad_token_id": 1}),
            *bert.rows(vocab),
            common.head_row("RoBERTa", stem, common.HEADS, masked_act="gelu"),
        ),
    )


FILES = common.EncoderFiles(
    model_types={"roberta": _model_type("Roberta", 50_265), "xlm-roberta": _model_type("XLMRoberta", 30_522)},
    prefix="roberta.",
    body=bert.BODY,
    heads=("lm_head.", "classifier.", "qa_outputs.", "roberta.pooler."),
    encoder=common.post_norm("roberta", bert.LAYERS, bert.LAYER),
    outputs=common.outputs(
        "lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "classifier.dense", labels="classifier.out_proj"
    ),
    copies={"lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"},
    pooler="roberta.pooler.dense",
)
