"""Decoders with mixtures of experts: the released ones, GLaM's, and a small one that runs on a CPU.

The counts of parameters are exact. How the released ones were trained is mostly not published: optimizer and schedule are those
of gpt.llama2_70b, the data are random tokens, as the vocabularies have no cache here, and the slice of a pod is one that fits.

They drop nothing in evaluation and generation, as released. In training what devices exchange must have a size that is known
beforehand, so that an expert serves 1.25 of its even share of a routing group, a row of 4096 tokens; a factor of 0 drops nothing
there either.
"""

import math
from dataclasses import replace
from typing import Any

from configs import gpt, gpt_released
from configs.experiment import Experiment
from configs.optimizers import Adafactor, InverseSqrt, gpt3_adamw
from models.execution import Execution
from models.gpt.config import GptConfig
from models.gpt.layouts import LAYOUTS
from models.parts.attention.config import AnyAttention, GroupedQuery, Latent, LayerVariant, QkNorm, Rotary, Yarn
from models.parts.moe.config import Capacity, Correction, ExpertGroups, ExpertsConfig, MoeConfig, MoeLosses, SharedExpert, TopK
from models.parts.nested import changed
from models.parts.transformer_config import Dense, NormConfig, Output
from models.sharding.layout import Layout
from models.sharding.layouts import data_parallel, fully_sharded

ROW = 4096
KEPT = "attention_in+attention_out+gate"


def moe_quickstart() -> Experiment:
    """gpt.quickstart with 8 experts in every second layer, two a token (GShard's gating)."""
    e = gpt.quickstart()
    moe = MoeConfig(experts=ExpertsConfig(count=8), group_size=256)
    return replace(e, model=replace(e.model, moe=moe), layout=data_parallel(1, 1))


PLAIN = MoeLosses()


def mixture(experts: ExpertsConfig, router: TopK, losses: MoeLosses = PLAIN, leading: int = 0) -> MoeConfig:
    """Returns a released decoder's mixture in every layer, with slots for a quarter more choices than there are."""
    capacity = Capacity(factor=1.25 * router.choices)
    return MoeConfig(experts=experts, router=router, losses=losses, capacity=capacity, group_size=ROW, every=1, leading=leading)


def mixtral_8x7b() -> Experiment:
    """Mixtral 8x7B (arXiv 2401.04088): 32 layers of 4096, 8 experts of 14336, two a token; 46,702,792,704 parameters.

    12,879,925,248 of them are used for a token. On 128 chips all weights are cut 128 ways and gathered, experts too: a layer's
    are 2.8 GB, 10 ms on the links, beside 119 ms of products forward. Modelled: 22.1 s, 45 % MFU (54 %
    if empty slots were work); 3 % of the step is exposed communication.
    """
    moe = mixture(ExpertsConfig(count=8), TopK(choices=2, normalized=True))
    attention = GroupedQuery(heads=32, head_dim=128, kv_heads=8)
    model = _decoder(32_000, 32, 4096, 14_336, attention, moe, positions=Rotary(base=1e6), norm=NormConfig(eps=1e-5))
    return _released(model, fully_sharded(128, 1))


def qwen3_30b_a3b() -> Experiment:
    """Qwen3 30B-A3B (arXiv 2505.09388): 48 layers of 2048, 128 experts of 768, eight a token; 30,532,122,624 parameters.

    RMS norms of each head's queries and keys; gates over their sum. On 128 chips all weights are cut 128 ways and gathered: the
    experts of a layer are 1.2 GB, where eight choices of a chip's 32,768 tokens would be 1.3 GB each way. Modelled: 9.8 s,
    34 % MFU (37 % with empty slots); 5 % of the step is exposed communication.
    """
    experts = ExpertsConfig(count=128, hidden_dim=768)
    moe = mixture(experts, TopK(choices=8, normalized=True), MoeLosses(balance_weight=0.001))
    attention = GroupedQuery(heads=32, head_dim=128, kv_heads=4, qk_norm=QkNorm(kind="rms"))
    return _released(_decoder(151_936, 48, 2048, 6144, attention, moe, positions=Rotary(base=1e6)), fully_sharded(128, 1))


def olmoe_1b_7b() -> Experiment:
    """OLMoE 1B-7B (arXiv 2409.02060): 16 layers of 2048, 64 experts of 1024, eight a token; 6,919,161,856 parameters.

    RMS norms of all queries and of all keys; gates are probabilities; weights 0.01 of the balance loss and 0.001 of the router's
    z-loss (Table 10). The paper trains it on 5.1e12 tokens with a rate of 4e-4, 1024 rows a step. All weights are gathered on 64
    chips, as Qwen3's are; experts that stay where they are wait for tokens 22 % of the step. Modelled: 6.0 s, 34 % MFU (39 %
    with empty slots).
    """
    moe = mixture(ExpertsConfig(count=64), TopK(choices=8), MoeLosses(z_weight=0.001))
    attention = GroupedQuery(heads=16, head_dim=128, qk_norm=QkNorm(kind="rms", over="all"))
    model = _decoder(50_304, 16, 2048, 1024, attention, moe, norm=NormConfig(eps=1e-5))
    return _released(model, fully_sharded(64, 1), rate=4e-4)


def gpt_oss_20b() -> Experiment:
    """gpt-oss 20b (arXiv 2508.10925): 24 layers of 2880, 32 experts of 2880, four a token; 20,914,757,184 parameters.

    Biases everywhere, the router's too; a sink for each head; windows of 128 in even layers; YaRN from 4096 to 131,072 positions;
    experts' own activation. All weights are gathered on 128 chips; 2880 is cut in 64. Modelled: 15.6 s, 20 % MFU (23 %
    with empty slots), for attention with sinks has no kernel here.
    """
    experts = ExpertsConfig(count=32, activation="clipped_swiglu", gated="yes")
    moe = mixture(experts, TopK(choices=4, normalized=True, bias=True), MoeLosses(balance_weight=0.001))
    rotary = Rotary(base=150_000.0, scaling=Yarn(factor=32.0, original=4096, whole=False, amplitude=_magnitude(32.0)))
    windows = (LayerVariant(window=128), LayerVariant())
    attention = GroupedQuery(heads=64, head_dim=64, kv_heads=8, biases="qkvo", sinks=True, pattern=windows)
    model = _decoder(201_088, 24, 2880, 2880, attention, moe, bias=True, positions=rotary, norm=NormConfig(eps=1e-5))
    return _released(model, fully_sharded(64, 2))


def _magnitude(factor: float) -> float:
    """Returns YaRN's factor of cosines and sines (arXiv 2309.00071, section 3.4)."""
    return 0.1 * math.log(factor) + 1


def deepseek_v3() -> Experiment:
    """DeepSeek-V3 (arXiv 2412.19437): 61 layers of 7168, of which three are dense, 256 experts of 2048, eight a token and one
    that all pass; latent attention; 671,026,419,200 parameters, the second prediction head left out.

    Sigmoid scores; a token's experts come from four of eight groups; gates add up to 2.5. The bias of the choice moves by .001 a
    step against the load; the paper's sequence-wise balance loss of weight 1e-4 is GShard's here. 14.8e12 tokens in batches of
    15,360 rows; here two for each of 1024 chips, as many as fit. Experts are cut over a plane of 64 chips, four each, to which
    tokens travel one after the other, and each expert over 16 along the third side of the torus. Modelled: 27.7 s, 30 % MFU
    (34 % with empty slots); 7 % of the step is exposed communication.
    """
    groups = ExpertGroups(count=8, chosen=4)
    router = TopK(choices=8, score="sigmoid", normalized=True, scale=2.5, correction=Correction(), groups=groups)
    experts = ExpertsConfig(count=256, hidden_dim=2048, shared=SharedExpert(hidden_dim=2048))
    moe = mixture(experts, router, MoeLosses(balance_weight=1e-4), leading=3)
    yarn = Yarn(factor=40.0, original=4096)  # cosines as they are: mscale and mscale_all_dim are alike
    attention = Latent(heads=128, rank=512, query_rank=1536, rotary_dim=64, scale_dim=192 / _magnitude(40.0) ** 4)
    model = _decoder(129_280, 61, 7168, 18_432, attention, moe, positions=Rotary(scaling=yarn))
    e = _released(model, LAYOUTS["expert_fsdp"](16, 64), rate=2.2e-4)
    data, execution = replace(e.data, batch_size=2048), replace(e.execution, exchange_parts=4)
    return replace(e, data=data, execution=execution)


def _decoder(
    vocab: int, layers: int, dim: int, hidden: int, attention: AnyAttention, moe: MoeConfig, *, bias: bool = False, **fields: Any
) -> GptConfig:
    """Returns a decoder of LLaMA's shape."""
    dense = Dense(hidden_dim=hidden, activation="silu", gated=True, bias=bias)
    shape: dict[str, Any] = dict(positions=Rotary(), feed_forward=dense, output=Output(tied=False))
    return GptConfig(vocab=vocab, layers=layers, model_dim=dim, attention=attention, moe=moe, **shape | fields)


def _released(model: GptConfig, layout: Layout, rate: float = 3e-4) -> Experiment:
    e = gpt_released.llama2_70b()
    return replace(
        e,
        model=model,
        layout=layout,
        data=replace(e.data, batch_size=1024, length=ROW),
        optimizer=gpt3_adamw(peak=rate, steps=500_000, warmup=2000, eps=1e-5),
        eval=replace(e.eval, batch_size=layout.devices),
        execution=Execution(dtype="bfloat16", remat="full", dispatch="all_to_all", loss_chunks=8),
    )


# --- GLaM: Du et al. 2021, arXiv 2112.06905, Table 4: every second layer is a mixture of 64 experts, GShard's top-2 -----------
# Its matrices without norms and relative biases add up to the counts below. With the vocabulary of 256,000 the largest has what
# the paper's table says of it (1.2T, 96.6B of them for a token); the others do with 32,000.


def glam_64b_64e() -> Experiment:
    """GLaM 64B/64E: 64 layers of 8192, experts of 32768: matrices of 1,161,755,099,136 parameters, the paper's 1.2T.

    The paper trains it on 1024 TPU-v4 chips, 1e6 tokens a step in rows of 1024, 600e9 in all: 456 MWh. They are few for so many
    chips: a pair of layers has 3.8 GB of dense weights and 1.1 GB of an expert to gather, 26 ms, beside 22 ms of products forward
    for 1024 tokens a chip. Hence 512 chips here, an expert to eight of them. Modelled: 10.7 s,
    41 % MFU; 24 % of the step is exposed communication, more than half of it sums of gradients.
    """
    e = _glam(layers=64, dim=8192, heads=128, vocab=256_000, layout=LAYOUTS["expert_fsdp"](8, 64))
    return replace(e, execution=replace(e.execution, remat="attention_out+mixture_out", dispatch="all_to_all"))


def glam_8b_64e() -> Experiment:
    """GLaM 8B/64E: 32 layers of 4096, experts of 16384: matrices of 142,942,928,896 parameters, the paper's 143B."""
    return _glam(layers=32, dim=4096, heads=32, vocab=32_000, layout=LAYOUTS["expert_two_d"](64, 4))


def _glam(*, layers: int, dim: int, heads: int, vocab: int, layout: Layout) -> Experiment:
    """Praxis' settings (layers/glam.py) where the paper is silent: the first layer of a pair is the mixture, whose experts are
    ungated ReLU beside gated GELU in dense layers; no 1/sqrt(D) in attention; router and balance as GShard's.

    Not theirs: logits of x / sqrt(M), which a scale of the last norm can learn; a z-loss of the output logits of 1e-4.
    """
    e = gpt.gspmd_128b()
    experts = ExpertsConfig(count=64, activation="relu", gated="no")
    moe = MoeConfig(experts=experts, group_size=1024, losses=MoeLosses(balance_weight=0.01), first=True)
    sizes = {"vocab": vocab, "layers": layers, "model_dim": dim, "feed_forward.hidden_dim": 4 * dim, "attention.heads": heads}
    return replace(
        e,
        model=changed(e.model, sizes | {"attention.head_dim": 128, "attention.scale_dim": 1.0, "moe": moe}),
        layout=layout,
        data=replace(e.data, batch_size=1024, length=1024),
        # Section 5.1: Adafactor, rate 0.01 for 10,000 steps, then falling with the inverse root of the step; no dropout.
        optimizer=Adafactor(schedule=InverseSqrt(scale=1.0, flat=10_000)),
        train=replace(e.train, steps=600_000, clip_norm=1.0),
        eval=replace(e.eval, batch_size=layout.devices),
        execution=Execution(dtype="bfloat16", remat=KEPT, dispatch="sort"),
    )
