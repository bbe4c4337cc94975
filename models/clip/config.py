"""Two towers, of pictures and of texts, whose vectors are compared. No JAX here: configs are read by tools that never touch an
array."""

import dataclasses
from typing import Any, ClassVar, Literal

from models.parts.attention.config import Learned
from models.parts.nested import changed
from models.parts.numbers import check_finite, check_least, check_literals
from models.parts.transformer_config import BlockConfig, NormConfig
from models.vit.config import VitConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndPooling:
    """The vector of the token that ends a text (CLIP, section 2.4), the first of them; of its last token where it has none.

    Attributes:
      end_id: that token.
    """

    end_id: int = 49_407

    def __post_init__(self) -> None:
        check_least(self, 0, "end_id")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilledPooling:
    """The vector of the last position of a row that is filled up to its longest with padding, which is seen as words are
    (SigLIP).

    Attributes:
      pad_id: the token of padding: 1 in SigLIP, 0 in SigLIP 2.
    """

    pad_id: int = 1

    def __post_init__(self) -> None:
        check_least(self, 0, "pad_id")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTower(BlockConfig):
    """A Transformer over the tokens of a text.

    Attributes:
      vocab: ids of the token embedding.
      layers: depth.
      causal: a token sees those before it alone.
      pooling: the vector of a text.
    """

    vocab: int
    layers: int
    positions: Learned = Learned(rows=77)
    norm: NormConfig = NormConfig(kind="layer", bias=True)
    causal: bool = True
    pooling: EndPooling | FilledPooling = EndPooling()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_pattern()
        if self.positions.first:
            raise ValueError(f"positions.first={self.positions.first}: a text begins with the table's first row; nearest is 0")
        if self.norm.order == "post":
            raise ValueError("norm.order='post': there is no such text tower here; nearest is 'pre'")
        (name,) = vars(self.pooling)
        if (token := vars(self.pooling)[name]) >= self.vocab:
            raise ValueError(f"pooling.{name}={token}: must be below vocab={self.vocab}; nearest is {self.vocab - 1}")

    def tiny(self) -> "TextTower":
        """The same tower, small enough for a test and divisible by the meshes of eight devices."""
        small = {"attention.heads": 4, "attention.head_dim": 4, "attention.kv_heads": 0, "feed_forward.hidden_dim": 32}
        pooling = type(self.pooling)(**{name: min(token, 63) for name, token in vars(self.pooling).items()})
        small |= {"pooling": pooling, "positions.rows": 16}
        return changed(self, small | dict(vocab=64, layers=4, model_dim=16, dropout=0.1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftmaxLoss:
    """The text of each picture among the batch's, and the picture of each text (CLIP, arXiv 2103.00020, section 2.3).

    Attributes:
      scale: what the learned factor of cosines is at first.
      most: what a factor counts as at most in training.
    """

    scale: float = 1 / 0.07
    most: float = 100.0

    def __post_init__(self) -> None:
        check_finite(self)
        if not 0 < self.scale <= self.most:
            raise ValueError(f"scale={self.scale}: must be above 0, at most most={self.most}; CLIP's is 1 / 0.07")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SigmoidLoss:
    """Whether they belong together, of each picture and each text (SigLIP, arXiv 2303.15343, section 3.2).

    Attributes:
      scale: what the learned factor of cosines is at first.
      bias: what the learned number that is added to them is at first.
    """

    scale: float = 10.0
    bias: float = -10.0

    def __post_init__(self) -> None:
        check_finite(self)
        if not self.scale > 0:
            raise ValueError(f"scale={self.scale}: must be above 0; SigLIP's is 10")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClipConfig:
    """A ViT and a text tower, whose vectors of a picture and of its text are near each other (CLIP, arXiv 2103.00020; SigLIP,
    arXiv 2303.15343).

    Attributes:
      vision: the image tower, without classes.
      text: the text tower.
      dim: numbers of a vector.
      projections: what maps a tower's vectors to these: a matrix of "both", or of the "text" with biases, whose picture's vector
        is as it is.
      loss: what training compares.
    """

    family: ClassVar[str] = "clip"
    vocabularies: ClassVar[dict[str, str]] = {"vocabulary": "vocab"}
    sized_by_data: ClassVar[dict[str, str]] = {"vocabulary": "text.vocab", "positions": "text.positions.rows"}

    vision: VitConfig
    text: TextTower
    dim: int
    projections: Literal["both", "text"] = "both"
    loss: SoftmaxLoss | SigmoidLoss = SoftmaxLoss()

    def __post_init__(self) -> None:
        check_literals(self)
        check_least(self, 1, "dim")
        if self.vision.head.classes:
            raise ValueError(f"vision.head.classes={self.vision.head.classes}: a tower names no classes; nearest is 0")
        if self.vision.moe:
            raise ValueError(f"vision.moe={self.vision.moe}: an image tower has no experts here; nearest is None")
        if self.projections == "text" and self.dim != self.vision.pooled_dim:
            raise ValueError(f"dim={self.dim}: without a projection of pictures it is that of theirs, {self.vision.pooled_dim}")

    @property
    def vocab(self) -> int:
        """Ids of the text tower's tokens."""
        return self.text.vocab

    @property
    def picture(self) -> tuple[int, int, int]:
        """Height, width and channels of a picture."""
        return self.vision.picture

    def tiny(self) -> "ClipConfig":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        vision = changed(self.vision.tiny(), {"head.classes": 0})
        small: dict[str, Any] = {"vision": vision, "text": self.text.tiny(), "dim": 16}
        return dataclasses.replace(self, **small)


CONFIG = ClipConfig
