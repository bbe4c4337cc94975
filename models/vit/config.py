"""ViT's and V-MoE's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar, Literal

from models.errors import multiples
from models.parts.attention.config import LearnedPatches, RelativePatches, Rotary, Sinusoidal
from models.parts.nested import changed
from models.parts.numbers import check_finite
from models.parts.transformer_config import NormConfig, StackConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patches:
    """Pictures, and the patches that they are taken apart into.

    Attributes:
      height, width: pixels of a picture.
      channels: of a pixel.
      size: pixels of a patch's side.
      bias: of the patches' projection.
      norm: a norm of what the first layer reads (CLIP, arXiv 2103.00020).
      cut: pixels beyond the last whole patch of a side are not read (SigLIP: 384 in patches of 14); otherwise there are none.
    """

    height: int = 224
    width: int = 224
    channels: int = 3
    size: int = 16
    bias: bool = True
    norm: bool = False
    cut: bool = False

    def __post_init__(self) -> None:
        for name in ("height", "width"):
            pixels = getattr(self, name)
            if pixels < self.size if self.cut else pixels % self.size or not pixels:
                raise ValueError(
                    f"{name}={pixels}: patches of {self.size} pixels do not divide it; nearest are {multiples(pixels, self.size)}"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenPooling:
    """The last layer's vector of the class token.

    Attributes:
      positioned: the token is a vector before the patches with a place of its own in the table; otherwise it is put there after
        positions are added.
    """

    positioned: bool = True

    tokens: ClassVar[int] = 1  # beside those of patches


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistilledPooling(TokenPooling):
    """The class token's vector, of a model with a second token behind it, a teacher's (DeiT, arXiv 2012.12877, section 4).

    Attributes:
      head: the second token's vector has a head of its own, and outputs are the mean of both heads'; otherwise it is not read.
    """

    head: bool = False

    tokens: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not self.positioned:
            raise ValueError("positioned=False: two tokens have places of their own; nearest is True")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenAndMeanPooling(TokenPooling):
    """The class token's vector, and beside it the mean of the patches' (DINOv2, arXiv 2304.07193): the head reads both."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormedMeanPooling(TokenPooling):
    """The mean of the patches' vectors, which has the norm that the last layer's vectors have otherwise (BEiT). A class token is
    beside the patches, and is not read."""

    positioned: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanPooling:
    """The mean of the last layer's vectors."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapPooling:
    """Attention to all of the last layer's vectors from one learned query, followed by a feed-forward layer (Set Transformer;
    Scaling ViT, arXiv 2106.04560, section 3.2)."""


Pooling = TokenPooling | DistilledPooling | TokenAndMeanPooling | NormedMeanPooling | MeanPooling | MapPooling


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classifier:
    """The head of a ViT.

    Attributes:
      classes: 0 has none, and the outputs are the pooled vectors.
      pooler: tanh(x W + b) between pooling and head.
      loss: "softmax" over classes, or "sigmoid", of each class against all others.
      label_smoothing: mass moved from the label to all other classes; of softmax.
      bias: what the head's biases are initially; -10 makes every class of a sigmoid loss unlikely (Scaling ViT).
    """

    classes: int = 1000
    pooler: bool = False
    loss: Literal["softmax", "sigmoid"] = "softmax"
    label_smoothing: float = 0.0
    bias: float = 0.0

    def __post_init__(self) -> None:
        check_finite(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VitConfig(StackConfig):
    """A Transformer encoder over the patches of a picture (ViT, arXiv 2010.11929), dense or sparse (V-MoE, arXiv 2106.05974).

    `positions` are those of rows and columns: `LearnedPatches` is a table with a vector for each patch, `Sinusoidal` has sines of
    the column in one half and of the row in the other (MoCo v3, arXiv 2104.02057), `Rotary` turns the halves of each head
    likewise, `RelativePatches` are biases of attention for offsets in the plane (BEiT).

    Attributes:
      pooling: the vector of a picture: that of a token of its own, the mean of all patches, or by attention.
    """

    family: ClassVar[str] = "vit"

    patches: Patches = Patches()
    positions: LearnedPatches | RelativePatches | Rotary | Sinusoidal | None = LearnedPatches()
    norm: NormConfig = NormConfig(kind="layer", bias=True)
    pooling: Pooling = TokenPooling()
    head: Classifier = Classifier()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_pattern()
        if self.moe:
            self.moe.refuse_leading()
        if self.norm.order == "post":
            raise ValueError("norm.order='post': there is no such ViT here; nearest is 'pre'")
        if self.head.pooler and self.pooled_dim != self.model_dim:
            raise ValueError("head.pooler=True: a pooler reads the class token alone; nearest is False")
        if not isinstance(self.positions, LearnedPatches) and isinstance(self.pooling, TokenPooling) and self.pooling.positioned:
            kind = type(self.positions).__name__
            raise ValueError(f"pooling.positioned=True: positions={kind} have no table; nearest is False")
        if isinstance(self.positions, RelativePatches):
            ours = dataclasses.astuple(self.positions)
            if ours != self.grid:
                raise ValueError(f"positions.rows, positions.columns={ours}: must be those of the patches, {self.grid}")
            if self.tokens != 1:
                kind = type(self.pooling).__name__
                raise ValueError(f"pooling={kind}: positions=RelativePatches have one token; nearest is NormedMeanPooling")
        if isinstance(self.positions, (Rotary, Sinusoidal)):
            of_heads = isinstance(self.positions, Rotary)
            name, size = ("attention.rotary_dim", self.attention.rotary_dim) if of_heads else ("model_dim", self.model_dim)
            if size % 4:
                raise ValueError(f"{name}={size}: rows and columns need a multiple of 4; nearest are {multiples(size, 4)}")

    @property
    def picture(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return self.patches.height, self.patches.width, self.patches.channels

    sized_by_data: ClassVar[dict[str, str]] = {"labels": "head.classes"} | {
        name: f"patches.{name}" for name in ("height", "width", "channels")
    }

    @property
    def labels(self) -> int:
        """Classes of the head; 0 where it has none."""
        return self.head.classes

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.patches.height // self.patches.size, self.patches.width // self.patches.size

    @property
    def length(self) -> int:
        """Positions of a picture: its patches, and the tokens before them."""
        return self.grid[0] * self.grid[1] + self.tokens

    @property
    def tokens(self) -> int:
        """Tokens before the patches: a class token where there is one, and a teacher's."""
        return self.pooling.tokens if isinstance(self.pooling, TokenPooling) else 0

    @property
    def pooled_dim(self) -> int:
        """Numbers of a picture's vector, which the head reads."""
        return self.model_dim * (2 if isinstance(self.pooling, TokenAndMeanPooling) else 1)

    @property
    def places(self) -> int:
        """Rows of the learned table of positions; 0 with other positions."""
        if not isinstance(self.positions, LearnedPatches):
            return 0
        free = isinstance(self.pooling, TokenPooling) and not self.pooling.positioned
        return self.length - free

    def tiny(self) -> "VitConfig":
        """The same model, small enough for a test and divisible by the meshes of eight devices."""
        length = 16 + self.tokens
        small = {"patches.height": 16, "patches.width": 16, "patches.size": 4, "head.classes": self.head.classes and 8}
        small |= {"attention.heads": 4, "attention.head_dim": 8, "attention.kv_heads": 0, "feed_forward.hidden_dim": 32}
        small |= {"positions": RelativePatches(rows=4, columns=4)} if isinstance(self.positions, RelativePatches) else {}
        sizes = dict(layers=4, model_dim=16, dropout=0.1, moe=self.moe and self.moe.shrunk(8 * length))
        return changed(self, small | sizes)


CONFIG = VitConfig
