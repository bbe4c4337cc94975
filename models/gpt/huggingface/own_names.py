"""Classes of `transformers` whose tensors have names of their own, not LLaMA's: GPT-2, and those of classics.py. No JAX."""

import dataclasses
from collections.abc import Callable
from typing import Any

from models.gpt.config import GptConfig
from models.interchange import Entry
from models.interchange.layers import Names, layers
from models.interchange.rows import ModelType, Row, Setting, constant
from models.interchange.tensors import norm, table
from models.parts.attention.config import Learned, Rotary


def shared(*, tied: bool) -> tuple[Row, ...]:
    """Returns the rows that all of these classes have; `tied` is the default of whether logits use the embedding table."""
    return (
        Setting("vocab_size", "vocab", int),
        Setting("tie_word_embeddings", "output.tied", bool, tied),
        *(constant(f"{name}_token_id", None) for name in ("bos", "eos", "pad")),  # the defaults are those of the first release
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnNames(ModelType):
    """A class of `transformers` with the names of its tensors.

    Attributes:
      prefix: of all tensors but those of the output, in files that have one.
      embedding, positions, embedding_norm, stack, final_norm: theirs of these parts, behind the prefix.
      output: theirs of the output matrix and its bias.
      names: returns theirs of a layer's parts.
      transposed: matrices are stored as [out, in].
      groups: returns of how many groups queries, keys and values in one tensor are (see Entry).
      neighbours: rotary positions turn neighbouring dimensions together.
      buffers: ends of names that old releases saved, which can be computed.
    """

    prefix: str
    embedding: str
    positions: str = ""
    embedding_norm: str = ""
    stack: str
    final_norm: str
    output: str = "lm_head"
    names: Callable[[GptConfig], Names]
    transposed: bool = True
    groups: Callable[[GptConfig], int] = lambda c: 1
    neighbours: bool = False
    buffers: tuple[str, ...] = ()

    @property
    def table(self) -> str:
        """Returns their name of the embedding table."""
        return f"{self.prefix}{self.embedding}.weight"

    def entries(self, c: GptConfig) -> list[Entry]:
        """Returns the entries of all tensors but those of the output."""
        mapped = [table(self.table, "embedding.table", (c.vocab, c.model_dim))]
        if isinstance(c.positions, Learned):
            shape = c.positions.rows, c.model_dim
            mapped.append(table(f"{self.prefix}{self.positions}.weight", "position_embedding.table", shape))
        if c.norm.embedding:
            mapped += norm(f"{self.prefix}{self.embedding_norm}", "embedding_norm", c.model_dim, bias=c.norm.bias)
        at = f"{self.prefix}{self.stack}.{{layer}}."
        places: dict[str, Any] = dict(layers=c.layers, transposed=self.transposed, groups=self.groups(c))
        body = layers(c, "decoder", at, self.names(c), **places)
        if self.neighbours and isinstance(c.positions, Rotary):
            turning = {"pairs": c.attention.heads, "turned": c.positions.dims}
            body = [dataclasses.replace(e, **turning) if e.parts[0].name[-2:] in (".q", ".k") else e for e in body]
        return [*mapped, *body, *norm(f"{self.prefix}{self.final_norm}", "final_norm", c.model_dim, bias=c.norm.bias)]

    def canonical_name(self, theirs: str) -> str | None:
        """Returns the name of a tensor in a file that has an output matrix; None for one that is not needed."""
        own = (self.embedding, self.positions or None, self.embedding_norm or None, self.stack, self.final_norm)
        inner = self.prefix.rpartition(".")[0].partition(".")[2]  # "decoder" of "model.decoder."
        bare = theirs.removeprefix(f"{inner}.") if inner else theirs
        name = f"{self.prefix}{bare}" if bare.startswith(tuple(f"{part}." for part in own if part)) else theirs
        return None if name.endswith(self.buffers) else name
