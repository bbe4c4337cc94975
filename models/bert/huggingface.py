"""BERT in Hugging Face's files: the classes of `transformers` that our encoder and heads are equal to. No JAX here.

A folder's `architectures` says which head it has. Tensors of other heads (those of pre-training, say) are ignored; the pooler
is read wherever it is, since fine-tuning starts from it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from models.bert.config import BertConfig
from models.errors import nearest
from models.interchange import (
    Entry,
    InterchangeError,
    demand,
    kept_apart,
    matrix,
    only,
    read_activation,
    setting,
    table,
    vector,
    write_activation,
)
from models.parts.heads_config import Classification, Head, MaskedLm, SentenceEmbedding, Span, Tagging

MODEL_TYPES = ("bert",)
_BODY = ("embeddings.", "encoder.", "pooler.")  # follow the prefix "bert." in files with a head
_HEADS = ("cls.", "classifier.", "qa_outputs.", "bert.pooler.", "pooler.")
_TABLE, _BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"


def read_config(theirs: Mapping[str, Any]) -> BertConfig:
    """Returns the configuration that a config.json describes. Dropout is that of the hidden states, the only one that we have.

    Raises:
      InterchangeError: a setting is missing, or our model does not support it.
    """
    only(
        theirs,
        position_embedding_type=("absolute",),
        is_decoder=(False,),
        add_cross_attention=(False,),
        tie_word_embeddings=(True,),
        pruned_heads=({},),
        problem_type=("single_label_classification",),
    )
    width, heads = setting(theirs, "hidden_size", int), setting(theirs, "num_attention_heads", int)
    if width % heads:
        raise InterchangeError(f"config.json: hidden_size={width} is no multiple of num_attention_heads={heads}")
    return BertConfig(
        vocab=setting(theirs, "vocab_size", int),
        layers=setting(theirs, "num_hidden_layers", int),
        model_dim=width,
        hidden_dim=setting(theirs, "intermediate_size", int),
        heads=heads,
        head_dim=width // heads,
        max_positions=setting(theirs, "max_position_embeddings", int),
        types=setting(theirs, "type_vocab_size", int, 2),
        activation=read_activation(setting(theirs, "hidden_act", str, "gelu")),
        norm_eps=setting(theirs, "layer_norm_eps", float, 1e-12),
        dropout=setting(theirs, "hidden_dropout_prob", float, 0.1),
        head=_read_head(theirs),
    )


def _read_head(theirs: Mapping[str, Any]) -> Head:
    named = setting(theirs, "id2label", dict, {})
    labels = len(named) or setting(theirs, "num_labels", int, 2)
    heads: dict[str, Head] = {
        "BertModel": SentenceEmbedding(),
        "BertForMaskedLM": MaskedLm(),
        "BertForPreTraining": MaskedLm(next_sentence=True),
        "BertForSequenceClassification": Classification(labels=labels),
        "BertForTokenClassification": Tagging(labels=labels),
        "BertForQuestionAnswering": Span(),
    }
    name = (setting(theirs, "architectures", list, None) or ["BertModel"])[0]
    if name not in heads:
        raise InterchangeError(f"config.json: no head like that of {name!r} here{nearest(str(name), heads)}")
    return heads[name]


def write_config(c: BertConfig) -> dict[str, Any]:
    """Returns the config.json of a model.

    Raises:
      InterchangeError: `transformers` has no class for the model; the message names the fields that differ.
    """
    demand(
        c, "BERT", positions="learned", norm="layer", norm_bias=True, order="post", gated=False, attention_bias=True,
        ffn_bias=True, groups=c.heads, head_dim=c.model_dim // c.heads, per_dim_scale=False, logit_cap=0.0,
        embedding_norm=True, types=c.types or 2,
    )  # fmt: skip
    if isinstance(c.head, MaskedLm):
        demand(c, "BERT for masked tokens", tied=True, softmax_bias=True, softmax_cap=0.0)
        demand(c.head, "BERT for masked tokens", transform=True)
    if isinstance(c.head, Classification):
        demand(c.head, "BERT for sequence classification", pooling="cls")
    config = {
        "architectures": [_architecture(c.head)],
        "model_type": "bert",
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
    if c.labels:
        names = {str(i): f"LABEL_{i}" for i in range(c.labels)}
        config |= {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}
    return config


def _architecture(head: Head) -> str:
    match head:
        case MaskedLm(next_sentence=True):
            return "BertForPreTraining"
        case MaskedLm():
            return "BertForMaskedLM"
        case Classification():
            return "BertForSequenceClassification"
        case Tagging():
            return "BertForTokenClassification"
        case Span():
            return "BertForQuestionAnswering"
        case SentenceEmbedding():
            return "BertModel"


def entries(c: BertConfig) -> list[Entry]:
    """Returns the entries of all tensors that `transformers` saves for such a model, without a bare BertModel's unused pooler."""
    if not isinstance(c.head, SentenceEmbedding):
        return _body(c)
    return [dataclasses.replace(e, theirs=e.theirs.removeprefix("bert.")) for e in _body(c)]


def _body(c: BertConfig) -> list[Entry]:
    m, h, n, d, layers = c.model_dim, c.hidden_dim, c.heads, c.head_dim, c.layers
    at = "bert.encoder.layer.{layer}."

    def dense(theirs: str, ours: str, shape: tuple[int, ...], inputs: int = 1) -> list[Entry]:
        return [
            matrix(f"{at}{theirs}.weight", (f"encoder.{ours}", shape), inputs=inputs, layers=layers),
            vector(f"{at}{theirs}.bias", (f"encoder.{ours}_bias", shape[inputs:]), layers=layers),
        ]

    return [
        table(_TABLE, "embedding.table", (c.vocab, m)),
        table("bert.embeddings.position_embeddings.weight", "position_embedding.table", (c.max_positions, m)),
        table("bert.embeddings.token_type_embeddings.weight", "type_embedding.table", (c.types, m)),
        *_norm("bert.embeddings.LayerNorm", "embedding_norm", m),
        *dense("attention.self.query", "attention.q", (m, n, d)),
        *dense("attention.self.key", "attention.k", (m, n, d)),
        *dense("attention.self.value", "attention.v", (m, n, d)),
        *dense("attention.output.dense", "attention.o", (n, d, m), inputs=2),
        *_norm(f"{at}attention.output.LayerNorm", "encoder.attention_norm", m, layers),
        *dense("intermediate.dense", "ffn.wi", (m, h)),
        *dense("output.dense", "ffn.wo", (h, m)),
        *_norm(f"{at}output.LayerNorm", "encoder.ffn_norm", m, layers),
        *_head(c),
    ]


def _norm(theirs: str, ours: str, size: int, layers: int = 0) -> list[Entry]:
    names = {"weight": "scale", "bias": "bias"}
    return [vector(f"{theirs}.{t}", (f"{ours}.{o}", (size,)), layers=layers) for t, o in names.items()]


def _head(c: BertConfig) -> list[Entry]:
    m = c.model_dim
    match c.head:
        case MaskedLm():
            tensors = [
                *_dense("cls.predictions.transform.dense", "head.transform", "head.transform_bias", m, m),
                *_norm("cls.predictions.transform.LayerNorm", "head.norm", m),
                vector(_BIAS, ("head.bias", (c.vocab,))),
            ]
            if c.head.next_sentence:
                tensors += [*_pooler(m), *_dense("cls.seq_relationship", "head.next_weight", "head.next_bias", m, 2)]
            return tensors
        case Classification():
            return [*_pooler(m), *_dense("classifier", "head.weight", "head.bias", m, c.labels)]
        case Tagging():
            return _dense("classifier", "head.weight", "head.bias", m, c.labels)
        case Span():
            return _dense("qa_outputs", "head.weight", "head.bias", m, 2)
        case SentenceEmbedding():
            return []


def _dense(theirs: str, weight: str, bias: str, inputs: int, outputs: int) -> list[Entry]:
    return [matrix(f"{theirs}.weight", (weight, (inputs, outputs))), vector(f"{theirs}.bias", (bias, (outputs,)))]


def _pooler(m: int) -> list[Entry]:
    return _dense("bert.pooler.dense", "head.pooler", "head.pooler_bias", m, m)


def readable(c: BertConfig) -> list[Entry]:
    """Returns the entries to look for in a folder with this config: `entries`, with the prefix "bert.", and the pooler."""
    body = _body(c)
    return body if any(e.theirs.startswith("bert.pooler.") for e in body) else [*body, *_pooler(c.model_dim)]


def copies(c: BertConfig) -> dict[str, str]:
    """Returns the tensors that a file may hold besides `readable`, and those that they repeat, by canonical name."""
    tied = {"cls.predictions.decoder.weight": _TABLE, "cls.predictions.decoder.bias": _BIAS}
    return tied if isinstance(c.head, MaskedLm) else {}


def canonical(c: BertConfig, theirs: str) -> str | None:
    """Returns the name of a file's tensor in `readable` or `copies`; None for a tensor that is not needed."""
    del c
    theirs = theirs.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    if theirs.startswith(_BODY):
        theirs = f"bert.{theirs}"
    return None if theirs.endswith(".position_ids") else theirs


def is_head_tensor(theirs: str) -> bool:
    """Returns whether a tensor, by its canonical name, belongs to a head, which may be missing."""
    return theirs.startswith(_HEADS)


untied = kept_apart
