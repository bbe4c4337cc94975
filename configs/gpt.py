"""GPT's experiments: published decoders as rows of one configurable model, and small ones that run on a CPU.

Counts are exact where the source gives them; where sizes are rounded, the text says so. Where a paper's data is not public the
experiment reads C4 by its TFDS name with GPT-2's vocabulary, or random tokens where the vocabulary is not public either.
"""

from dataclasses import replace
from typing import Any

from configs.experiment import Checkpointing, Experiment, HeldOut, Train
from configs.optimizers import Adafactor, AdamW, Constant, InverseSqrt, gpt3_adamw
from configs.table import row
from data.text.config import TextData
from models.execution import Execution
from models.gpt.config import GptConfig
from models.parts.attention.config import GroupedQuery, Learned, RelativeBuckets, Rotary
from models.parts.nested import changed
from models.parts.transformer_config import Dense, NormConfig
from models.sharding.layout import Layout, rules
from models.sharding.layouts import also, data_parallel, fully_sharded, pipelines, two_d, two_d_sequence


def _gpt2_block(*, layers: int, dim: int, heads: int, rows: int, vocab: int = 50_257, **fields: Any) -> GptConfig:
    """Returns GPT-2's block (section 2.3): pre-norm, biases everywhere, learned positions, GELU, tied embedding."""
    return GptConfig(
        vocab=vocab,
        layers=layers,
        model_dim=dim,
        attention=GroupedQuery(heads=heads, head_dim=dim // heads, biases="qkvo"),
        positions=Learned(rows=rows),
        feed_forward=Dense(hidden_dim=4 * dim, activation="gelu_tanh", bias=True),
        norm=NormConfig(bias=True, kind="layer", eps=1e-5),
        **fields,
    )


def quickstart() -> Experiment:
    """A first decoder: 5.5 M parameters on 5.9 M words of English (Brown, presidents, Moby Dick, chat), minutes on a CPU.

    Rotary positions, RMS norms and a gated feed-forward network, as in LLaMA; byte-level BPE of 8,192 ids.
    """
    return Experiment(
        model=GptConfig(
            vocab=8192,
            layers=4,
            model_dim=256,
            attention=GroupedQuery(heads=4, head_dim=64, kv_heads=2),
            positions=Rotary(),
            feed_forward=Dense(hidden_dim=704, activation="silu", gated=True),
        ),
        layout=data_parallel(2, 1),
        data=TextData(cache="gpt_small", batch_size=8, length=256),
        optimizer=gpt3_adamw(peak=2e-3, steps=600, warmup=40),
        train=Train(steps=600, clip_norm=1.0, log_every=10, checkpoint=Checkpointing(every=200, keep=2), eval_every=0),
        eval=HeldOut(limit=200, batch_size=16),
    )


def small_decoder() -> Experiment:
    """A decoder that is short of capacity, on text that it sees once: what dense models and mixtures are compared in.

    Two layers of 64 and 230 thousand parameters on 8.2 of 28.8 million tokens of Debian's English, byte-level BPE of 2,048 ids.
    A tenth of the usual initial variance is worth .12 to .2 nats to it (docs/LOG.md), so that it is no weak opponent.
    """
    return Experiment(
        model=GptConfig(
            vocab=2048,
            layers=2,
            model_dim=64,
            attention=GroupedQuery(heads=4, head_dim=16),
            positions=Rotary(),
            feed_forward=Dense(hidden_dim=256),
            init_scale=0.1,
        ),
        layout=data_parallel(1, 1),
        data=TextData(cache="english_2k", batch_size=8, length=256),
        optimizer=gpt3_adamw(peak=3e-3, steps=4000, warmup=200),
        train=Train(steps=4000, clip_norm=1.0, log_every=50, checkpoint=Checkpointing(every=1000, keep=1), eval_every=500),
        eval=HeldOut(batch_size=32),
        execution=Execution(unroll=0),
    )


def bench_42m() -> Experiment:
    """A GPT-2 block of 42 M parameters on random tokens, single precision: what speed on CPUs is compared on (BENCHMARKS.md)."""
    return Experiment(
        model=_gpt2_block(layers=8, dim=512, heads=8, vocab=32_000, rows=256),
        layout=data_parallel(1, 1),
        data=TextData(batch_size=8, length=256),
        optimizer=AdamW(schedule=Constant(value=1e-4), weight_decay=0.01),
        train=Train(steps=1000),
        eval=HeldOut(),
        execution=Execution(unroll=0),
    )


# --- GPT-2: Radford et al. 2019 (sizes as its releases are named; the paper's first row says 117M) -----------------


def _gpt2(layers: int, dim: int, heads: int) -> Experiment:
    # Batch 512 x 1024; the optimizer is not in the paper, GPT-3's here.
    return Experiment(
        model=_gpt2_block(layers=layers, dim=dim, heads=heads, rows=1024, dropout=0.1),
        layout=fully_sharded(8, 1),
        data=TextData(cache="c4_1024", batch_size=512, length=1024),
        optimizer=gpt3_adamw(peak=6e-4, steps=600_000, warmup=2000),
        train=Train(steps=600_000, clip_norm=1.0, log_every=100, checkpoint=Checkpointing(every=5000), eval_every=5000),
        eval=HeldOut(limit=2000, batch_size=64),
        execution=Execution(dtype="bfloat16"),
    )


gpt2_124m = row(_gpt2, "GPT-2 small: 12 layers of 768, 124.4e6 parameters.", 12, 768, 12)
gpt2_355m = row(_gpt2, "GPT-2 medium: 24 layers of 1024, 354.8e6 parameters (the paper's 345M).", 24, 1024, 16)
gpt2_774m = row(_gpt2, "GPT-2 large: 36 layers of 1280, 774.0e6 parameters (the paper's 762M).", 36, 1280, 20)
gpt2_1558m = row(_gpt2, "GPT-2 XL: 48 layers of 1600, 1557.6e6 parameters (the paper's 1542M).", 48, 1600, 25)


# --- GPT-3: Brown et al. 2020, Table 2.1; Adam 0.9/0.95, weight decay 0.1, clip 1.0, cosine to 10 % (appendix B) ---


def _gpt3(layers: int, dim: int, heads: int, batch: int, rate: float, mesh: Layout) -> Experiment:
    # 300e9 tokens; the rate warms up over 375e6 tokens and decays over 260e9. The table's 24 heads of the XL, of 128 each, would
    # make 1.5e9 parameters: 16 make the stated 1.3B.
    tokens = batch * 2048
    return Experiment(
        model=_gpt2_block(layers=layers, dim=dim, heads=heads, rows=2048),
        layout=mesh,
        data=TextData(cache="c4_2048", batch_size=batch, length=2048),
        optimizer=gpt3_adamw(peak=rate, steps=260_000_000_000 // tokens, warmup=375_000_000 // tokens),
        train=Train(
            steps=300_000_000_000 // tokens, clip_norm=1.0, log_every=100, checkpoint=Checkpointing(every=2000), eval_every=2000
        ),
        eval=HeldOut(limit=2000, batch_size=mesh.devices),
        execution=Execution(dtype="bfloat16"),
    )


gpt3_125m = row(
    _gpt3, "GPT-3 Small: 12 layers of 768; 0.5M tokens a batch, 300e9 in all.", 12, 768, 12, 256, 6e-4, fully_sharded(8, 1)
)
gpt3_350m = row(_gpt3, "GPT-3 Medium: 24 layers of 1024.", 24, 1024, 16, 256, 3e-4, fully_sharded(16, 1))
gpt3_760m = row(_gpt3, "GPT-3 Large: 24 layers of 1536, heads of 96.", 24, 1536, 16, 256, 2.5e-4, fully_sharded(32, 1))
gpt3_1_3b = row(_gpt3, "GPT-3 XL: 24 layers of 2048, 16 heads of 128.", 24, 2048, 16, 512, 2e-4, fully_sharded(64, 1))
gpt3_2_7b = row(_gpt3, "GPT-3 2.7B: 32 layers of 2560, heads of 80.", 32, 2560, 32, 512, 1.6e-4, fully_sharded(128, 1))
gpt3_6_7b = row(_gpt3, "GPT-3 6.7B: 32 layers of 4096; 2M tokens a batch.", 32, 4096, 32, 1024, 1.2e-4, fully_sharded(256, 1))


def gpt3_13b() -> Experiment:
    """GPT-3 13B: 40 layers of 5140 (so the table; 40 heads of 128 are 5120), vocabulary padded to 51,200.

    5140 is four times 1285: weights are not cut over many chips, so that on 256 their layers are in eight stages.
    """
    stages = pipelines("decoder")["pipeline_1f1b"](8, 16, 2, microbatches=64)
    e = _gpt3(layers=40, dim=5140, heads=40, batch=1024, rate=1e-4, mesh=stages)
    kept = "attention_in+context+attention_out+up"
    return replace(e, model=replace(e.model, vocab=51_200), execution=replace(e.execution, remat=kept))


def gpt3_175b() -> Experiment:
    """GPT-3 175B: 96 layers of 12288; 3.2M tokens a batch. Vocabulary padded to 51,200, as MLPerf's reference does."""
    e = _gpt3(layers=96, dim=12288, heads=96, batch=1536, rate=6e-5, mesh=two_d(256, 8))
    return changed(e, {"model.vocab": 51_200, "execution.remat": "full"})


def mlperf_175b() -> Experiment:
    """MLPerf's GPT-3 175B (rounds 3.0 to 4.1), hyper-parameters of its reference at batch 1536; no dropout.

    Log perplexity on 24,567 held-out documents of C4, every 24,576 rows, has to fall to 2.69. MLPerf starts from a checkpoint of
    4000 steps, to be named by `train.finetune.init_from`; its optimizer and schedule go on from there, ours start anew.
    Not MLPerf's: the vocabulary, GPT-2's here.
    """
    run = {"train.steps": 13_020, "train.log_every": 1, "train.checkpoint.every": 500, "train.eval_every": 16}
    optimizer = gpt3_adamw(peak=2e-5, steps=108_600, warmup=265)
    return changed(gpt3_175b(), run | {"optimizer": optimizer, "eval.limit": 24_567})


# --- GSPMD, arXiv 2105.04663: dense decoders of Lingvo. Steps and shares of the peak are its Table 2's, from memory -


def gspmd_64b() -> Experiment:
    """GSPMD 64B: 32 layers of 8192, 68.98e9 parameters; 5.74 s a step on 128 TPU-v3 cores, 62.7 % of peak.

    Here and below 2048 tokens a chip, on 128 TPU-v4 chips for 64B and twice as many for each step up. Modelled: 5.2 s, 60 % MFU.
    """
    kept = "gate+attention_in+attention_out"
    return _gspmd(layers=32, batch=256, mesh=two_d(32, 4), remat=kept)


def gspmd_128b() -> Experiment:
    """GSPMD 128B: 64 layers of 8192, 137,702,416,384 parameters; 6.31 s on 2048 cores, 56.5 %.

    Lingvo's own run of it: 512 x 1024 tokens a step, 62k tokens/s, 41 % MFU (55 % with recomputation). Modelled on 256 chips:
    10.6 s, 59 % MFU.
    """
    return _gspmd(layers=64, batch=512, mesh=two_d(64, 4), remat="gate+attention_out")


def gspmd_256b() -> Experiment:
    """GSPMD 256B: 128 layers of 8192, 275.1e9 parameters; 6.71 s on 2048 cores, 54.1 %.

    Modelled on 512 chips: 22.9 s, 54 % MFU.
    """
    return _gspmd(layers=128, batch=1024, mesh=two_d(128, 4), remat="attention_out")


def gspmd_512b() -> Experiment:
    """GSPMD 512B: 256 layers of 8192, 550.0e9 parameters; 7.64 s on 2048 cores, 47.5 %.

    Modelled on 1024 chips: 44.8 s, 56 % MFU.
    """
    return _gspmd(layers=256, batch=2048, mesh=two_d(256, 4), remat="attention_out")


def gspmd_1t() -> Experiment:
    """GSPMD 1T: 128 layers of 16384, 1,100,041,175,040 parameters; 13.66 s on 2048 cores, 55.6 %.

    That step has about 128 rows, 64 tokens a core; here 3072, so that gathering weights and adding up their gradients pays.
    Modelled: 61.3 s, 61 % MFU.
    """
    e = _gspmd(layers=128, batch=3072, mesh=two_d(256, 8), remat="attention_out")
    return changed(e, {"model.model_dim": 16_384, "model.feed_forward.hidden_dim": 131_072, "model.attention.heads": 256})


def gspmd_1t_pipelined() -> Experiment:
    """GSPMD 1T in 64 stages of two chunks of a layer, tensor parallel over 8 and data parallel over 4, by interleaved 1F1B.

    3072 rows in 768 microbatches: the bubble is 63 / 1536 of the work. Weights are whole on the data axis: nothing is gathered.
    Modelled: 73.1 s, 51 % MFU.
    """
    e = gspmd_1t()
    return replace(e, layout=_stages((4, 64, 8), ("y4", "zy4"), 768), execution=replace(e.execution, remat="full"))


def _stages(
    mesh: tuple[int, int, int],
    torus: tuple[str, str],
    microbatches: int,
    chunks: int = 2,
    *,
    positions: bool = False,
    **optimizer: str,
) -> Layout:
    """Returns a layout of interleaved stages, tensor parallel over 8, which cuts the residual stream and the stash by positions.

    The embedding is cut by rows over the stages and by its model dimension over the tensor-parallel chips. Every chip looks up
    all positions in the columns that it has; what is found is exchanged for all columns of the chip's own positions, so that
    neither a table nor its gradient travels at every tick. Stages are neighbours on the torus; the data-parallel copies, which
    meet once a step, are not.

    Args:
      mesh: (copies, stages, 8), chips of the axes "data", "stage" and "model".
      torus: the dimensions of the slice that "data" and "stage" lie along; "model" has all of x.
      microbatches: of a row of each copy.
      chunks: of layers in a stage.
      positions: whether the model has a table of positions, which is cut and looked up in the same way.
      optimizer: further rules of the optimizer's state.
    """
    data, stage, model = mesh
    base = pipelines("decoder")["pipeline_interleaved"](stage, data, model, microbatches=microbatches)
    columns = rules(embed="model", act_table="model", act_embed="model", res_length=None)
    embedding = also(columns, vocab="stage", act_vocab="stage")
    learned = (("position_embedding", columns),) if positions else ()
    return replace(
        base,
        rules=also(base.rules, res_length="model"),
        components=(*base.components, ("embedding", embedding), *learned),
        pipelines=tuple((name, replace(pipeline, chunks=chunks)) for name, pipeline in base.pipelines),
        optimizer=rules(**optimizer),
        mesh=tuple((axis, dict(base.mesh)[axis]) for axis in ("data", "stage", "model")),
        torus=(("data", torus[0]), ("stage", torus[1]), ("model", "x")),
    )


def lingvo_175b() -> Experiment:
    """Lingvo's 175B: GPT-3's shape without biases, 174,366,928,896 parameters; 51.5k tokens/s on 2048 v3 cores (44 % MFU).

    96 layers of 12288, ReLU, learned positions, attention logits capped at 50; 1024 x 2048 tokens a step.
    """
    e = _gspmd(layers=96, batch=1024, mesh=two_d(256, 8))
    attention = {"attention.heads": 96, "attention.logit_cap": 50.0, "positions": Learned(rows=2048)}
    sizes = {"model_dim": 12_288, "feed_forward": Dense(hidden_dim=49_152)}
    return replace(e, model=changed(e.model, sizes | attention), data=replace(e.data, length=2048))


def _gspmd(*, layers: int, batch: int, mesh: Layout, remat: str = "full") -> Experiment:
    return Experiment(
        model=GptConfig(
            vocab=32_000,
            layers=layers,
            model_dim=8192,
            attention=GroupedQuery(heads=128, head_dim=128),
            positions=RelativeBuckets(),
            feed_forward=Dense(hidden_dim=65_536, activation="gelu_tanh", gated=True),
        ),
        layout=_lm_embedding(mesh),
        data=TextData(batch_size=batch, length=1024),
        optimizer=Adafactor(),
        train=Train(steps=100_000, log_every=100, checkpoint=Checkpointing(every=2000)),
        eval=HeldOut(batch_size=mesh.devices),
        execution=Execution(dtype="bfloat16", remat=remat),
    )


def _lm_embedding(layout: Layout) -> Layout:
    """Returns a layout in Lingvo's variant for language models: the second mesh axis cuts the embedding's model dimension."""
    return replace(layout, name="two_d_lm", components=(("embedding", rules(vocab=None, embed="model")),))


# --- Megatron-LM PTD-P, arXiv 2104.04473, Table 1: weak scaling on A100, 2048 tokens, vocabulary 51,200 ------------
# Sizes by the paper's formula, 12 l h^2 (1 + 13/(12h) + (V+s)/(12lh)): GPT-2's block without the last norm.
# The paper's tensor, pipeline and data parallel sizes are given as (t, p, d), with TFLOPS a GPU and their share of its peak;
# layouts here are 2D, on chips of a pod.


def _megatron(layers: int, dim: int, heads: int, batch: int, mesh: Layout) -> Experiment:
    return Experiment(
        model=_gpt2_block(layers=layers, dim=dim, heads=heads, vocab=51_200, rows=2048),
        layout=mesh,
        data=TextData(cache="c4_2048", batch_size=batch, length=2048),
        optimizer=gpt3_adamw(peak=6e-5, steps=100_000, warmup=2000),
        train=Train(steps=100_000, clip_norm=1.0, log_every=100, checkpoint=Checkpointing(every=2000)),
        eval=HeldOut(limit=2000, batch_size=mesh.devices),
        execution=Execution(dtype="bfloat16", remat="full"),
    )


megatron_1_7b = row(
    _megatron, "1.7B: 24 layers of 2304, (1, 1, 32), batch 512: 137 TFLOPS, 44 %.", 24, 2304, 24, 512, two_d(32, 1)
)
megatron_3_6b = row(
    _megatron, "3.6B: 30 layers of 3072, (2, 1, 32), batch 512: 138 TFLOPS, 44 %.", 30, 3072, 32, 512, two_d(32, 2)
)
megatron_7_5b = row(
    _megatron, "7.5B: 36 layers of 4096, (4, 1, 32), batch 512: 142 TFLOPS, 46 %.", 36, 4096, 32, 512, two_d(32, 4)
)
megatron_18_4b = row(
    _megatron, "18.4B: 40 layers of 6144, (8, 1, 32), batch 1024: 135 TFLOPS, 43 %.", 40, 6144, 48, 1024, fully_sharded(256, 1)
)
megatron_39_1b = row(
    _megatron, "39.1B: 48 layers of 8192, (8, 2, 32), batch 1536: 138 TFLOPS, 44 %.", 48, 8192, 64, 1536, fully_sharded(512, 1)
)
megatron_76_1b = row(
    _megatron, "76.1B: 60 layers of 10240, (8, 4, 32), batch 1792: 140 TFLOPS, 45 %.", 60, 10_240, 80, 1792, two_d(128, 8)
)
megatron_145_6b = row(
    _megatron, "145.6B: 80 layers of 12288, (8, 8, 24), batch 2304: 148 TFLOPS, 47 %.", 80, 12_288, 96, 2304, two_d(192, 8)
)


def megatron_310_1b() -> Experiment:
    """Megatron 310.1B: 96 layers of 16384, (8, 16, 15) on 1920 GPUs, batch 2160: 155 TFLOPS, 50 %. Here batch 2048."""
    return _megatron(layers=96, dim=16_384, heads=128, batch=2048, mesh=two_d(256, 8))


def megatron_529_6b() -> Experiment:
    """Megatron 529.6B: 105 layers of 20480, (8, 35, 9) on 2520 GPUs, batch 2520: 163 TFLOPS, 52 %. Here batch 2560."""
    return _megatron(layers=105, dim=20_480, heads=128, batch=2560, mesh=two_d(256, 8))


def megatron_1008b() -> Experiment:
    """Megatron 1008.0B: 128 layers of 25600, (8, 64, 6) on 3072 GPUs, batch 3072: 163 TFLOPS, 52 %.

    Here 2048 chips and as many rows, one to a chip as in the paper; the residual stream is cut by positions, because its 25600
    dimensions in eight parts are not reduced and scattered in one go. Modelled: 85 s, 54 % MFU.
    """
    return _megatron(layers=128, dim=25_600, heads=160, batch=2048, mesh=two_d_sequence(256, 8))


def _megatron_pipelined(
    e: Experiment, copies: int, stages: int, data: str, stage: str, chunks: int = 2, rows: int = 2, remat: str = "none"
) -> Experiment:
    """Returns an experiment as the paper runs it: stages of `chunks` chunks, tensor parallel over 8, microbatches of `rows` rows,
    and with Adam's moments cut over the copies (ZeRO-1)."""
    microbatches = e.data.batch_size // (copies * rows)
    layout = _stages((copies, stages, 8), (data, stage), microbatches, chunks, positions=True, embed="data")
    # A stage computes its chunks' forward passes again; in chunks of several layers, "full" would do so a third time.
    return replace(e, layout=layout, execution=replace(e.execution, remat=remat))


# Not among them: 529.6B, whose 35 stages need a slice with sides of 20 and 28, more than a pod of TPU v4, and do not divide the
# vocabulary. All but 1008.0B are for TPU v5p: a chip has 2.4e9 weights, which need 36 GiB with their gradients and copies.
megatron_39_1b_pipelined = row(
    _megatron_pipelined,
    "39.1B in the paper's 2 stages, each of 2 chunks of 12 layers.",
    megatron_39_1b(),
    32,
    2,
    "zy4",
    "y2",
    2,
    4,
)
megatron_76_1b_pipelined = row(
    _megatron_pipelined, "76.1B in the paper's 4 stages, each of 3 chunks of 5 layers.", megatron_76_1b(), 32, 4, "yz4", "z4", 3
)
megatron_145_6b_pipelined = row(
    _megatron_pipelined, "145.6B in the paper's 8 stages, each of 2 chunks of 5 layers.", megatron_145_6b(), 24, 8, "yz2", "z8"
)
megatron_310_1b_pipelined = row(
    _megatron_pipelined, "310.1B in the paper's 16 stages, each of 3 chunks of 2 layers.", megatron_310_1b(), 16, 16, "y", "z", 3
)
megatron_1008b_pipelined = row(
    _megatron_pipelined,
    "1008.0B in the paper's 64 stages, each of 2 chunks of a layer, in 4 copies. Modelled: 96 s, 47 % MFU.",
    megatron_1008b(),
    4,
    64,
    "y4",
    "zy4",
    rows=1,
    remat="full",
)


# --- PaLM, arXiv 2204.02311, Table 1 -----------------------------------------------------------------------------


def _palm(layers: int, dim: int, heads: int, mesh: Layout) -> Experiment:
    # Section 2: SwiGLU, parallel layers, multi-query attention, rotary positions, tied embedding, no biases.
    return Experiment(
        model=GptConfig(
            vocab=256_000,
            layers=layers,
            model_dim=dim,
            attention=GroupedQuery(heads=heads, head_dim=256, kv_heads=1),
            positions=Rotary(),
            feed_forward=Dense(hidden_dim=4 * dim, activation="silu", gated=True),
            norm=NormConfig(kind="layer", order="parallel"),
        ),
        layout=mesh,
        data=TextData(cache="c4_2048", batch_size=2048, length=2048),
        # Section 5: Adafactor without factoring, 1e-2 for 10k steps, then 1/sqrt(step); batch 512, 1024, 2048 in turn.
        optimizer=Adafactor(schedule=InverseSqrt(), min_factored=1 << 30),
        train=Train(steps=255_000, clip_norm=1.0, log_every=100, checkpoint=Checkpointing(every=1000)),
        eval=HeldOut(limit=2000, batch_size=mesh.devices),
        execution=Execution(dtype="bfloat16", remat="full"),
    )


palm_8b = row(_palm, "PaLM 8B: 32 layers of 4096, 16 heads of 256, 8.63e9 parameters.", 32, 4096, 16, two_d(64, 4))
palm_62b = row(_palm, "PaLM 62B: 64 layers of 8192, 32 heads of 256, 62.50e9 parameters.", 64, 8192, 32, fully_sharded(512, 1))


def palm_540b() -> Experiment:
    """PaLM 540B: 118 layers of 18432, 48 heads of 256, 540.35e9 parameters; 238.3k tokens/s at batch 2048 on 6144 TPU v4.

    46.2 % MFU (57.8 % HFU); 780e9 tokens. One pod of 3072 chips here: 256-way data, 12-way model, as in the paper.
    Modelled: 28.0 s, 58 % MFU; as one of the paper's two pods had it (half the batch, full recomputation, no attention kernel),
    15.6 s, 52 %: a point of the calibration (BENCHMARKS.md).
    """
    e = _palm(layers=118, dim=18_432, heads=48, mesh=two_d(256, 12))
    # 256,000 ids don't divide by 12.
    return replace(e, model=replace(e.model, vocab=256_128), execution=replace(e.execution, remat="attention_in+attention_out"))


# --- MaxText's published throughput points, TPU v4 ---------------------------------------------------------------


def maxtext_22b() -> Experiment:
    """MaxText 22B: 48 layers of 6144, 21.9e9 parameters, FSDP over 64 chips, 16 x 1024 tokens a chip: 56.7 % MFU.

    Logits of a quarter of the positions at a time leave room for what attention returned (MaxText keeps nothing).
    Modelled: 12.2 s, 66 % MFU; MaxText's own step, 13.5 s.
    """
    e = _maxtext(layers=48, dim=6144, hidden=24_576, heads=24, chips=64, per_chip=16)
    return replace(e, execution=replace(e.execution, remat="attention_out", loss_chunks=4))


def maxtext_52b() -> Experiment:
    """MaxText 52B: 32 layers of 12288, 51.9e9 parameters, FSDP over 192 chips, 10 x 1024 tokens a chip: 56.0 % MFU.

    Modelled: 17.3 s, 68 % MFU.
    """
    return _maxtext(layers=32, dim=12_288, hidden=49_152, heads=32, chips=192, per_chip=10)


def _maxtext(*, layers: int, dim: int, hidden: int, heads: int, chips: int, per_chip: int) -> Experiment:
    return Experiment(
        model=GptConfig(
            vocab=32_000,
            layers=layers,
            model_dim=dim,
            attention=GroupedQuery(heads=heads, head_dim=256),
            positions=Rotary(),
            feed_forward=Dense(hidden_dim=hidden, activation="gelu_tanh"),
        ),
        layout=fully_sharded(chips, 1),
        data=TextData(batch_size=chips * per_chip, length=1024),
        optimizer=gpt3_adamw(peak=3e-5, steps=100_000, warmup=1000),
        train=Train(steps=100_000, clip_norm=1.0, log_every=100, checkpoint=Checkpointing(every=2000)),
        eval=HeldOut(batch_size=chips),
        execution=Execution(dtype="bfloat16", remat="full"),
    )
