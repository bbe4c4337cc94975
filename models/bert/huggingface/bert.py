"""BERT: `BertModel` and its heads."""

from models.bert.config import BertConfig
from models.bert.huggingface import common
from models.bert.huggingface.common import pooler
from models.interchange import Entry, InterchangeError
from models.interchange.layers import Names, attention_names
from models.interchange.rows import Activation, ModelType, Row, Setting, allowed, also, fixed, head_count, must_be
from models.interchange.settings import Fields, Settings, setting
from models.interchange.tensors import dense
from models.parts.heads_config import Head, MaskedLm

BODY = ("embeddings.", "encoder.", "pooler.")
_HEADS: dict[str, Head] = common.HEADS | {"ForPreTraining": MaskedLm(next_sentence=True)}
LAYERS = "encoder.layer.{layer}"
LAYER: Names = {
    **attention_names("attention", ("self.query", "self.key", "self.value", "output.dense")),
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "ffn.wi",
    "output.dense": "ffn.wo",
    "output.LayerNorm": "ffn_norm",
}


def _read_types(theirs: Settings) -> Fields:
    if not (types := setting(theirs, "type_vocab_size", int)):
        raise InterchangeError("config.json: type_vocab_size=0: a table of token types has one row at least")
    return {"embedding.types": types}


def rows(vocab: int = 30_522, *, types: bool = True) -> tuple[Row, ...]:
    """Returns the settings that BERT and its followers have, without the head's. Dropout is that of hidden states, the only one
    that we have.

    Args:
      types: whether tokens have types.
    """
    of_types = Row(_read_types, lambda c: {"type_vocab_size": c.embedding.types}, {"type_vocab_size": 2})
    return (
        Setting("vocab_size", "vocab", int, vocab),
        Setting("num_hidden_layers", "layers", int, 12),
        Setting("hidden_size", "model_dim", int, 768),
        Setting("intermediate_size", "feed_forward.hidden_dim", int, 3072),
        head_count("num_attention_heads", "hidden_size", 12),
        Setting("max_position_embeddings", "positions.rows", int, 512),
        *([of_types] if types else []),
        Setting("hidden_act", "feed_forward.activation", Activation, "gelu"),
        Setting("layer_norm_eps", "norm.eps", float, 1e-12),
        Setting("hidden_dropout_prob", "dropout", float, 0.1),
        also("attention_probs_dropout_prob", "dropout"),
        fixed("position_embedding_type", "absolute"),
        allowed("pruned_heads", {}),
        must_be("is_decoder", False),
        must_be("add_cross_attention", False),
        common.BIASED_LOGITS,
    )


_POOLER, _AT = "bert.pooler.dense", "cls.predictions"
_SINGLE = common.outputs(f"{_AT}.transform.dense", f"{_AT}.transform.LayerNorm", f"{_AT}.bias", _POOLER)


def _outputs(c: BertConfig) -> list[Entry]:
    if not isinstance(c.head, MaskedLm) or not c.head.next_sentence:
        return _SINGLE(c)
    next_ = dense("cls.seq_relationship", "head.next_weight", (c.model_dim, 2), bias="head.next_bias")
    return [*_SINGLE(c), *pooler(c, _POOLER), *next_]


_BERT = ModelType(
    config=BertConfig,
    name="BERT",
    fields=common.POST_NORM | {"positions.first": 0, "embedding.types": lambda c: c.embedding.types or 2},
    rows=(*rows(), common.head_row("BERT", "Bert", _HEADS)),
)
FILES = common.EncoderFiles(
    model_types={"bert": _BERT},
    prefix="bert.",
    body=BODY,
    heads=("cls.", "classifier.", "qa_outputs.", "bert.pooler.", "pooler."),
    encoder=common.post_norm("bert", LAYERS, LAYER),
    outputs=_outputs,
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    pooler=_POOLER,
)
