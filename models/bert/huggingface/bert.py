"""BERT: `BertModel` and its heads."""

from collections.abc import Mapping
from typing import Any

from models.bert.config import BertConfig
from models.bert.huggingface import common
from models.bert.huggingface.common import classes, head_dim, pooler, transform
from models.interchange import Entry, InterchangeError, completed, dense, only, read_activation, setting, write_activation
from models.parts.heads_config import Classification, Head, MaskedLm

STEMS = {"bert": "Bert"}
PREFIX = "bert."
BODY = ("embeddings.", "encoder.", "pooler.")
OUTPUTS = ("cls.", "classifier.", "qa_outputs.", "bert.pooler.", "pooler.")
DEFAULTS = {
    "bert": dict(
        vocab_size=30_522,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        hidden_act="gelu",
        hidden_dropout_prob=0.1,
        max_position_embeddings=512,
        type_vocab_size=2,
        layer_norm_eps=1e-12,
        is_decoder=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
}
HEADS: dict[str, Head] = common.HEADS | {"ForPreTraining": MaskedLm(next_sentence=True)}
LAYER = {
    "attention.q": "attention.self.query",
    "attention.k": "attention.self.key",
    "attention.v": "attention.self.value",
    "attention.o": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "ffn.wi": "intermediate.dense",
    "ffn.wo": "output.dense",
    "ffn_norm": "output.LayerNorm",
}


def read(theirs: Mapping[str, Any]) -> BertConfig:
    """Returns the configuration of a BERT."""
    s = completed(theirs, DEFAULTS["bert"])
    return BertConfig(**fields(s), head=common.read_head(s, STEMS["bert"], HEADS))


def fields(s: Mapping[str, Any]) -> dict[str, Any]:
    """Returns our fields of settings that BERT and its followers have, without the head. Dropout is that of hidden states, the
    only one that we have."""
    only(s, position_embedding_type=("absolute",), pruned_heads=({},))
    common.fixed(s, is_decoder=False, add_cross_attention=False)
    if not (types := setting(s, "type_vocab_size", int)):
        raise InterchangeError("config.json: type_vocab_size=0: a table of token types has one row at least")
    return dict(
        vocab=setting(s, "vocab_size", int),
        layers=setting(s, "num_hidden_layers", int),
        head_dim=head_dim(s, "hidden_size", "num_attention_heads"),
        model_dim=setting(s, "hidden_size", int),
        hidden_dim=setting(s, "intermediate_size", int),
        heads=setting(s, "num_attention_heads", int),
        max_positions=setting(s, "max_position_embeddings", int),
        types=types,
        activation=read_activation(setting(s, "hidden_act", str)),
        norm_eps=setting(s, "layer_norm_eps", float),
        dropout=setting(s, "hidden_dropout_prob", float),
    )


def write(c: BertConfig) -> dict[str, Any]:
    """Returns the settings of a BERT; raises InterchangeError."""
    common.demand_post_norm(c, "BERT", types=c.types or 2)
    return {"model_type": "bert"} | settings(c) | common.write_head(c, "BERT", STEMS["bert"], HEADS)


def settings(c: BertConfig) -> dict[str, Any]:
    """Returns the settings that BERT and its followers have, without the head's."""
    return {
        "vocab_size": c.vocab,
        "num_hidden_layers": c.layers,
        "hidden_size": c.model_dim,
        "intermediate_size": c.hidden_dim,
        "num_attention_heads": c.heads,
        "max_position_embeddings": c.max_positions,
        "type_vocab_size": c.types,
        "hidden_act": write_activation(c.activation),
        "layer_norm_eps": c.norm_eps,
        "hidden_dropout_prob": c.dropout,
        "attention_probs_dropout_prob": c.dropout,
        "position_embedding_type": "absolute",
    }


def encoder(c: BertConfig) -> list[Entry]:
    """Returns the entries of the tensors outside the head."""
    return common.post_norm(c, f"{PREFIX}embeddings", f"{PREFIX}encoder.layer.{{layer}}", LAYER)


def bare_pooler(c: BertConfig) -> list[Entry]:
    """Returns the entries of the pooler that files have whatever their head."""
    return pooler(c, f"{PREFIX}pooler.dense")


def outputs(c: BertConfig) -> list[Entry]:
    """Returns the entries of the head's tensors."""
    match c.head:
        case MaskedLm():
            at = "cls.predictions"
            mapped = [*transform(c, f"{at}.transform.dense", f"{at}.transform.LayerNorm"), *common.logit_bias(c, f"{at}.bias")]
            if c.head.next_sentence:
                next_ = dense("cls.seq_relationship", "head.next_weight", (c.model_dim, 2), bias="head.next_bias")
                mapped += [*bare_pooler(c), *next_]
            return mapped
        case Classification():
            return [*bare_pooler(c), *classes(c, "classifier")]
        case _:
            return common.label_outputs(c)


def copies() -> dict[str, str]:
    """Returns the tensors that a model for masked tokens may hold besides, and those that they repeat."""
    return {
        "cls.predictions.decoder.weight": f"{PREFIX}embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
