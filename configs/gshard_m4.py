"""GShard M4's experiments: the rows of the paper's Table 1, and a small one for a first run.

GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding, arXiv 2006.16668. All of them
translate many languages into English; BLEU is the paper's average over 100 languages, on Google's own data, which is not
public, so that no run here can reproduce it: "bilingual + delta" is what it gained over bilingual baselines (30.8).

One of the paper's "cores" (TPU v3) is one TPU-v4 chip here, and activations are bfloat16 (the paper: float32), except
the router's. The paper keeps the dense weights on every core; here they are cut over one axis of the mesh, since a chip's
optimizer would have three times as many of them as of its experts' weights. From 36 layers on the paper recomputes; here the
experts' inputs are kept, so that no token is sent twice, and so are the large products. The paper gives neither
sequence nor group length; its batch sizes and capacities imply a batch of 2048 tokens a core in groups of one core's tokens
(8192 at 128 cores). Rows of 128 tokens are our choice.
"""

from dataclasses import replace

from configs.experiment import Checkpointing, Experiment, Train
from configs.optimizers import Adafactor, AdamW, Constant, Cosine
from data.translation.config import Translate, TranslationData
from models.execution import Execution
from models.gshard_m4.config import GShardM4Config
from models.gshard_m4.layouts import LAYOUTS
from models.parts.attention.config import GroupedQuery
from models.parts.moe.config import Capacity, ExpertsConfig, MoeConfig, Top1
from models.parts.nested import changed
from models.parts.transformer_config import Dense, TokenLoss
from models.sharding import expert_layouts as layouts

DEEP = {"model.layers": 36, "execution.remat": "dispatched+up+attention_in+attention_out+ffn_out"}


def quickstart() -> Experiment:
    """A first run: 96 languages into English, from the message catalogues of three Python packages, on a laptop's CPU.

    Eight experts on eight simulated devices, one each, so that tokens really travel between devices. Not from the paper:
    sizes are chosen for two CPU cores and six minutes. Expect a stripped BLEU of about 4 on held-out strings, against
    0.7 for copying the source.
    """
    return Experiment(
        model=GShardM4Config(
            source_vocab=4096,
            target_vocab=2048,
            layers=4,
            model_dim=192,
            attention=GroupedQuery(heads=4, head_dim=48),
            feed_forward=Dense(hidden_dim=512),
            moe=MoeConfig(experts=ExpertsConfig(count=8), group_size=64),
            dropout=0.0,
        ),
        layout=layouts.expert_parallel(1, 8),
        data=TranslationData(cache="m4_quickstart", batch_size=32, source_length=64, target_length=48),
        # The paper's rate, 0.01 relative to each tensor's scale, is for a million steps; a short run bears more, then less.
        optimizer=Adafactor(schedule=Cosine(peak=0.03, steps=500, warmup=40, floor=0.02)),
        train=Train(steps=500, log_every=10, checkpoint=Checkpointing(every=100, keep=2)),
        eval=Translate(per_language=2, beams=4, max_length=40, batch_size=128),
    )


def iberian() -> Experiment:
    """The run of `make quickstart`: Spanish and Portuguese into English, from message catalogues of eleven Python packages.

    Eight experts on eight simulated devices, one each. Not from the paper: one layer on each side, both of experts, learns as
    much a step as two, for less. Expect a stripped BLEU of 8 to 10 on held-out strings, against 3 for copying the source.
    """
    return Experiment(
        model=GShardM4Config(
            source_vocab=4096,
            target_vocab=2048,
            layers=2,
            model_dim=128,
            attention=GroupedQuery(heads=4, head_dim=32),
            feed_forward=Dense(hidden_dim=384),
            moe=MoeConfig(experts=ExpertsConfig(count=8), every=1, group_size=64),
            dropout=0.0,  # it costs a tenth of a step, and pays from the third pass on
        ),
        layout=LAYOUTS["expert_fsdp"](1, 8),
        data=TranslationData(cache="m4_iberian", batch_size=32, source_length=64, target_length=48),
        optimizer=AdamW(schedule=Cosine(peak=6e-3, steps=1200, warmup=70, floor=0.02), b2=0.98, weight_decay=0.01),
        train=Train(steps=1200, log_every=20, checkpoint=Checkpointing(every=300, keep=2)),
        eval=Translate(per_language=2, beams=4, max_length=40, batch_size=128),
    )


def bench_67m() -> Experiment:
    """A mixture of 8 experts, one a token, on random tokens, single precision: what speed on CPUs is compared on.

    4 + 4 layers as Switch Transformer counts them; 67 M parameters, and 33 M in the two tables that are only looked up.
    """
    return Experiment(
        model=GShardM4Config(
            source_vocab=32_000,
            target_vocab=32_000,
            layers=8,
            model_dim=512,
            attention=GroupedQuery(heads=8, head_dim=64),
            feed_forward=Dense(hidden_dim=1024),
            moe=MoeConfig(experts=ExpertsConfig(count=8), router=Top1(), group_size=1024, capacity=Capacity(factor=1.25)),
            loss=TokenLoss(label_smoothing=0.0),
            dropout=0.0,
        ),
        layout=layouts.expert_parallel(1, 1),
        data=TranslationData(batch_size=8, source_length=128, target_length=128),
        optimizer=AdamW(schedule=Constant(value=1e-4), weight_decay=0.01),
        train=Train(steps=1000),
        eval=Translate(),
        execution=Execution(unroll=0),
    )


def moe_128e_12l() -> Experiment:
    """MoE(128E, 12L), Table 1: 13.3e9 parameters (stated 12.5B), 128 cores, BLEU 36.7 (bilingual + 5.9).

    Batch 1M tokens, 1.01M steps at 2.16 steps/s: 5.4 days, 1.9 core-years.
    """
    # Parameters: 6 MoE layers x (128 experts x 2 x 1024 x 8192 + router) = 12.9e9, and 0.4e9 dense.
    # Tokens: 8192 rows x 128 = 2^20 source tokens a step; 1T source tokens in 1.0M steps.
    return Experiment(
        model=GShardM4Config(layers=12, moe=MoeConfig(experts=ExpertsConfig(count=128), group_size=8192)),
        layout=layouts.expert_parallel_2d_fsdp(16, 8),
        data=TranslationData(cache="m4_102", batch_size=8192),
        optimizer=Adafactor(),
        train=Train(steps=1_010_000, checkpoint=Checkpointing(every=5000, keep=5), eval_every=20_000, log_every=100),
        eval=Translate(per_language=40, max_length=128, batch_size=2048),  # a multiple of every layout's devices
        execution=Execution(dtype="bfloat16"),
    )


def moe_512e_12l() -> Experiment:
    """MoE(512E, 12L), Table 1: 51.9e9 parameters (stated 50B), 512 cores, BLEU 40.0 (bilingual + 9.2).

    Batch 1M tokens, 992k steps at 3.28 steps/s: 3.5 days, 4.9 core-years.
    """
    # 2^20 tokens over 512 cores are groups of 2048 tokens; capacity 2 x 2048 / 512 = 8.
    moe, layout = MoeConfig(experts=ExpertsConfig(count=512)), layouts.expert_parallel_2d_fsdp(64, 8)
    return changed(moe_128e_12l(), {"model.moe": moe, "layout": layout, "train.steps": 992_000})


def moe_2048e_12l() -> Experiment:
    """MoE(2048E, 12L), Table 1: 206.6e9 parameters (stated 200B), 2048 cores, BLEU 41.3 (bilingual + 10.5).

    Batch 4M tokens, 260k steps at 2.15 steps/s: 1.4 days, 7.5 core-years.
    """
    # 2^22 tokens over 2048 cores are groups of 2048 tokens; capacity 2 x 2048 / 2048 = 2.
    sizes = {"model.moe.experts.count": 2048, "data.batch_size": 32_768, "train.steps": 260_000}
    return changed(moe_512e_12l(), sizes | {"layout": layouts.expert_parallel_2d_fsdp(128, 16)})


def moe_128e_36l() -> Experiment:
    """MoE(128E, 36L), Table 1: 39.5e9 parameters (stated 37B), 128 cores, BLEU 39.0 (bilingual + 8.2).

    Batch 1M tokens, 1.00M steps at 0.67 steps/s: 17.3 days, 6.1 core-years; 28 % of cycles recompute (Figure 7).
    Modelled: 0.52 s a step.
    """
    return changed(moe_128e_12l(), DEEP | {"train.steps": 1_000_000})


def moe_512e_36l() -> Experiment:
    """MoE(512E, 36L), Table 1: 155.5e9 parameters (stated 150B), 512 cores, BLEU 43.7 (bilingual + 12.9).

    Batch 1M tokens, 998k steps at 1.05 steps/s: 11.0 days, 15.5 core-years. Modelled: 0.18 s a step.
    """
    return changed(moe_512e_12l(), DEEP | {"train.steps": 998_000})


def moe_2048e_36l() -> Experiment:
    """MoE(2048E, 36L), Table 1, the paper's best: 619.4e9 parameters (stated 600B), 2048 cores, BLEU 44.3 (+ 13.5).

    Batch 4M tokens, 249k steps at 0.72 steps/s: 4.0 days, 22.4 core-years. Training cross-entropy 0.7 after 82e9
    tokens, 0.6 after 175e9, 0.5 after 542e9 (Table 3). Modelled: 0.22 s a step, 3 % of it waiting for all-to-alls.
    """
    # 18 MoE layers x 2048 experts x 2 x 1024 x 8192 = 618.5e9; routers, attention, dense layers, embeddings 0.9e9.
    return changed(moe_2048e_12l(), DEEP | {"train.steps": 249_000})


def moe_2048e_60l() -> Experiment:
    """MoE(2048E, 60L): 1032e9 parameters (stated 1T), 2048 cores; tried in bfloat16, unstable, no BLEU reported.

    34 % of cycles recompute (Figure 7). Modelled: 0.35 s a step.
    """
    return changed(moe_2048e_36l(), {"model.layers": 60})


def dense_96l() -> Experiment:
    """The dense baseline T(96L), Table 2: 2.35e9 parameters (stated 2.3B), 2048 cores, BLEU 36.9 (bilingual + 6.1).

    Batch 4M tokens, 300k steps in about 42 days, 235.5 core-years. The paper pipelines it with GPipe; here weights are cut
    over all chips. Heads of 64 are inferred: 128 would make 2.95e9.
    """
    base = moe_2048e_12l()
    return replace(
        base,
        model=GShardM4Config(layers=96, attention=GroupedQuery(heads=16, head_dim=64)),
        layout=LAYOUTS["fully_sharded"](256, 8),
        train=replace(base.train, steps=300_000),
        execution=Execution(remat="full"),
    )
