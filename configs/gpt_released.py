"""Released dense decoders of LLaMA's shape, for fine-tuning them and for plans of pods.

The counts of parameters are exact. How they were trained is published in part at most: optimizer and schedule are those of
gpt.llama2_70b but for the peak of the rate, the data are random tokens, as the vocabularies have no cache here, and the slice of
a pod is one that fits. `--train.finetune.init-from FOLDER` starts from a downloaded folder; docs/FINETUNE.md goes on from there.
"""

import dataclasses
from dataclasses import replace
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
        model=_decoder(
            vocab=32_000,
            layers=layers,
            model_dim=dim,
            attention=GroupedQuery(heads=heads, head_dim=128, kv_heads=kv_heads),
            hidden_dim=hidden,
        ),
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
    model = _decoder(
        "llama",
        vocab=128_256,
        layers=32,
        model_dim=4096,
        attention=GroupedQuery(heads=32, head_dim=128, kv_heads=8),
        positions=Rotary(base=5e5, scaling=LLAMA3),
        hidden_dim=14_336,
    )
    return _released(model)


def llama3_70b() -> Experiment:
    """Llama 3 70B (arXiv 2407.21783): 80 layers of 8192; 70,553,706,496 parameters. On 512 chips a chip has a batch of 2 rows."""
    model = _decoder(
        "llama",
        vocab=128_256,
        layers=80,
        model_dim=8192,
        attention=GroupedQuery(heads=64, head_dim=128, kv_heads=8),
        positions=Rotary(base=5e5),
        hidden_dim=28_672,
    )
    e = _released(model, fully_sharded(512, 1), rate=1.5e-4)
    return replace(e, execution=replace(e.execution, loss_chunks=4))


def mistral_7b() -> Experiment:
    """Mistral 7B v0.1 (arXiv 2310.06825): a window of 4096 positions in all of 32 layers; 7,241,732,096 parameters."""
    model = _decoder(
        "mistral",
        vocab=32_000,
        layers=32,
        model_dim=4096,
        attention=GroupedQuery(heads=32, head_dim=128, kv_heads=8, pattern=(LayerVariant(window=4096),)),
        hidden_dim=14_336,
    )
    return _released(model)


def qwen2_5_7b() -> Experiment:
    """Qwen2.5 7B (arXiv 2412.15115): biases of queries, keys and values; 28 layers of 3584; 7,615,616,512 parameters."""
    model = _decoder(
        "qwen2",
        vocab=152_064,
        layers=28,
        model_dim=3584,
        attention=GroupedQuery(heads=28, head_dim=128, kv_heads=4, biases="qkv"),
        positions=Rotary(base=1e6),
        norm=NormConfig(eps=1e-6),
        hidden_dim=18_944,
    )
    return _released(model)


def qwen3_8b() -> Experiment:
    """Qwen3 8B (arXiv 2505.09388): norms of each head's queries and keys; 36 layers of 4096; 8,190,735,360 parameters."""
    model = _decoder(
        "qwen3",
        vocab=151_936,
        layers=36,
        model_dim=4096,
        attention=GroupedQuery(heads=32, head_dim=128, kv_heads=8, qk_norm=QkNorm(kind="rms")),
        positions=Rotary(base=1e6),
        norm=NormConfig(eps=1e-6),
        hidden_dim=12_288,
    )
    return _released(model)


def gemma2_9b() -> Experiment:
    """Gemma 2 9B (arXiv 2408.00118): norms before and behind each sub-layer, capped logits, a window of 4096 in every other of 42
    layers of 3584; 9,241,705,984 parameters."""
    model = _gemma(
        "gemma2",
        vocab=256_000,
        layers=42,
        model_dim=3584,
        attention=GroupedQuery(
            heads=16,
            head_dim=256,
            kv_heads=8,
            scale_dim=256.0,
            logit_cap=50.0,
            pattern=(LayerVariant(window=4096), LayerVariant()),
        ),
        output=Output(cap=30.0),
        hidden_dim=14_336,
    )
    return _released(model)


def gemma3_4b() -> Experiment:
    """The decoder of Gemma 3 4B (arXiv 2503.19786): a window of 1024 in five of six layers, with rotary positions of their own;
    34 layers of 2560; 3,880,263,168 parameters."""
    local = LayerVariant(window=1024, base=10_000.0, scaled=False)
    model = _gemma(
        "gemma3_text",
        vocab=262_208,
        layers=34,
        model_dim=2560,
        attention=GroupedQuery(
            heads=8,
            head_dim=256,
            kv_heads=4,
            qk_norm=QkNorm(kind="rms_plus_one"),
            scale_dim=256.0,
            pattern=(local, local, local, local, local, LayerVariant()),
        ),
        positions=Rotary(base=1e6, scaling=Interpolation(factor=8.0)),
        hidden_dim=10_240,
    )
    return _released(model)


def phi4() -> Experiment:
    """Phi-4 (arXiv 2412.08905): 40 layers of 5120; 14,659,507,200 parameters."""
    model = _decoder(
        "phi3",
        vocab=100_352,
        layers=40,
        model_dim=5120,
        attention=GroupedQuery(heads=40, head_dim=128, kv_heads=10),
        positions=Rotary(base=250_000.0),
        hidden_dim=17_920,
    )
    return _released(model, fully_sharded(128, 1))


def olmo2_7b() -> Experiment:
    """OLMo 2 7B (arXiv 2501.00656): norms behind sub-layers alone, and of all queries, and keys, together; 32 layers of 4096;
    7,298,617,344 parameters."""
    model = _decoder(
        "olmo2",
        vocab=100_352,
        layers=32,
        model_dim=4096,
        attention=GroupedQuery(heads=32, head_dim=128, qk_norm=QkNorm(kind="rms", over="all")),
        positions=Rotary(base=5e5),
        norm=NormConfig(eps=1e-6, order="reordered"),
        hidden_dim=11_008,
    )
    return _released(model)


def smollm2_135m() -> Experiment:
    """SmolLM2 135M (arXiv 2502.02737): 30 layers of 576, 134.5e6 parameters; starts from the released weights.

    `python -m scripts.prepare_data smollm2_135m` fetches them. Training goes on with 92 MB of English.
    """
    model = _decoder(
        vocab=49_152,
        layers=30,
        model_dim=576,
        attention=GroupedQuery(heads=9, head_dim=64, kv_heads=3),
        positions=Rotary(base=100_000.0),
        output=Output(tied=True),
        hidden_dim=1536,
    )
    return Experiment(
        model=model,
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
    model = _decoder(
        "smollm3",
        vocab=128_256,
        layers=36,
        model_dim=2048,
        attention=GroupedQuery(
            heads=16,
            head_dim=128,
            kv_heads=4,
            pattern=(LayerVariant(), LayerVariant(), LayerVariant(), LayerVariant(rotary=False)),
        ),
        positions=Rotary(base=5e6),
        norm=NormConfig(eps=1e-6),
        output=Output(tied=True),
        hidden_dim=11_008,
    )
    return _released(model)


def _decoder(dialect: Any = "", *, hidden_dim: int, activation: Any = "silu", **fields: Any) -> GptConfig:
    """Returns a decoder of LLaMA's shape."""
    dense = Dense(hidden_dim=hidden_dim, activation=activation, gated=True)
    shape: dict[str, Any] = dict(positions=Rotary(), feed_forward=dense, norm=NormConfig(eps=1e-5), output=Output(tied=False))
    return GptConfig(dialect=dialect, **shape | fields)


def _gemma(dialect: Any, *, model_dim: int, **fields: Any) -> GptConfig:
    norm = NormConfig(kind="rms_plus_one", order="sandwich")
    shape: dict[str, Any] = dict(activation="gelu_tanh", norm=norm, output=Output(), embedding_scale=model_dim**0.5)
    return _decoder(dialect, model_dim=model_dim, **shape | fields)


def _released(model: GptConfig, layout: Layout | None = None, rate: float = 3e-4) -> Experiment:
    e, layout = llama2_70b(), layout or fully_sharded(64, 1)
    schedule = replace(e.optimizer.schedule, peak=rate)
    return replace(
        e,
        model=model,
        layout=layout,
        eval=replace(e.eval, batch_size=layout.devices),
        optimizer=dataclasses.replace(e.optimizer, schedule=schedule),
    )
