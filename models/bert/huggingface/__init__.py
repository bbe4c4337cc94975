"""Encoders in Hugging Face's files: the classes of `transformers` that our encoder and heads are equal to. No JAX here.

A folder's `architectures` says which head it has. Tensors of other heads (those of pre-training, say) are ignored; the pooler
is read wherever it is, since fine-tuning starts from it. There is a module for each kind of model.
"""

from typing import Any

from models.bert.config import BertConfig
from models.bert.huggingface import albert, bert, deberta, distilbert, electra, modernbert, mpnet, roberta
from models.bert.huggingface.common import EncoderFiles, pooler
from models.interchange import Entry, Interchange
from models.interchange.settings import Settings, only, setting
from models.interchange.tensors import without_prefix
from models.parts.attention.config import Disentangled, Learned, LearnedAndBuckets, Rotary
from models.parts.heads_config import MaskedLm, SentenceEmbedding

_KINDS = (
    *(bert.FILES, roberta.FILES, distilbert.FILES, modernbert.FILES, electra.FILES, albert.FILES, mpnet.FILES),
    deberta.FILES,
)
_HEADS = tuple(name for kind in _KINDS for name in kind.heads)


def _kind(c: BertConfig) -> EncoderFiles:
    """Returns the kind that a model is of, or is nearest to."""
    if isinstance(c.positions, Rotary):
        return modernbert.FILES
    if isinstance(c.positions, Disentangled):
        return deberta.FILES
    if isinstance(c.positions, LearnedAndBuckets):
        return mpnet.FILES
    if c.embedding.distinct or c.embedding.size:
        return albert.FILES if c.embedding.distinct else electra.FILES
    if isinstance(c.positions, Learned) and c.positions.first:
        return roberta.FILES
    return distilbert.FILES if not c.embedding.types and c.norm.order == "post" else bert.FILES


class _HuggingFace(Interchange[BertConfig]):
    def model_type_of(self, c: BertConfig) -> str:
        return next(iter(_kind(c).model_types))

    def write_config(self, c: BertConfig) -> dict[str, Any]:
        kind = self.model_type_of(c)
        return {"model_type": kind} | self.model_types[kind].write(c)

    def entries(self, c: BertConfig) -> list[Entry]:
        """Returns the entries of all tensors that `transformers` saves for such a model, without a bare one's unused pooler."""
        kind = _kind(c)
        saved = [*kind.encoder(c), *kind.outputs(c)]
        return without_prefix(saved, kind.prefix) if isinstance(c.head, SentenceEmbedding) else saved

    def readable_entries(self, c: BertConfig) -> list[Entry]:
        """Returns `entries`, with their prefix, and the pooler."""
        kind = _kind(c)
        named = [*kind.encoder(c), *kind.outputs(c)]
        pooled = any(part.name == "head.pooler" for e in named for part in e.parts)
        return named if pooled or not kind.pooler else [*named, *pooler(c, kind.pooler)]

    def tied_tensors(self, c: BertConfig) -> dict[str, str]:
        return dict(_kind(c).copies) if isinstance(c.head, MaskedLm) else {}

    def canonical_name(self, c: BertConfig, theirs: str) -> str | None:
        kind = _kind(c)
        theirs = theirs.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if theirs.startswith(kind.body):
            theirs = f"{kind.prefix}{theirs}"
        for other, name in kind.others.items():
            theirs = name + theirs.removeprefix(other) if theirs.startswith(other) else theirs
        return None if theirs.endswith(".position_ids") else theirs

    def sentence_vector(self, c: BertConfig) -> str:
        return c.head.vector if isinstance(c.head, SentenceEmbedding) else ""

    def data_fields(self, c: BertConfig, preprocessor: Settings) -> dict[str, Any]:
        """Returns the longest text of an encoder of sentences."""
        if not isinstance(c.head, SentenceEmbedding):
            return {}
        only(preprocessor, do_lower_case=(False,))
        most = [c.max_positions - getattr(c.positions, "first", 0)] if c.max_positions else []
        length = setting(preprocessor, "max_seq_length", int, *most)
        return {"length": min(length, *most)}

    def is_head_tensor(self, theirs: str) -> bool:
        return theirs.startswith(_HEADS)


INTERCHANGE = _HuggingFace({name: table for kind in _KINDS for name, table in kind.model_types.items()})
