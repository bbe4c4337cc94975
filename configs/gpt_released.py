"""Released dense decoders of today, for fine-tuning them and for plans of pods.

The counts of parameters are exact. How they were trained is published in part at most: optimizer and schedule are those of
gpt.llama2_70b but for the peak of the rate, the data are random tokens, as the vocabularies have no cache here, and the slice of
a pod is one that fits. `--train.init-from FOLDER` starts from a downloaded folder; docs/FINETUNE.md goes on from there.
"""

import dataclasses
from dataclasses import replace
from typing import Any

from configs import gpt
from configs.experiment import Experiment
from models.gpt.config import GptConfig
from models.parts.attention.config import LayerKind, Rotary
from models.sharding.layout import Layout
from models.sharding.layouts import fully_sharded, two_d

LLAMA3 = Rotary(scaling="llama3", factor=8.0, low=1.0, high=4.0, original=8192)


def llama3_1_8b() -> Experiment:
    """Llama 3.1 8B (arXiv 2407.21783): 32 layers of 4096; 8,030,261,248 parameters. Rotary rates are stretched from 8192
    positions to 131,072."""
    model = _decoder(
        "llama",
        vocab=128_256,
        layers=32,
        model_dim=4096,
        hidden_dim=14_336,
        heads=32,
        kv_heads=8,
        rotary_base=5e5,
        rotary=LLAMA3,
    )
    return _released("llama3_1_8b", model)


def llama3_70b() -> Experiment:
    """Llama 3 70B (arXiv 2407.21783): 80 layers of 8192; 70,553,706,496 parameters. On 512 chips a chip has a batch of 2 rows."""
    model = _decoder(
        "llama", vocab=128_256, layers=80, model_dim=8192, hidden_dim=28_672, heads=64, kv_heads=8, rotary_base=5e5
    )
    return _released("llama3_70b", model, two_d(64, 8), rate=1.5e-4)


def mistral_7b() -> Experiment:
    """Mistral 7B v0.1 (arXiv 2310.06825): a window of 4096 positions in all of 32 layers; 7,241,732,096 parameters."""
    model = _decoder(
        "mistral", vocab=32_000, layers=32, model_dim=4096, hidden_dim=14_336, heads=32, kv_heads=8,
        kinds=(LayerKind(window=4096),),
    )  # fmt: skip
    return _released("mistral_7b", model)


def qwen2_5_7b() -> Experiment:
    """Qwen2.5 7B (arXiv 2412.15115): biases of queries, keys and values; 28 layers of 3584; 7,615,616,512 parameters."""
    model = _decoder(
        "qwen2", vocab=152_064, layers=28, model_dim=3584, hidden_dim=18_944, heads=28, kv_heads=4, rotary_base=1e6,
        norm_eps=1e-6, attention_bias=True, output_bias="no",
    )  # fmt: skip
    return _released("qwen2_5_7b", model)


def qwen3_8b() -> Experiment:
    """Qwen3 8B (arXiv 2505.09388): norms of each head's queries and keys; 36 layers of 4096; 8,190,735,360 parameters."""
    model = _decoder(
        "qwen3", vocab=151_936, layers=36, model_dim=4096, hidden_dim=12_288, heads=32, kv_heads=8, rotary_base=1e6,
        norm_eps=1e-6, qk_norm=True, qk_norm_kind="rms",
    )  # fmt: skip
    return _released("qwen3_8b", model)


def gemma2_9b() -> Experiment:
    """Gemma 2 9B (arXiv 2408.00118): norms before and behind each sub-layer, capped logits, a window of 4096 in every other of 42
    layers of 3584; 9,241,705,984 parameters."""
    model = _gemma(
        "gemma2", vocab=256_000, layers=42, model_dim=3584, hidden_dim=14_336, heads=16, kv_heads=8, logit_cap=50.0,
        softmax_cap=30.0, kinds=(LayerKind(window=4096), LayerKind()),
    )  # fmt: skip
    return _released("gemma2_9b", model)


def gemma3_4b() -> Experiment:
    """The decoder of Gemma 3 4B (arXiv 2503.19786): a window of 1024 in five of six layers, with rotary positions of their own;
    34 layers of 2560; 3,880,263,168 parameters."""
    local = LayerKind(window=1024, base=10_000.0, scaled=False)
    model = _gemma(
        "gemma3_text", vocab=262_208, layers=34, model_dim=2560, hidden_dim=10_240, heads=8, kv_heads=4, rotary_base=1e6,
        rotary=Rotary(scaling="linear", factor=8.0), qk_norm=True, qk_norm_kind="rms_plus_one",
        kinds=(local, local, local, local, local, LayerKind()),
    )  # fmt: skip
    return _released("gemma3_4b", model)


def phi4() -> Experiment:
    """Phi-4 (arXiv 2412.08905): 40 layers of 5120; 14,659,507,200 parameters."""
    model = _decoder(
        "phi3",
        vocab=100_352,
        layers=40,
        model_dim=5120,
        hidden_dim=17_920,
        heads=40,
        kv_heads=10,
        rotary_base=250_000.0,
    )
    return _released("phi4", model)


def olmo2_7b() -> Experiment:
    """OLMo 2 7B (arXiv 2501.00656): norms behind sub-layers alone, and of all queries, and keys, together; 32 layers of 4096;
    7,298,617,344 parameters."""
    model = _decoder(
        "olmo2", vocab=100_352, layers=32, model_dim=4096, hidden_dim=11_008, heads=32, rotary_base=5e5, norm_eps=1e-6,
        order="reordered", qk_norm=True, qk_norm_kind="rms", qk_norm_over="all",
    )  # fmt: skip
    return _released("olmo2_7b", model)


def smollm3_3b() -> Experiment:
    """SmolLM3 3B (Hugging Face, 2025): no rotary positions in every fourth of 36 layers of 2048; 3,075,098,624 parameters."""
    model = _decoder(
        "smollm3", vocab=128_256, layers=36, model_dim=2048, hidden_dim=11_008, heads=16, kv_heads=4, rotary_base=5e6,
        norm_eps=1e-6, tied=True, kinds=(LayerKind(), LayerKind(), LayerKind(), LayerKind(rotary=False)),
    )  # fmt: skip
    return _released("smollm3_3b", model)


def _decoder(dialect: Any, **fields: Any) -> GptConfig:
    """Returns a decoder of LLaMA's shape, with heads of 128."""
    shape = dict(head_dim=128, positions="rotary", norm_eps=1e-5, activation="silu", gated=True, tied=False)
    return GptConfig(dialect=dialect, **{**shape, **fields})


def _gemma(dialect: Any, **fields: Any) -> GptConfig:
    return _decoder(
        dialect, head_dim=256, attention_scalar=256.0, norm="rms_plus_one", order="sandwich", norm_eps=1e-6,
        activation="gelu_tanh", embedding_scale=fields["model_dim"] ** 0.5, tied=True, **fields,
    )  # fmt: skip


def _released(name: str, model: GptConfig, layout: Layout | None = None, rate: float = 3e-4) -> Experiment:
    e, layout = gpt.llama2_70b(), layout or fully_sharded(64, 1)
    schedule = replace(e.optimizer.schedule, peak=rate)
    return replace(
        e, name=f"gpt.{name}", model=model, layout=layout, eval=replace(e.eval, batch_size=layout.devices),
        optimizer=dataclasses.replace(e.optimizer, schedule=schedule),
    )  # fmt: skip
