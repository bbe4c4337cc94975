"""The settings of a mixture of experts, for every family that has one. No JAX here: configs are plain data."""

import dataclasses
from typing import Any, ClassVar, Literal

from models.parts.numbers import check_finite, check_least, check_literals, check_within, nearest_divisor

Activation = Literal["same", "relu", "gelu", "gelu_tanh", "silu", "clipped_swiglu"]
Gated = Literal["same", "yes", "no"]
Balance = Literal["first_choices", "pooled"]
Score = Literal["softmax", "sigmoid"]
SecondSlot = Literal["if_dispatched", "always"]
RouterDtype = Literal["float32", "same"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """Noise that is added to a router's logits in training (V-MoE, arXiv 2106.05974, section 2); gates are those of noisy logits.

    Attributes:
      std: standard deviation, times the number of experts (V-MoE: 1).
      load_weight: weight of the auxiliary loss of loads, which are probabilities under this noise (appendix A; its code: 0.005).
    """

    std: float = 1.0
    load_weight: float = 0.0

    def __post_init__(self) -> None:
        check_finite(self)
        if not self.std > 0:
            raise ValueError(f"std={self.std}: must be positive; a router without noise has noise=None")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """The settings that all routers share; its subclasses are the gatings (models/parts/moe/routing.py has a table of them).

    Attributes:
      bias: a learned bias of the logits (gpt-oss).
      init_std: standard deviation of the initial matrix (Switch Transformer's code: 0.02); 0 is that of the layer's others.
      dtype: what logits are computed in: "float32" at least, or the "same" as the layer, whose bfloat16 Switch Transformer
        found unstable (section 2.4).
      jitter: in training, inputs are multiplied by uniform(1 - jitter, 1 + jitter) (Switch Transformer: 0.01).
      noise: added to the logits in training.
    """

    gating: ClassVar[str]

    bias: bool = False
    init_std: float = 0.0
    dtype: RouterDtype = "float32"
    jitter: float = 0.0
    noise: Noise | None = None

    def __post_init__(self) -> None:
        check_finite(self)
        check_literals(self)
        check_within(self, "jitter", "Switch Transformer's is 0.01")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Top1(RouterConfig):
    """Switch Transformer's router (arXiv 2101.03961): the best expert, weighted with its probability."""

    gating: ClassVar[str] = "top1"
    choices: ClassVar[int] = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Top2(RouterConfig):
    """GShard's router (arXiv 2006.16668): the two best experts, whose gates sum to one.

    Attributes:
      second_threshold: a second expert is dispatched if its normalised gate over this exceeds uniform(0, 1): 0.5 is GShard's
        "proportional to twice its gate" (Lingvo: policy random, threshold 0.5).
      second_slot: which second choices take one of their expert's slots: those that are dispatched (Lingvo), or "always", also
        those that are dropped at random (GShard, Algorithm 1), so that the expert is full sooner.
    """

    gating: ClassVar[str] = "top2"
    choices: ClassVar[int] = 2

    second_threshold: float = 0.5
    second_slot: SecondSlot = "if_dispatched"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Correction:
    """A number for each expert that is added to its score where experts are chosen, not in the gates (DeepSeek-V3, 2412.19437).

    Attributes:
      rate: how far each training step moves that number, up for an expert with fewer choices in the batch than the mean and down
        for one with more: no optimizer changes it (sections 2.1.2 and 4.2: 0.001). 0 leaves it.
    """

    rate: float = 0.001

    def __post_init__(self) -> None:
        check_finite(self)
        if self.rate < 0:
            raise ValueError(f"rate={self.rate}: must be positive, or 0 to leave the correction as it is")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertGroups:
    """Groups of experts; a token's are taken from the `chosen` groups whose two best scores have the largest sums.

    Attributes:
      count: number of groups (DeepSeek-V3: 8).
      chosen: of them for a token (DeepSeek-V3: 4).
    """

    count: int
    chosen: int

    def __post_init__(self) -> None:
        if not 1 <= self.chosen <= self.count:
            raise ValueError(f"chosen={self.chosen}: must be from 1 to count={self.count}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopK(RouterConfig):
    """The router of V-MoE (arXiv 2106.05974, section 2) and of released decoders: the best experts by score.

    Attributes:
      choices: experts of a token.
      score: what is made of the logits: probabilities over experts, or the "sigmoid" of each (DeepSeek-V3, section 2.1.2).
      normalized: gates are divided by their sum (Mixtral, arXiv 2401.04088, section 2.1; softmax over the chosen logits, as it
        and gpt-oss have it, is the same). V-MoE's are scores as they are.
      scale: multiplies the gates (DeepSeek-V3: 2.5).
      correction: of the scores that choose.
      groups: of experts, which bound a token's choices.
    """

    gating: ClassVar[str] = "top_k"

    choices: int
    score: Score = "softmax"
    normalized: bool = False
    scale: float = 1.0
    correction: Correction | None = None
    groups: ExpertGroups | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertChoice(RouterConfig):
    """Experts choose tokens (arXiv 2202.09368). Only an encoder can use it: what an expert takes depends on later tokens, so the
    decoder beside it has `Top2`."""

    gating: ClassVar[str] = "expert_choice"
    choices: ClassVar[int] = 0


CausalRouter = Top1 | Top2 | TopK
AnyRouter = CausalRouter | ExpertChoice


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capacity:
    """Slots of an expert for the tokens of a routing group.

    Attributes:
      factor: slots times E / S; it includes all of a token's choices (C = 2S/E in GShard). 0 is dropless: every choice is
        served, for which "ragged" is the dispatch. Of expert choice it is a token's experts on average.
      eval_factor: the same outside training, except of expert choice. Not in the papers. Dropless by default, as a token whose
        expert is full for others' sake would have logits that depend on what else is in the batch.
      least: the fewest slots (Switch Transformer's code: 4).
      multiple: slots are rounded up to a multiple of this (V-MoE's code: 4); 0 rounds them down to a whole number.
      batch_priority: slots go to the tokens with the largest gates, not to the first of a group (V-MoE, arXiv 2106.05974,
        section 4.1); never in a decoder, where a token's expert would depend on later tokens.
    """

    factor: float = 2.0
    eval_factor: float = 0.0
    least: int = 1
    multiple: int = 0
    batch_priority: bool = False

    def __post_init__(self) -> None:
        check_finite(self)
        for name in ("factor", "eval_factor"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be positive, or 0 to serve every choice")
        check_least(self, 1, "least")

    def factor_of(self, router: AnyRouter, training: bool) -> float:
        """Returns the factor in force: expert choice's is part of the model, the others' only bounds their buffers."""
        return self.factor if training or isinstance(router, ExpertChoice) else self.eval_factor


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedExpert:
    """A dense network that every token passes besides its experts (DeepSeekMoE, arXiv 2401.06066).

    Attributes:
      hidden_dim: its hidden size.
      gated: its output is multiplied by the sigmoid of a learned product (Qwen2-MoE).
    """

    hidden_dim: int
    gated: bool = False

    def __post_init__(self) -> None:
        if self.hidden_dim < 1:
            raise ValueError(f"hidden_dim={self.hidden_dim}: must be 1 or more; without a shared expert it is shared=None")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """The experts of a layer.

    Attributes:
      count: at least 2.
      hidden_dim: hidden size of an expert; 0 means the dense layers'.
      activation, gated: where they differ from dense layers'. "clipped_swiglu" (gpt-oss) is (min(u, 7) + 1) g sigmoid(1.702 g)
        of the gate g = min(g, 7), with u from -7 on.
      dropout: in training, on the hidden layer inside experts (Switch Transformer fine-tunes with 0.4).
      token_dropout: in training, the probability that a token gets nothing from its experts; otherwise their outputs are
        multiplied by one less this (NLLB, arXiv 2207.04672, section 6.2.2: 0.2).
      shared: the expert of all tokens.
    """

    count: int
    hidden_dim: int = 0
    activation: Activation = "same"
    gated: Gated = "same"
    dropout: float = 0.0
    token_dropout: float = 0.0
    shared: SharedExpert | None = None

    def __post_init__(self) -> None:
        check_finite(self)
        check_literals(self)
        if self.count < 2:
            raise ValueError(f"count={self.count}: a router needs at least 2 experts to choose from")
        for name in ("dropout", "token_dropout"):
            check_within(self, name)
        if self.activation == "clipped_swiglu" and self.gated != "yes":
            raise ValueError(f"gated={self.gated!r}: activation='clipped_swiglu' is of a gate; nearest is 'yes'")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoeLosses:
    """Auxiliary losses of a mixture, and their weights.

    Attributes:
      balance: the balance loss: of "first_choices" in each group and layer, or of all K choices "pooled" over groups and layers
        (Mixtral's, Qwen's and gpt-oss's in `transformers`), which compares all of a batch.
      balance_weight: Lingvo's and Switch Transformer's 0.01; GShard does not say.
      importance_weight: of V-MoE's importance loss (appendix A; its code: 0.005).
      z_weight: of the router z-loss (ST-MoE, arXiv 2202.08906, section 3.2: 0.001); 0, which computes none, is GShard and
        Switch Transformer, which have no such loss.
    """

    balance: Balance = "first_choices"
    balance_weight: float = 0.01
    importance_weight: float = 0.0
    z_weight: float = 0.0

    def __post_init__(self) -> None:
        check_finite(self)
        check_literals(self)
        if self.z_weight < 0:
            raise ValueError(f"z_weight={self.z_weight}: must be positive, or 0 for no router z-loss; ST-MoE's is 0.001")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoeConfig:
    """Mixture-of-experts layers. The defaults are GShard's (arXiv 2006.16668); where it is silent, the source is named.

    Attributes:
      router: chooses the experts of a token, or the tokens of an expert.
      group_size: tokens S of a routing group; N / group_size groups are routed independently. GShard gives "one group per
        core", hence 2048 to 8192 tokens; here it belongs to the model, not to the mesh. Groups may span rows, but not where
        rows are dealt out to microbatches, of the step or of a pipeline.
      every: a mixture is one of so many layers, the last; GShard's every second.
      first: it is the first of them (GLaM).
      leading: dense layers before the stack of units with mixtures (DeepSeek-V3: 3). They run where the embedding does, so that
        pipeline stages are equal.
    """

    experts: ExpertsConfig
    router: AnyRouter = Top2()
    capacity: Capacity = Capacity()
    losses: MoeLosses = MoeLosses()
    group_size: int = 2048
    every: int = 2
    first: bool = False
    leading: int = 0

    def __post_init__(self) -> None:
        check_least(self, 1, "every")
        experts, router = self.experts.count, self.router
        if isinstance(router, ExpertChoice) and not self.capacity.factor:
            raise ValueError("capacity.factor=0: of expert choice it is a token's experts on average; the paper's is 2")
        if not isinstance(router, TopK):
            return
        if not 1 <= router.choices <= experts:
            raise ValueError(f"router.choices={router.choices}: must be from 1 to experts.count={experts}")
        if (groups := router.groups) is None:
            return
        if experts % groups.count:
            best = nearest_divisor(experts, groups.count)
            raise ValueError(f"router.groups.count={groups.count}: must divide experts.count={experts}; nearest is {best}")
        if router.choices > experts // groups.count * groups.chosen:
            raise ValueError(
                f"router.groups.chosen={groups.chosen}: the experts of these groups must be at least choices={router.choices}"
            )

    def refuse_leading(self) -> None:
        """Raises ValueError for dense layers before a stack that has none."""
        if self.leading:
            raise ValueError(f"moe.leading={self.leading}: there are no such layers here; nearest is 0")

    def shrunk(self, group_size: int) -> "MoeConfig":
        """Returns a mixture small enough for a test, of 8 experts; the variant stays."""
        experts, router = self.experts, self.router
        shared = experts.shared and dataclasses.replace(experts.shared, hidden_dim=16)
        experts = dataclasses.replace(experts, count=8, hidden_dim=experts.hidden_dim and 16, shared=shared)
        if isinstance(router, TopK):
            groups = router.groups and ExpertGroups(count=4, chosen=2)
            router = dataclasses.replace(router, choices=min(router.choices, 3), groups=groups)
        capacity = dataclasses.replace(self.capacity, least=1)
        return dataclasses.replace(self, experts=experts, router=router, capacity=capacity, group_size=group_size)

    def comparable(self, group_size: int) -> "MoeConfig":
        """Returns the mixture with nothing random, in groups of this size (models.protocol.Family.comparable)."""
        certain: dict[str, Any] = dict(second_threshold=0.0) if isinstance(self.router, Top2) else {}
        router = dataclasses.replace(self.router, jitter=0.0, noise=None, **certain)
        experts = dataclasses.replace(self.experts, dropout=0.0, token_dropout=0.0)
        return dataclasses.replace(self, experts=experts, router=router, group_size=group_size)

    @property
    def decoder_router(self) -> CausalRouter:
        """The router of a decoder: which experts a token gets may not depend on later tokens."""
        if not isinstance(self.router, ExpertChoice):
            return self.router
        return Top2(**{field.name: getattr(self.router, field.name) for field in dataclasses.fields(RouterConfig)})
