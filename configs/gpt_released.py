"""Released dense decoders of LLaMA's shape, for fine-tuning them and for plans of pods.

The counts of parameters are exact. How they were trained is published in part at most: optimizer and schedule are those of
gpt.llama2_70b but for the peak of the rate, the data are random tokens, as the vocabularies have no cache here, and the slice of
a pod is one that fits. `--train.finetune.init-from FOLDER` starts from a downloaded folder; docs/FINETUNE.md goes on from there.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from configs.experiment import Checkpointing, Experiment, Finetuning, HeldOut, Train
from configs.optimizers import gpt3_adamw
from data.text.config import TextData
from models.execution import Execution
from models.gpt.config import GptConfig
from models.parts.attention.config import GroupedQuery, Interpolation, LayerVariant, Llama3, QkNorm, Rotary
from models.parts.transformer_config import Dense, NormConfig, Output
from models.sharding.layout import Layout
from models.sharding.layouts import data_parallel, fully_sharded, two_d

LLAMA3 = Llama3(factor=8.0, low=1.0, high=4.0, original=8192)


def llama2_7b() -> Experiment:
    """LLaMA 2 7B (arXiv 2307.09288): 32 layers of 4096, 6.74e9 parameters, batch 4M tokens of 2e12."""
    return _llama(layers=32, dim=4096, hidden=11_008, heads=32, kv_heads=0, rate=3e-4, mesh=two_d(32, 4))


def llama2_70b() -> Experiment:
    """LLaMA 2 70B: 80 layers of 8192, 68.98e9 parameters, 8 heads of keys and values."""
    return _llama(layers=80, dim=8192, hidden=28_672, heads=64, kv_heads=8, rate=1.5e-4, mesh=fully_sharded(512, 1))


def _llama(*, layers: int, dim: int, hidden: int, heads: int, kv_heads: int, rate: float, mesh: Layout) -> Experiment:
    return Experiment(
        model=_decoder(vocab=32_000, layers=layers, dim=dim, hidden=hidden, heads=heads, kv_heads=kv_heads),
        layout=mesh,
        data=TextData(batch_size=1024, length=4096),
        # Section 2.2: AdamW 0.9/0.95, 2000 steps of warm-up, cosine to 10 %, weight decay 0.1, clip 1.0.
        optimizer=gpt3_adamw(peak=rate, steps=500_000, warmup=2000, eps=1e-5),
        train=Train(steps=500_000, clip_norm=1.0, log_every=100, checkpoint=Checkpointing(every=2000)),
        eval=HeldOut(batch_size=mesh.devices),
        execution=Execution(dtype="bfloat16", remat="full"),
    )


def llama3_1_8b() -> Experiment:
    """Llama 3.1 8B (arXiv 2407.21783): 32 layers of 4096; 8,030,261,248 parameters. Rotary rates are stretched from 8192
    positions to 131,072."""
    rotary = Rotary(base=5e5, scaling=LLAMA3)
    return _released(_decoder("llama", vocab=128_256, layers=32, dim=4096, hidden=14_336, heads=32, kv_heads=8, positions=rotary))


def llama3_70b() -> Experiment:
    """Llama 3 70B (arXiv 2407.21783): 80 layers of 8192; 70,553,706,496 parameters. On 512 chips a chip has a batch of 2 rows."""
    rotary = Rotary(base=5e5)
    model = _decoder("llama", vocab=128_256, layers=80, dim=8192, hidden=28_672, heads=64, kv_heads=8, positions=rotary)
    e = _released(model, fully_sharded(512, 1), rate=1.5e-4)
    return replace(e, execution=replace(e.execution, loss_chunks=4))


def mistral_7b() -> Experiment:
    """Mistral 7B v0.1 (arXiv 2310.06825): a window of 4096 positions in all of 32 layers; 7,241,732,096 parameters."""
    windows: dict[str, Any] = dict(pattern=(LayerVariant(window=4096),))
    return _released(
        _decoder("mistral", vocab=32_000, layers=32, dim=4096, hidden=14_336, heads=32, kv_heads=8, attention=windows)
    )


def qwen2_5_7b() -> Experiment:
    """Qwen2.5 7B (arXiv 2412.15115): biases of queries, keys and values; 28 layers of 3584; 7,615,616,512 parameters."""
    shape: dict[str, Any] = dict(positions=Rotary(base=1e6), norm=NormConfig(eps=1e-6), attention=dict(biases="qkv"))
    return _released(_decoder("qwen2", vocab=152_064, layers=28, dim=3584, hidden=18_944, heads=28, kv_heads=4, **shape))


def qwen3_8b() -> Experiment:
    """Qwen3 8B (arXiv 2505.09388): norms of each head's queries and keys; 36 layers of 4096; 8,190,735,360 parameters."""
    shape: dict[str, Any] = dict(
        positions=Rotary(base=1e6), norm=NormConfig(eps=1e-6), attention=dict(qk_norm=QkNorm(kind="rms"))
    )
    return _released(_decoder("qwen3", vocab=151_936, layers=36, dim=4096, hidden=12_288, heads=32, kv_heads=8, **shape))


def gemma2_9b() -> Experiment:
    """Gemma 2 9B (arXiv 2408.00118): norms before and behind each sub-layer, capped logits, a window of 4096 in every other of 42
    layers of 3584; 9,241,705,984 parameters."""
    attention: dict[str, Any] = dict(logit_cap=50.0, pattern=(LayerVariant(window=4096), LayerVariant()))
    shape: dict[str, Any] = dict(heads=16, kv_heads=8, attention=attention, output=Output(cap=30.0))
    return _released(_gemma("gemma2", vocab=256_000, layers=42, dim=3584, hidden=14_336, **shape))


def gemma3_4b() -> Experiment:
    """The decoder of Gemma 3 4B (arXiv 2503.19786): a window of 1024 in five of six layers, with rotary positions of their own;
    34 layers of 2560; 3,880,263,168 parameters."""
    local = LayerVariant(window=1024, base=10_000.0, scaled=False)
    attention: dict[str, Any] = dict(qk_norm=QkNorm(kind="rms_plus_one"), pattern=(*[local] * 5, LayerVariant()))
    shape: dict[str, Any] = dict(
        heads=8, kv_heads=4, attention=attention, positions=Rotary(base=1e6, scaling=Interpolation(factor=8.0))
    )
    return _released(_gemma("gemma3_text", vocab=262_208, layers=34, dim=2560, hidden=10_240, **shape))


def phi4() -> Experiment:
    """Phi-4 (arXiv 2412.08905): 40 layers of 5120; 14,659,507,200 parameters."""
    rotary = Rotary(base=250_000.0)
    model = _decoder("phi3", vocab=100_352, layers=40, dim=5120, hidden=17_920, heads=40, kv_heads=10, positions=rotary)
    return _released(model, fully_sharded(128, 1))


def olmo2_7b() -> Experiment:
    """OLMo 2 7B (arXiv 2501.00656): norms behind sub-layers alone, and of all queries, and keys, together; 32 layers of 4096;
    7,298,617,344 parameters."""
    norms: dict[str, Any] = dict(
        norm=NormConfig(eps=1e-6, order="reordered"), attention=dict(qk_norm=QkNorm(kind="rms", over="all"))
    )
    shape: dict[str, Any] = dict(heads=32, positions=Rotary(base=5e5), **norms)
    return _released(_decoder("olmo2", vocab=100_352, layers=32, dim=4096, hidden=11_008, **shape))


def smollm2_135m() -> Experiment:
    """SmolLM2 135M (arXiv 2502.02737): 30 layers of 576, 134.5e6 parameters; starts from the released weights.

    `python -m scripts.prepare_data smollm2_135m` fetches them. Training goes on with 92 MB of English.
    """
    shape: dict[str, Any] = dict(heads=9, kv_heads=3, head_dim=64, positions=Rotary(base=100_000.0), output=Output(tied=True))
    return Experiment(
        model=_decoder(vocab=49_152, layers=30, dim=576, hidden=1536, **shape),
        layout=data_parallel(1, 1),
        data=TextData(cache="smollm_english", batch_size=8, length=1024),
        optimizer=gpt3_adamw(peak=1e-4, steps=1000, warmup=50),
        train=Train(
            steps=1000,
            clip_norm=1.0,
            finetune=Finetuning(init_from="smollm2_135m"),
            checkpoint=Checkpointing(every=200),
            eval_every=200,
        ),
        eval=HeldOut(limit=20, batch_size=2),
    )


def smollm3_3b() -> Experiment:
    """SmolLM3 3B (Hugging Face, 2025): no rotary positions in every fourth of 36 layers of 2048; 3,075,098,624 parameters."""
    attention: dict[str, Any] = dict(pattern=(*[LayerVariant()] * 3, LayerVariant(rotary=False)))
    others: dict[str, Any] = dict(positions=Rotary(base=5e6), norm=NormConfig(eps=1e-6), output=Output(tied=True))
    shape: dict[str, Any] = dict(heads=16, kv_heads=4, attention=attention, **others)
    return _released(_decoder("smollm3", vocab=128_256, layers=36, dim=2048, hidden=11_008, **shape))


def _decoder(
    dialect: Any = "",
    *,
    dim: int,
    hidden: int,
    heads: int,
    kv_heads: int = 0,
    head_dim: int = 128,
    attention: Mapping[str, Any] = MappingProxyType({}),
    activation: Any = "silu",
    **fields: Any,
) -> GptConfig:
    """Returns a decoder of LLaMA's shape; `attention` are further fields of its attention."""
    shape: dict[str, Any] = dict(
        attention=GroupedQuery(heads=heads, head_dim=head_dim, kv_heads=kv_heads, **attention),
        positions=Rotary(),
        feed_forward=Dense(hidden_dim=hidden, activation=activation, gated=True),
        norm=NormConfig(eps=1e-5),
        output=Output(tied=False),
    )
    return GptConfig(dialect=dialect, model_dim=dim, **shape | fields)


def _gemma(dialect: Any, *, dim: int, attention: Mapping[str, Any], **fields: Any) -> GptConfig:
    norm = NormConfig(kind="rms_plus_one", order="sandwich")
    shape: dict[str, Any] = dict(activation="gelu_tanh", norm=norm, output=Output(), embedding_scale=dim**0.5, head_dim=256)
    return _decoder(dialect, dim=dim, attention={"scale_dim": 256.0, **attention}, **shape | fields)


def _released(model: GptConfig, layout: Layout | None = None, rate: float = 3e-4) -> Experiment:
    e, layout = llama2_70b(), layout or fully_sharded(64, 1)
    schedule = replace(e.optimizer.schedule, peak=rate)
    return replace(
        e,
        model=model,
        layout=layout,
        eval=replace(e.eval, batch_size=layout.devices),
        optimizer=replace(e.optimizer, schedule=schedule),
    )
