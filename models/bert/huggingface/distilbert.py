"""DistilBERT (arXiv 1910.01108): BERT without token types, and without a pooler in a bare model.

`sinusoidal_pos_embds` says how the table of positions began, which is in the file either way.
"""

from collections.abc import Mapping
from typing import Any

from models.bert.config import BertConfig
from models.bert.huggingface import common
from models.bert.huggingface.common import classes, head_dim, pooler, transform
from models.interchange import Entry, completed, only, read_activation, setting, write_activation
from models.parts.heads_config import Classification, Head, MaskedLm

STEMS = {"distilbert": "DistilBert"}
PREFIX = "distilbert."
BODY = ("embeddings.", "transformer.")
OUTPUTS = ("vocab_transform.", "vocab_layer_norm.", "vocab_projector.", "pre_classifier.", "classifier.", "qa_outputs.")
DEFAULTS = {
    "distilbert": dict(
        vocab_size=30_522,
        max_position_embeddings=512,
        sinusoidal_pos_embds=False,
        n_layers=6,
        n_heads=12,
        dim=768,
        hidden_dim=3072,
        dropout=0.1,
        activation="gelu",
        tie_word_embeddings=True,
    )
}
EPS = 1e-12  # no setting of theirs
HEADS: dict[str, Head] = common.HEADS | {"ForSequenceClassification": Classification(labels=2, pooler="relu")}
_LAYER = {
    "attention.q": "attention.q_lin",
    "attention.k": "attention.k_lin",
    "attention.v": "attention.v_lin",
    "attention.o": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "ffn.wi": "ffn.lin1",
    "ffn.wo": "ffn.lin2",
    "ffn_norm": "output_layer_norm",
}


def read(theirs: Mapping[str, Any]) -> BertConfig:
    """Returns the configuration of a DistilBERT. Dropout is that of the hidden states, the only one that we have."""
    s = completed(theirs, DEFAULTS["distilbert"])
    only(theirs, pruned_heads=({},))
    # Other names of three settings, under which a file may hold them too.
    names = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
    only(theirs, **{other: (setting(s, name, int),) for other, name in names.items()})
    setting(s, "sinusoidal_pos_embds", bool)
    return BertConfig(
        vocab=setting(s, "vocab_size", int),
        layers=setting(s, "n_layers", int),
        model_dim=setting(s, "dim", int),
        hidden_dim=setting(s, "hidden_dim", int),
        heads=setting(s, "n_heads", int),
        head_dim=head_dim(s, "dim", "n_heads"),
        max_positions=setting(s, "max_position_embeddings", int),
        types=0,
        activation=read_activation(setting(s, "activation", str)),
        norm_eps=EPS,
        dropout=setting(s, "dropout", float),
        head=common.read_head(s, STEMS["distilbert"], HEADS),
    )


def write(c: BertConfig) -> dict[str, Any]:
    """Returns the settings of a DistilBERT; raises InterchangeError."""
    common.demand_post_norm(c, "DistilBERT", types=0, norm_eps=EPS)
    return {
        "model_type": "distilbert",
        "vocab_size": c.vocab,
        "n_layers": c.layers,
        "dim": c.model_dim,
        "hidden_dim": c.hidden_dim,
        "n_heads": c.heads,
        "max_position_embeddings": c.max_positions,
        "sinusoidal_pos_embds": False,
        "activation": write_activation(c.activation),
        "dropout": c.dropout,
        "attention_dropout": c.dropout,
    } | common.write_head(c, "DistilBERT", STEMS["distilbert"], HEADS)


def encoder(c: BertConfig) -> list[Entry]:
    """Returns the entries of the tensors outside the head."""
    return common.post_norm(c, f"{PREFIX}embeddings", f"{PREFIX}transformer.layer.{{layer}}", _LAYER)


def bare_pooler(c: BertConfig) -> list[Entry]:
    """Returns the entries of the pooler of a bare model: there is none."""
    del c
    return []


def outputs(c: BertConfig) -> list[Entry]:
    """Returns the entries of the head's tensors."""
    match c.head:
        case MaskedLm():
            return [*transform(c, "vocab_transform", "vocab_layer_norm"), *common.logit_bias(c, "vocab_projector.bias")]
        case Classification():
            return [*pooler(c, "pre_classifier"), *classes(c, "classifier")]
        case _:
            return common.label_outputs(c)


def copies() -> dict[str, str]:
    """Returns the tensors that a model for masked tokens may hold besides, and those that they repeat."""
    return {"vocab_projector.weight": f"{PREFIX}embeddings.word_embeddings.weight"}
