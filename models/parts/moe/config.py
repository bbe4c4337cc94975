"""The fields of a mixture of experts, for every family that has one. No JAX here: configs are plain data."""

import dataclasses
from typing import Literal, get_args

from models.errors import nearest
from models.parts.numbers import check_finite

Activation = Literal["same", "relu", "gelu", "gelu_tanh", "silu", "clipped_swiglu"]
Balance = Literal["first_choices", "pooled"]
Score = Literal["softmax", "sigmoid"]
Gating = Literal["top2", "top1", "top_k", "expert_choice"]
SecondSlot = Literal["if_dispatched", "always"]
RouterDtype = Literal["float32", "same"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoeConfig:
    """Mixture-of-experts layers. The defaults are GShard's (arXiv 2006.16668); where it is silent, the source is named.

    Attributes:
      experts: of an MoE layer, at least 2.
      gating: "top2" (GShard), "top1" (Switch Transformer), "top_k" (V-MoE, arXiv 2106.05974, section 2: gates are probabilities,
        and their sum is not made one) or "expert_choice", which only an encoder can use: what an expert takes depends on later
        tokens, so the decoder beside it keeps "top2". models/parts/moe/routing.py has a table of them.
      choices: how many experts a token of "top_k" wants; 0 for the others, whose names say it.
      norm_topk: the gates of "top_k" are divided by their sum (Mixtral, arXiv 2401.04088, section 2.1; softmax over the chosen
        logits, as it and gpt-oss have it, is the same).
      score: what the router makes of its logits: probabilities over experts, or the "sigmoid" of each (DeepSeek-V3,
        arXiv 2412.19437, section 2.1.2).
      router_bias: a learned bias of the router's logits (gpt-oss).
      correction_bias: a number for each expert is added to its score where experts are chosen, not in the gates (DeepSeek-V3).
      correction_rate: by how much each training step moves that number, up for an expert with fewer choices in the batch than the
        mean and down for one with more: no optimizer changes it (DeepSeek-V3, sections 2.1.2 and 4.2: 0.001). 0 leaves it.
      expert_groups, chosen_groups: experts are in so many groups, and a token's are taken from the `chosen_groups` whose two best
        scores have the largest sums (DeepSeek-V3: 8 and 4).
      gate_scale: multiplies the gates (DeepSeek-V3: 2.5).
      hidden_dim: of an expert; 0 is that of the dense layers.
      activation, gated: of experts where they differ from dense layers'. "clipped_swiglu" (gpt-oss) is
        (min(u, 7) + 1) g sigmoid(1.702 g) of the gate g = min(g, 7), with u from -7 on.
      shared_dim: hidden size of a dense network that every token passes besides its experts (DeepSeekMoE, arXiv 2401.06066); 0
        has none.
      shared_gate: its output is multiplied by the sigmoid of a learned product (Qwen2-MoE).
      group_size: tokens S of a routing group; N / group_size groups are routed independently. GShard gives
        "one group per core", hence 2048 to 8192 tokens; here it belongs to the model, not to the mesh. Groups may span
        rows, but not where rows are dealt out to microbatches, of the step or of a pipeline.
      capacity_factor: slots of an expert per group, times E / S; it includes both choices (C = 2S/E in GShard). 0 is
        dropless: every choice is served, for which "ragged" is the dispatch.
      eval_capacity_factor: the same outside training, except of expert choice. Not in the papers. Dropless by default, as a
        token whose expert is full for others' sake would have logits that depend on what else is in the batch.
      second_expert_threshold: a second expert is dispatched if its normalised gate over this exceeds uniform(0, 1):
        0.5 is GShard's "proportional to twice its gate" (Lingvo: policy random, threshold 0.5).
      second_expert_slot: which second choices take one of their expert's slots: those that are dispatched (Lingvo), or "always",
        also those that are dropped at random (GShard, Algorithm 1), so that the expert is full sooner.
      input_jitter: in training, the router's inputs are multiplied by uniform(1 - this, 1 + this) (Switch Transformer: 0.01).
      batch_priority: an expert's slots go to the tokens with the largest gates, not to the first of a group (V-MoE, arXiv
        2106.05974, section 4.1); never in a decoder, where a token's expert would depend on later tokens.
      min_capacity: the fewest slots of an expert per group (Switch Transformer's code: 4).
      capacity_multiple: slots are rounded up to a multiple of this (V-MoE's code: 4); 0 rounds them down to a whole number.
      router_noise: in training, standard deviation of what is added to the router's logits, times the number of experts (V-MoE,
        section 2: 1); gates are those of the noisy logits.
      router_std: standard deviation of the initial router; 0 is that of the other matrices (Switch Transformer's code: 0.02).
      router_dtype: what the router computes in: "float32" at least, or the "same" as the layer, whose bfloat16 Switch Transformer
        found unstable (section 2.4).
      dropout: in training, on the hidden layer inside experts (Switch Transformer fine-tunes with 0.4).
      token_dropout: in training, the probability that a token gets nothing from its experts; otherwise their outputs are
        multiplied by one less this (NLLB, arXiv 2207.04672, section 6.2.2: 0.2).
      balance: the auxiliary loss: of "first_choices" in each group and layer, or of all K choices "pooled" over groups and layers
        (Mixtral's, Qwen's and gpt-oss's in `transformers`), which compares all of a batch.
      balance_weight: weight of the auxiliary loss (Lingvo's and Switch Transformer's 0.01; GShard does not say).
      importance_weight, load_weight: weights of V-MoE's auxiliary losses (appendix A; in its code 0.005 each).
      z_weight: weight of the router z-loss (ST-MoE, arXiv 2202.08906, section 3.2: 0.001); 0, which computes none, is GShard
        and Switch Transformer, which have no such loss.
    """

    experts: int
    gating: Gating = "top2"
    choices: int = 0
    norm_topk: bool = False
    score: Score = "softmax"
    router_bias: bool = False
    correction_bias: bool = False
    correction_rate: float = 0.001
    expert_groups: int = 1
    chosen_groups: int = 1
    gate_scale: float = 1.0
    hidden_dim: int = 0
    activation: Activation = "same"
    gated: Literal["same", "yes", "no"] = "same"
    shared_dim: int = 0
    shared_gate: bool = False
    group_size: int = 2048
    capacity_factor: float = 2.0
    eval_capacity_factor: float = 0.0
    second_expert_threshold: float = 0.5
    second_expert_slot: SecondSlot = "if_dispatched"
    input_jitter: float = 0.0
    batch_priority: bool = False
    min_capacity: int = 1
    capacity_multiple: int = 0
    router_noise: float = 0.0
    router_std: float = 0.0
    router_dtype: RouterDtype = "float32"
    dropout: float = 0.0
    token_dropout: float = 0.0
    balance: Balance = "first_choices"
    balance_weight: float = 0.01
    importance_weight: float = 0.0
    load_weight: float = 0.0
    z_weight: float = 0.0

    def __post_init__(self) -> None:
        check_finite(self)
        if self.experts < 2:
            raise ValueError(f"experts={self.experts}: a router needs at least 2 to choose from")
        kinds = dict(
            gating=Gating,
            second_expert_slot=SecondSlot,
            score=Score,
            activation=Activation,
            balance=Balance,
            gated=Literal["same", "yes", "no"],
            router_dtype=RouterDtype,
        )
        for name, kind in kinds.items():
            if (value := getattr(self, name)) not in get_args(kind):
                raise ValueError(f"{name}={value!r}: no such {name}{nearest(value, get_args(kind))}")
        for name in ("capacity_factor", "eval_capacity_factor"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be positive, or 0 to serve every choice")
        if (self.gating == "top_k" and not 1 <= self.choices <= self.experts) or (self.gating != "top_k" and self.choices):
            need = f"from 1 to experts={self.experts}" if self.gating == "top_k" else "0"
            raise ValueError(f"choices={self.choices}: gating={self.gating!r} needs {need}")
        self._check_router()
        if self.load_weight and not self.router_noise:
            raise ValueError(f"load_weight={self.load_weight}: loads are probabilities under router_noise, which is 0")
        if self.gating == "expert_choice" and not self.capacity_factor:
            raise ValueError("capacity_factor=0: of expert_choice it is a token's experts on average; the paper's is 2")
        if self.correction_rate < 0:
            raise ValueError(f"correction_rate={self.correction_rate}: must be positive, or 0 to leave the bias as it is")
        if self.z_weight < 0:
            raise ValueError(f"z_weight={self.z_weight}: must be positive, or 0 for no router z-loss; ST-MoE's is 0.001")
        if self.min_capacity < 1:
            raise ValueError(f"min_capacity={self.min_capacity}: must be 1 or more")
        for name in ("dropout", "token_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be in [0, 1)")
        if not 0 <= self.input_jitter < 1:
            raise ValueError(f"input_jitter={self.input_jitter}: must be in [0, 1), Switch Transformer's is 0.01")

    def _check_router(self) -> None:
        changed = {
            "norm_topk": self.norm_topk,
            "score": self.score != "softmax",
            "correction_bias": self.correction_bias,
            "expert_groups": self.expert_groups != 1,
            "gate_scale": self.gate_scale != 1,
        }
        if self.gating != "top_k" and any(changed.values()):
            name = next(name for name, differs in changed.items() if differs)
            raise ValueError(f"{name}={getattr(self, name)!r}: only gating='top_k' has it, not {self.gating!r}")
        if self.experts % self.expert_groups:
            fits = [n for n in range(1, self.experts + 1) if self.experts % n == 0]
            best = min(fits, key=lambda n: abs(n - self.expert_groups))
            raise ValueError(f"expert_groups={self.expert_groups}: must divide experts={self.experts}; nearest is {best}")
        available = self.experts // self.expert_groups * self.chosen_groups
        if not 1 <= self.chosen_groups <= self.expert_groups or self.choices > available:
            raise ValueError(
                f"chosen_groups={self.chosen_groups}: must be from 1 to expert_groups={self.expert_groups}, and their experts at "
                f"least choices={self.choices}"
            )
        if self.shared_gate and not self.shared_dim:
            raise ValueError("shared_gate=True: there is no shared expert; shared_dim is its hidden size")
        if self.activation == "clipped_swiglu" and self.gated != "yes":
            raise ValueError(f"gated={self.gated!r}: activation='clipped_swiglu' is of a gate; nearest is 'yes'")

    def shrunk(self, group_size: int) -> "MoeConfig":
        """Returns a mixture small enough for a test, of 8 experts; the variant stays."""
        grouped = self.expert_groups > 1
        return dataclasses.replace(
            self,
            experts=8,
            group_size=group_size,
            min_capacity=1,
            choices=min(self.choices, 3),
            hidden_dim=self.hidden_dim and 16,
            shared_dim=self.shared_dim and 16,
            expert_groups=4 if grouped else 1,
            chosen_groups=2 if grouped else 1,
        )

    def comparable(self, group_size: int) -> "MoeConfig":
        """Returns the mixture with nothing random, in groups of this size (models.family.Family.deterministic)."""
        return dataclasses.replace(
            self,
            second_expert_threshold=0.0,
            group_size=group_size,
            input_jitter=0.0,
            dropout=0.0,
            token_dropout=0.0,
            router_noise=0.0,
            load_weight=0.0,
        )

    @property
    def wanted(self) -> int:
        """How many experts a token of a decoder wants."""
        return self.choices or {"top1": 1, "top2": 2}[self.decoder_gating]

    @property
    def decoder_gating(self) -> Gating:
        """A decoder's gating: which experts a token gets may not depend on later tokens."""
        return "top2" if self.gating == "expert_choice" else self.gating

    def factor(self, gating: Gating, training: bool) -> float:
        """The capacity factor in force: expert choice's is part of the model, the others' only bounds their buffers."""
        return self.capacity_factor if training or gating == "expert_choice" else self.eval_capacity_factor
