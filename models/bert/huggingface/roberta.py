"""RoBERTa (arXiv 1907.11692) and XLM-R (arXiv 1911.02116), which are one model of two vocabularies; RoBERTa is written.

The first token has the row of positions after that of padding, whose number is padding's id. Tokens have one type.
"""

from collections.abc import Mapping
from typing import Any

from models.bert.config import BertConfig
from models.bert.huggingface import bert, common
from models.bert.huggingface.common import classes, pooler, transform
from models.interchange import Entry, InterchangeError, completed, demand, setting
from models.parts.heads_config import Classification, MaskedLm

STEMS = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta"}
PREFIX = "roberta."
BODY = bert.BODY
OUTPUTS = ("lm_head.", "classifier.", "qa_outputs.", "roberta.pooler.")
DEFAULTS = {
    "roberta": bert.DEFAULTS["bert"] | dict(vocab_size=50_265, pad_token_id=1),
    "xlm-roberta": bert.DEFAULTS["bert"] | dict(pad_token_id=1),
}
HEADS = common.HEADS


def read(theirs: Mapping[str, Any]) -> BertConfig:
    """Returns the configuration of a RoBERTa."""
    kind = theirs["model_type"]
    s = completed(theirs, DEFAULTS[kind])
    fields, head = bert.fields(s), common.read_head(s, STEMS[kind], HEADS)
    if isinstance(head, MaskedLm) and fields["activation"] != "gelu":
        raise InterchangeError(
            f"config.json: hidden_act={theirs['hidden_act']!r}: the head of {STEMS[kind]}ForMaskedLM has 'gelu' whatever the "
            "layers have; here only the same"
        )
    pad, rows = setting(s, "pad_token_id", int), fields["max_positions"]
    if not 0 <= pad < rows - 1:
        raise InterchangeError(f"config.json: pad_token_id={pad}: no row of {rows} positions follows that of padding")
    return BertConfig(**fields, first_position=pad + 1, head=head)


def write(c: BertConfig) -> dict[str, Any]:
    """Returns the settings of a RoBERTa; raises InterchangeError."""
    common.demand_post_norm(c, "RoBERTa", types=c.types or 1, first_position=c.first_position)
    if isinstance(c.head, MaskedLm):
        demand(c, "RoBERTa for masked tokens", activation="gelu")
    own = {"model_type": "roberta", "pad_token_id": c.first_position - 1}
    return own | bert.settings(c) | common.write_head(c, "RoBERTa", STEMS["roberta"], HEADS)


def encoder(c: BertConfig) -> list[Entry]:
    """Returns the entries of the tensors outside the head."""
    return common.post_norm(c, f"{PREFIX}embeddings", f"{PREFIX}encoder.layer.{{layer}}", bert.LAYER)


def bare_pooler(c: BertConfig) -> list[Entry]:
    """Returns the entries of the pooler of a bare model."""
    return pooler(c, f"{PREFIX}pooler.dense")


def outputs(c: BertConfig) -> list[Entry]:
    """Returns the entries of the head's tensors."""
    match c.head:
        case MaskedLm():
            return [*transform(c, "lm_head.dense", "lm_head.layer_norm"), *common.logit_bias(c, "lm_head.bias")]
        case Classification():
            return [*pooler(c, "classifier.dense"), *classes(c, "classifier.out_proj")]
        case _:
            return common.label_outputs(c)


def copies() -> dict[str, str]:
    """Returns the tensors that a model for masked tokens may hold besides, and those that they repeat."""
    return {"lm_head.decoder.weight": f"{PREFIX}embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"}
