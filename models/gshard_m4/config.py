"""GShard M4's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar, Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class GShardM4Config:
    """Mixture-of-experts encoder-decoder for translation (GShard, arXiv 2006.16668, section 3 and appendix A.2).

    The defaults are what all models of the paper's Table 1 share. Where the paper is silent, the source is named.

    Attributes:
      layers: encoder plus decoder layers, half each (the L of MoE(2048E, 36L)).
      experts: experts of an MoE layer; every second feed-forward layer is one. 0 makes the model dense.
      group_size: tokens S of a routing group; N / group_size groups are routed independently. The paper gives
        "one group per core", hence 2048 to 8192 tokens; here it belongs to the model, not to the mesh.
      capacity_factor: slots of an expert per group, times E / S; it includes both choices (C = 2S/E in the paper).
      eval_capacity_factor: the same outside training. Not in the paper; E makes dropping impossible.
      second_expert_threshold: a second expert is dispatched if its normalised gate over this exceeds uniform(0, 1):
        0.5 is the paper's "proportional to twice its gate" (Lingvo: policy random, threshold 0.5).
      balance_weight: weight of the auxiliary loss (Lingvo's 0.01; the paper does not say).
      dispatch: "sort" (gathers, the default) or "einsum" (the paper's algorithm); equal value for value.
      label_smoothing: Lingvo's 0.1; not in the paper.
      dropout: on embeddings, sub-layer outputs and attention probabilities (A.2); inside experts none (Lingvo).
      dtype: of activations and of weights as they are used; stored weights are float32 (the paper: all float32).
      remat: what the backward pass keeps of a layer: "none" keeps all; "full" recomputes (the paper from 36 layers on).
    """

    family: ClassVar[str] = "gshard_m4"
    vocabularies: ClassVar[dict[str, str]] = {"source_vocabulary": "source_vocab", "target_vocabulary": "target_vocab"}

    source_vocab: int = 64_000
    target_vocab: int = 32_000
    layers: int = 12
    model_dim: int = 1024
    hidden_dim: int = 8192
    heads: int = 16
    head_dim: int = 128
    experts: int = 0
    group_size: int = 2048
    capacity_factor: float = 2.0
    eval_capacity_factor: float = 2.0
    second_expert_threshold: float = 0.5
    balance_weight: float = 0.01
    dispatch: Literal["sort", "einsum"] = "sort"
    label_smoothing: float = 0.1
    dropout: float = 0.1
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    remat: Literal["none", "full", "dots"] = "none"

    def __post_init__(self) -> None:
        per_block = 4 if self.experts else 2
        if self.layers % per_block:
            below, above = self.layers // per_block * per_block, -(-self.layers // per_block) * per_block
            raise ValueError(
                f"layers={self.layers}: must be a multiple of {per_block} (half encoder, half decoder"
                f"{', every second an MoE layer' if self.experts else ''}); nearest are {below} and {above}"
            )
        if self.experts == 1:
            raise ValueError("experts=1: top-2 gating needs at least 2 experts; 0 makes the model dense")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout}: must be in [0, 1), the paper's is 0.1")

    @property
    def blocks(self) -> int:
        """Repeated units of the encoder, and as many of the decoder: a dense and an MoE layer, or one dense layer."""
        return self.layers // (4 if self.experts else 2)

    def tiny(self) -> "GShardM4Config":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        return dataclasses.replace(
            self,
            source_vocab=64,
            target_vocab=64,
            layers=4,
            model_dim=16,
            hidden_dim=32,
            heads=4,
            head_dim=8,
            experts=8 if self.experts else 0,
            group_size=32,
            dropout=0.1,
        )
