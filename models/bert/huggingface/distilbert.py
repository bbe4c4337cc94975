"""DistilBERT (arXiv 1910.01108): BERT without token types, and without a pooler in a bare model.

`sinusoidal_pos_embds` says how the table of positions began, which is in the file either way.
"""

from models.bert.config import BertConfig
from models.bert.huggingface import common
from models.interchange.layers import Names, attention_names
from models.interchange.rows import Activation, ModelType, Row, Setting, allowed, also, head_count
from models.interchange.settings import Fields, Settings, only, setting
from models.parts.heads_config import Classification, Head

_HEADS: dict[str, Head] = common.HEADS | {"ForSequenceClassification": Classification(labels=2, pooler="relu")}
_LAYER: Names = {
    **attention_names("attention", ("q_lin", "k_lin", "v_lin", "out_lin")),
    "sa_layer_norm": "attention_norm",
    "ffn.lin1": "ffn.wi",
    "ffn.lin2": "ffn.wo",
    "output_layer_norm": "ffn_norm",
}


def _read_other_names(theirs: Settings) -> Fields:
    """Returns no fields; raises InterchangeError where a setting has another value under its other name."""
    names = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
    only(theirs, **{other: (setting(theirs, name, int),) for other, name in names.items()})
    setting(theirs, "sinusoidal_pos_embds", bool)
    return {}


_DISTILBERT = ModelType(
    config=BertConfig,
    name="DistilBERT",
    fields=common.POST_NORM | {"positions.first": 0, "embedding.types": 0, "norm.eps": 1e-12},  # which is no setting of theirs
    rows=(
        Setting("vocab_size", "vocab", int, 30_522),
        Setting("n_layers", "layers", int, 6),
        Setting("dim", "model_dim", int, 768),
        Setting("hidden_dim", "feed_forward.hidden_dim", int, 3072),
        head_count("n_heads", "dim", 12),
        Setting("max_position_embeddings", "positions.rows", int, 512),
        Row(_read_other_names, lambda c: {"sinusoidal_pos_embds": False}, {"sinusoidal_pos_embds": False}),
        Setting("activation", "feed_forward.activation", Activation, "gelu"),
        Setting("dropout", "dropout", float, 0.1),  # of hidden states, the only one that we have
        also("attention_dropout", "dropout"),
        allowed("pruned_heads", {}),
        common.BIASED_LOGITS,
        common.head_row("DistilBERT", "DistilBert", _HEADS),
    ),
)


FILES = common.EncoderFiles(
    model_types={"distilbert": _DISTILBERT},
    prefix="distilbert.",
    body=("embeddings.", "transformer."),
    heads=("vocab_transform.", "vocab_layer_norm.", "vocab_projector.", "pre_classifier.", "classifier.", "qa_outputs."),
    encoder=common.post_norm("distilbert", "transformer.layer.{layer}", _LAYER),
    outputs=common.outputs("vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "pre_classifier"),
    copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
)
