"""ViT's and V-MoE's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar, Literal

from models.errors import multiples
from models.parts.transformer_config import Activation, Norm, StackConfig

Pooling = Literal["token", "mean", "map"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VitConfig(StackConfig):
    """A Transformer encoder over the patches of a picture (ViT, arXiv 2010.11929), dense or sparse (V-MoE, arXiv 2106.05974).

    `positions` are those of rows and columns: "learned" is a table with a vector for each patch, "sinusoidal" has sines of the
    column in one half and of the row in the other (MoCo v3, arXiv 2104.02057), "rotary" turns the halves of each head likewise.

    Attributes:
      height, width: pixels of a picture.
      channels: of a pixel.
      patch: pixels of a patch's side.
      classes: of the head; 0 has none, and the outputs are the pooled vectors.
      pooling: of the last layer's vectors: "token" takes the class token's, "mean" the mean of the patches', "map" attends to all
        from one learned query, followed by a feed-forward layer (Set Transformer; Scaling ViT, arXiv 2106.04560, section 3.2).
      class_token: "none", "positioned" (a vector before the patches with a place of its own in the table) or "free" (put there
        after positions are added).
      pooler: tanh(x W + b) between pooling and head.
      loss: "softmax" over classes, or "sigmoid", of each class against all others.
      label_smoothing: mass moved from the label to all other classes; of softmax.
      head_bias: what the head's biases are initially; -10 makes every class of a sigmoid loss unlikely (Scaling ViT).
      patch_bias: a bias of the patches' projection.
    """

    family: ClassVar[str] = "vit"

    height: int = 224
    width: int = 224
    channels: int = 3
    patch: int = 16
    classes: int = 1000
    pooling: Pooling = "token"
    class_token: Literal["none", "positioned", "free"] = "positioned"
    pooler: bool = False
    loss: Literal["softmax", "sigmoid"] = "softmax"
    label_smoothing: float = 0.0
    head_bias: float = 0.0
    patch_bias: bool = True
    norm: Norm = "layer"
    norm_bias: bool = True
    activation: Activation = "gelu_tanh"
    attention_bias: bool = True
    ffn_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("height", "width"):
            if (size := getattr(self, name)) % self.patch or not size:
                raise ValueError(
                    f"{name}={size}: patches of {self.patch} pixels do not divide it; nearest are {multiples(size, self.patch)}"
                )
        if (self.pooling == "token") != (self.class_token != "none"):
            need = "needs one" if self.pooling == "token" else "reads none; nearest is 'none'"
            raise ValueError(f"class_token={self.class_token!r}: pooling={self.pooling!r} {need}")
        self.refuse_kinds()
        if self.order == "post":
            raise ValueError("order='post': there is no such ViT here; nearest is 'pre'")
        if self.positions in ("relative", "relative_shared"):
            raise ValueError(f"positions={self.positions!r}: there is no such ViT here; nearest is 'learned'")
        if self.positions != "learned" and self.class_token == "positioned":
            raise ValueError(f"class_token='positioned': positions={self.positions!r} have no table; nearest is 'free'")
        if self.positions in ("rotary", "sinusoidal"):
            name, size = ("head_dim", self.head_dim) if self.positions == "rotary" else ("model_dim", self.model_dim)
            if size % 4:
                raise ValueError(f"{name}={size}: rows and columns need a multiple of 4; nearest are {multiples(size, 4)}")

    @property
    def picture(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return self.height, self.width, self.channels

    labels_field: ClassVar[str] = "classes"

    @property
    def labels(self) -> int:
        """Classes of the head; 0 where it has none."""
        return self.classes

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.height // self.patch, self.width // self.patch

    @property
    def length(self) -> int:
        """Positions of a picture: its patches, and the class token where there is one."""
        return self.grid[0] * self.grid[1] + (self.class_token != "none")

    @property
    def places(self) -> int:
        """Rows of the learned table of positions; 0 with other positions."""
        return self.length - (self.class_token == "free") if self.positions == "learned" else 0

    def tiny(self) -> "VitConfig":
        """The same model, small enough for a test and divisible by the meshes of eight devices."""
        length = 16 + (self.class_token != "none")
        moe = self.moe and self.moe.shrunk(8 * length)
        return dataclasses.replace(
            self,
            height=16,
            width=16,
            patch=4,
            classes=self.classes and 8,
            layers=4,
            model_dim=16,
            hidden_dim=32,
            heads=4,
            head_dim=8,
            kv_heads=0,
            moe=moe,
            dropout=0.1,
        )


CONFIG = VitConfig
