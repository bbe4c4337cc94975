"""Parts that the files of all encoders have in common: heads by the names of their classes, and layers with norms behind them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from models.bert.config import BertConfig
from models.errors import nearest, shortened
from models.interchange import Entry, InterchangeError
from models.interchange.layers import Names, layers
from models.interchange.rows import ModelType, Row, must_be, read_activation
from models.interchange.settings import MULTI_HEAD, Fields, Settings, demand, label_names, only, read_labels, setting
from models.interchange.tensors import dense, norm, table, vector
from models.parts.heads_config import Classification, Head, MaskedLm, SentenceEmbedding, Span, Tagging

Entries = Callable[[BertConfig], list[Entry]]
# Heads by the end of their class's name; the number of labels is the folder's.
HEADS: dict[str, Head] = {
    "Model": SentenceEmbedding(),
    "ForMaskedLM": MaskedLm(),
    "ForSequenceClassification": Classification(labels=2),
    "ForTokenClassification": Tagging(labels=2),
    "ForQuestionAnswering": Span(),
}
_PURPOSES = {MaskedLm: "masked tokens", Classification: "sequence classification", Tagging: "tagging", Span: "answers"}
_FREE = ("labels", "temperature", "vector")  # fields of a head that its class does not decide
# Fields of BERT and its followers whose norms stand behind their sub-layers.
POST_NORM: Fields = MULTI_HEAD | {
    "positions.class": lambda c: "Learned",
    "norm.order": "post",
    "embedding.norm": True,
    "embedding_scale": 1.0,
    "embedding.size": 0,
    "embedding.distinct": 0,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderFiles:
    """The files of one kind of encoder.

    Attributes:
      model_types: its tables of settings, by model_type.
      prefix: of the tensors outside the head, in files that have one.
      body: how these tensors' names begin in files without a head.
      heads: how the names of heads' tensors begin.
      encoder: makes the entries of the tensors outside the head.
      outputs: makes the entries of the head's tensors.
      copies: the tensors that a model for masked tokens may hold besides, and those that they repeat.
      pooler: their name of the pooler that a bare model has; "" where it has none.
      others: other beginnings of tensors' names, and what they are called here.
    """

    model_types: Mapping[str, ModelType]
    prefix: str
    body: tuple[str, ...]
    heads: tuple[str, ...]
    encoder: Entries
    outputs: Entries
    copies: Mapping[str, str]
    pooler: str = ""
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)


# --- settings of heads ---


def head_row(target: str, stem: str, heads: Mapping[str, Head], masked_act: str = "") -> Row:
    """Returns the row of a head, whose classes' names begin with `stem`.

    Args:
      masked_act: the activation of the head for masked tokens, where it is not the layers'.
    """

    def read(theirs: Settings) -> Fields:
        head = read_head(theirs, stem, heads)
        if masked_act and isinstance(head, MaskedLm) and read_activation(setting(theirs, "hidden_act", str)) != masked_act:
            raise InterchangeError(
                f"config.json: hidden_act={theirs['hidden_act']!r}: the head of {stem}ForMaskedLM has {masked_act!r} whatever "
                "the layers have; here only the same"
            )
        return {"head": head}

    def write(c: BertConfig) -> dict[str, Any]:
        if isinstance(c.head, MaskedLm) and masked_act:
            demand(c, f"{target} for masked tokens", {"feed_forward.activation": masked_act})
        return write_head(c, target, stem, heads)

    return Row(read, write, {"tie_word_embeddings": True})


def read_head(theirs: Settings, stem: str, heads: Mapping[str, Head]) -> Head:
    """Returns the head of a config.json, whose classes' names begin with `stem`; raises InterchangeError."""
    only(theirs, problem_type=("single_label_classification",))
    if vector := setting(theirs, "sentence_vector", str, ""):
        return SentenceEmbedding(vector=vector)
    known = {f"{stem}{suffix}": head for suffix, head in heads.items()}
    name = (setting(theirs, "architectures", list, None) or [f"{stem}Model"])[0]
    if name not in known:
        raise InterchangeError(f"config.json: no head like that of {shortened(str(name))!r} here{nearest(str(name), known)}")
    head = known[name]
    if isinstance(head, MaskedLm):
        must_be("tie_word_embeddings", True).read(theirs)
    if isinstance(head, Classification | Tagging):
        return dataclasses.replace(head, labels=read_labels(theirs))
    return head


def write_head(c: BertConfig, target: str, stem: str, heads: Mapping[str, Head]) -> dict[str, Any]:
    """Returns the settings of a head; raises InterchangeError where no class has such a one."""

    def fields(head: Head) -> dict[str, Any]:
        names = [f.name for f in dataclasses.fields(head) if f.name not in _FREE]
        return {name: getattr(head, name) for name in names}

    alike = {suffix: fields(head) for suffix, head in heads.items() if type(head) is type(c.head)}
    if not alike:
        raise InterchangeError(f"no {target} of Hugging Face is like this model: head={type(c.head).__name__}")
    suffix = max(alike, key=lambda suffix: len(alike[suffix].items() & fields(c.head).items()))
    if purpose := _PURPOSES.get(type(c.head)):
        demand(c.head, f"{target} for {purpose}", alike[suffix])
    if isinstance(c.head, MaskedLm):
        demand(c, f"{target} for masked tokens", {"output.tied": True, "output.cap": 0.0})
    return {"architectures": [stem + suffix]} | label_names(c.labels)


def _check_biased(c: BertConfig) -> dict[str, Any]:
    if isinstance(c.head, MaskedLm):
        demand(c, "BERT for masked tokens", {"output.bias": True})
    return {}


BIASED_LOGITS = Row(write=_check_biased)  # logits of masked tokens have biases, which no setting says


# --- tensors ---


def post_norm(stem: str, layer: str, names: Names, projection: str = "") -> Entries:
    """Returns what makes the entries of an encoder whose norms stand behind its sub-layers.

    Args:
      stem, layer: the beginnings of names of all tensors, and then of a layer's, with `{layer}` in it.
      names: theirs of a layer's parts (models.interchange.layers).
      projection: theirs of the projection of embeddings, after `stem`.
    """
    at = f"{stem}.embeddings"

    def entries(c: BertConfig) -> list[Entry]:
        tables = {"word": ("", c.vocab), "position": ("position_", c.max_positions), "token_type": ("type_", c.embedding.types)}
        return [
            *(
                table(f"{at}.{theirs}_embeddings.weight", f"{ours}embedding.table", (rows, c.embedding_dim))
                for theirs, (ours, rows) in tables.items()
                if rows
            ),
            *norm(f"{at}.LayerNorm", "embedding_norm", c.embedding_dim),
            *(dense(f"{stem}.{projection}", "projection", (c.embedding_dim, c.model_dim)) if projects(c) else []),
            *layers(c, "encoder", f"{stem}.{layer}.", names, layers=c.stacked),
        ]

    return entries


def projects(c: BertConfig) -> bool:
    """Returns whether embeddings are projected to the model's size."""
    return c.embedding_dim != c.model_dim


def transform(c: BertConfig, projection: str, norm_: str) -> list[Entry]:
    """Returns the entries of a head's transform, whose biases are where feed-forward layers and norms have some; it has no norm
    where `norm_` is ""."""
    bias = "head.transform_bias" if c.feed_forward.bias else ""
    size = c.embedding_dim if isinstance(c.head, MaskedLm) else c.model_dim
    normed = norm(norm_, "head.norm", size, bias=c.norm.bias) if norm_ else []
    return [*dense(projection, "head.transform", (c.model_dim, size), bias=bias), *normed]


def pooler(c: BertConfig, theirs: str) -> list[Entry]:
    """Returns the entries of a pooler."""
    return dense(theirs, "head.pooler", (c.model_dim, c.model_dim))


def classes(c: BertConfig, theirs: str) -> list[Entry]:
    """Returns the entries of a head's last projection."""
    return dense(theirs, "head.weight", (c.model_dim, c.labels or 2), bias="head.bias")


def logit_bias(c: BertConfig, theirs: str) -> list[Entry]:
    """Returns the entry of the biases of tokens."""
    return [vector(theirs, ("head.bias", (c.vocab,)))] if c.output.bias else []


def outputs(projection: str, norm_: str, bias: str, pooled: str, labels: str = "classifier") -> Entries:
    """Returns what makes the entries of heads, by the names of a masked head's transform, its norm and the biases of tokens, and
    of a pooler and the classes after it. Those of tags and answers have one name in BERT and its followers."""

    def entries(c: BertConfig) -> list[Entry]:
        match c.head:
            case MaskedLm():
                return [*transform(c, projection, norm_), *logit_bias(c, bias)]
            case Classification():
                return [*pooler(c, pooled), *classes(c, labels)]
            case Tagging():
                return classes(c, "classifier")
            case Span():
                return classes(c, "qa_outputs")
            case _:
                return []

    return entries
