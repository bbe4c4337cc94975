"""What the files of all encoders have in common: heads by the names of their classes, and layers with norms behind them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from models.bert.config import BertConfig
from models.errors import nearest, shortened
from models.interchange import Entry, InterchangeError, demand, dense, norm, only, setting, table, vector
from models.parts.heads_config import Classification, Head, MaskedLm, SentenceEmbedding, Span, Tagging

# Heads by the end of their class's name; the number of labels is the folder's.
HEADS: dict[str, Head] = {
    "Model": SentenceEmbedding(),
    "ForMaskedLM": MaskedLm(),
    "ForSequenceClassification": Classification(labels=2),
    "ForTokenClassification": Tagging(labels=2),
    "ForQuestionAnswering": Span(),
}
_PURPOSES = {MaskedLm: "masked tokens", Classification: "sequence classification", Tagging: "tagging", Span: "answers"}
_FREE = ("labels", "temperature")  # fields of a head that its class does not decide


def fixed(s: Mapping[str, Any], **values: Any) -> None:
    """Raises InterchangeError unless settings, each given or by default, have the only values that our model has."""
    for key, value in values.items():
        only({key: setting(s, key, type(value))}, **{key: (value,)})


def read_head(s: Mapping[str, Any], stem: str, heads: Mapping[str, Head]) -> Head:
    """Returns the head of a config.json, whose classes' names begin with `stem`; raises InterchangeError."""
    theirs = s
    only(theirs, problem_type=("single_label_classification",))
    known = {f"{stem}{suffix}": head for suffix, head in heads.items()}
    name = (setting(theirs, "architectures", list, None) or [f"{stem}Model"])[0]
    if name not in known:
        raise InterchangeError(f"config.json: no head like that of {shortened(str(name))!r} here{nearest(str(name), known)}")
    head = known[name]
    if isinstance(head, MaskedLm):
        fixed(s, tie_word_embeddings=True)
    if isinstance(head, Classification | Tagging):
        labels = len(setting(theirs, "id2label", dict, {})) or setting(theirs, "num_labels", int, 2)
        return dataclasses.replace(head, labels=labels)
    return head


def write_head(c: BertConfig, target: str, stem: str, heads: Mapping[str, Head]) -> dict[str, Any]:
    """Returns the settings of a head; raises InterchangeError where no class has such a one."""

    def fields(head: Head) -> dict[str, Any]:
        names = [f.name for f in dataclasses.fields(head) if f.name not in _FREE]
        return {name: getattr(head, name) for name in names}

    alike = {suffix: fields(head) for suffix, head in heads.items() if type(head) is type(c.head)}
    suffix = max(alike, key=lambda suffix: len(alike[suffix].items() & fields(c.head).items()))
    if purpose := _PURPOSES.get(type(c.head)):
        demand(c.head, f"{target} for {purpose}", **alike[suffix])
    names = {str(i): f"LABEL_{i}" for i in range(c.labels)}
    labels = {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}} if names else {}
    return {"architectures": [stem + suffix]} | labels


def head_dim(s: Mapping[str, Any], width: str, heads: str) -> int:
    """Returns the size of a head of attention, from the names of two settings; raises InterchangeError."""
    size, count = setting(s, width, int), setting(s, heads, int)
    if count < 1 or size % count:
        raise InterchangeError(f"config.json: {width}={size} is no multiple of {heads}={count}")
    return size // count


def demand_post_norm(c: BertConfig, target: str, **more: Any) -> None:
    """Raises InterchangeError unless a model is BERT's, but for what `more` says."""
    needs = dict(
        positions="learned",
        norm="layer",
        norm_bias=True,
        order="post",
        gated=False,
        attention_bias=True,
        output_bias="same",
        key_bias=True,
        qk_norm=False,
        sinks=False,
        ffn_bias=True,
        attention_scale=True,
        attention_scalar=0.0,
        groups=c.heads,
        head_dim=c.model_dim // c.heads,
        per_dim_scale=False,
        logit_cap=0.0,
        embedding_norm=True,
        embedding_scale=1.0,
        first_position=0,
        kinds=(),
    )
    demand(c, target, **needs | more)
    if isinstance(c.head, MaskedLm):
        demand(c, f"{target} for masked tokens", tied=True, softmax_bias=True, softmax_cap=0.0)


def post_norm(c: BertConfig, embeddings: str, layer: str, names: Mapping[str, str]) -> list[Entry]:
    """Returns the entries of an encoder whose norms stand behind its sub-layers.

    Args:
      embeddings, layer: the beginnings of names of the tables, and of a layer's tensors.
      names: theirs of a layer's parts, by ours.
    """
    m, h, n, d = c.model_dim, c.hidden_dim, c.heads, c.head_dim
    tables = {"word": ("", c.vocab), "position": ("position_", c.max_positions), "token_type": ("type_", c.types)}

    def part(ours: str, shape: tuple[int, ...], inputs: int = 1) -> list[Entry]:
        return dense(f"{layer}.{names[ours]}", f"encoder.{ours}", shape, inputs, layers=c.layers)

    return [
        *(
            table(f"{embeddings}.{theirs}_embeddings.weight", f"{ours}embedding.table", (rows, m))
            for theirs, (ours, rows) in tables.items()
            if rows
        ),
        *norm(f"{embeddings}.LayerNorm", "embedding_norm", m),
        *part("attention.q", (m, n, d)),
        *part("attention.k", (m, n, d)),
        *part("attention.v", (m, n, d)),
        *part("attention.o", (n, d, m), 2),
        *norm(f"{layer}.{names['attention_norm']}", "encoder.attention_norm", m, layers=c.layers),
        *part("ffn.wi", (m, h)),
        *part("ffn.wo", (h, m)),
        *norm(f"{layer}.{names['ffn_norm']}", "encoder.ffn_norm", m, layers=c.layers),
    ]


def transform(c: BertConfig, projection: str, norm_: str) -> list[Entry]:
    """Returns the entries of a head's transform, whose biases are where feed-forward layers and norms have some."""
    m = c.model_dim
    scale, *bias = norm(norm_, "head.norm", m)
    return [
        *dense(projection, "head.transform", (m, m), bias="head.transform_bias" if c.ffn_bias else ""),
        scale,
        *(bias if c.norm_bias else []),
    ]


def pooler(c: BertConfig, theirs: str) -> list[Entry]:
    """Returns the entries of a pooler."""
    return dense(theirs, "head.pooler", (c.model_dim, c.model_dim))


def classes(c: BertConfig, theirs: str) -> list[Entry]:
    """Returns the entries of a head's last projection."""
    return dense(theirs, "head.weight", (c.model_dim, c.labels or 2), bias="head.bias")


def logit_bias(c: BertConfig, theirs: str) -> list[Entry]:
    """Returns the entry of the biases of tokens."""
    return [vector(theirs, ("head.bias", (c.vocab,)))] if c.softmax_bias else []


def label_outputs(c: BertConfig) -> list[Entry]:
    """Returns the entries of heads that have one name in BERT and its followers: of tags, of answers, and of none."""
    match c.head:
        case Tagging():
            return classes(c, "classifier")
        case Span():
            return classes(c, "qa_outputs")
        case _:
            return []
