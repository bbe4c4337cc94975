"""Sizes of HSTU."""

import dataclasses
from typing import ClassVar, Literal

from models.dlrm.placement import Placement, place
from models.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retrieval:
    """The next item: a softmax over items of the cosine of a place's output and an item's vector.

    Attributes:
      temperature: the cosines are divided by it.
    """

    target: ClassVar[str] = "item"

    temperature: float = 0.05

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise UserError(f"model.objective.temperature={self.temperature}: must be more than 0, such as 0.05")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranking:
    """The action on an item: the probability that it is positive, such as a click. Items and actions take turns in a row.

    Attributes:
      hidden: width of the network from an item's output to the logit.
    """

    target: ClassVar[str] = "action"

    hidden: int = 512

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise UserError(f"model.objective.hidden={self.hidden}: must be at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HstuConfig:
    """HSTU: what a user does next, from what the user did before.

    Attributes:
      items: rows of the table of items; row 0 is that of all items that training lacks.
      length: interactions of a row, at most.
      objective: what is predicted, the next item or the action on an item.
      layers: blocks of the tower.
      model_dim: D, elements of the residual stream.
      embedding_dim: E, elements of an item's vector; of retrieval it is D.
      heads: of attention.
      attention_dim: elements of a head's queries and keys.
      linear_dim: elements of a head's values and gates.
      time_buckets: the largest bucket of differences in time, which are floor(log(seconds) / 0.301).
      dropout: rate on the tower's input, and in each layer before its output matrix.
      form: "paper" is the layer of the paper and its public experiments; "dlrm_v3" that of the ranking model beside them, which
        divides products of queries and keys by the root of `attention_dim`, has scales and biases in its norms and a bias of
        U, V, Q and K, norms each head by itself, and gives the output matrix (U, norm, U * norm) side by side.
    """

    family: ClassVar[str] = "hstu"
    sized_by_data: ClassVar[dict[str, str]] = {"items": "items", "places": "length"}

    items: int
    length: int = 200
    objective: Retrieval | Ranking = Retrieval()
    layers: int = 2
    model_dim: int = 50
    embedding_dim: int = 50
    heads: int = 1
    attention_dim: int = 50
    linear_dim: int = 50
    time_buckets: int = 128
    dropout: float = 0.2
    form: Literal["paper", "dlrm_v3"] = "paper"

    def __post_init__(self) -> None:
        least = dict(items=2, length=2, layers=1, model_dim=1, embedding_dim=1, heads=1, attention_dim=1, linear_dim=1)
        for name, value in (least | {"time_buckets": 0}).items():
            if (own := getattr(self, name)) < value:
                raise UserError(f"model.{name}={own}: must be at least {value}")
        if not 0 <= self.dropout < 1:
            raise UserError(f"model.dropout={self.dropout}: must be from 0 to less than 1")
        if self.form not in ("paper", "dlrm_v3"):
            raise UserError(f"model.form={self.form!r}: expected 'paper' or 'dlrm_v3'")
        if isinstance(self.objective, Retrieval) and self.embedding_dim != self.model_dim:
            raise UserError(
                f"model.embedding_dim={self.embedding_dim}: is compared with outputs of model_dim={self.model_dim} elements; the "
                f"nearest is {self.model_dim}"
            )
        if (rows := self.placement.rows) >= 2**31:
            raise UserError(f"model.items: {rows:,} rows; ids are 32-bit, and the most is {2**31 - 1:,}")

    @property
    def tokens(self) -> int:
        """T, places of the tower: of ranking an item and an action for each interaction."""
        return self.length if isinstance(self.objective, Retrieval) else 2 * self.length

    @property
    def placement(self) -> Placement:
        """The place of the table of items; its array may have more rows, which belong to none."""
        return place([self.items], [0], [(0, 1)], 1)

    def tiny(self) -> "HstuConfig":
        """Returns a small model with the same objective and form."""
        objective = Ranking(hidden=16) if isinstance(self.objective, Ranking) else self.objective
        sizes = dict(items=61, length=8, layers=2, model_dim=16, embedding_dim=16, heads=4, attention_dim=4, linear_dim=8)
        return dataclasses.replace(self, **sizes, time_buckets=12, objective=objective)


CONFIG = HstuConfig
