"""Released decoders from before LLaMA's shape was common, and Granite: for fine-tuning them and for plans of pods.

The counts of parameters are exact. As in gpt_released, optimizer and schedule are gpt.llama2_70b's, the data are random tokens,
and the slice of a pod is one that fits.
"""

from dataclasses import replace
from typing import Any

from configs import gpt_released
from configs.experiment import Experiment
from data.text.config import TextData
from models.gpt.config import GptConfig
from models.parts.attention.config import Alibi, GroupedQuery, Learned, Rotary
from models.parts.transformer_config import Dense, NormConfig, Output
from models.sharding.layouts import fully_sharded


def pythia_6_9b() -> Experiment:
    """Pythia 6.9B (arXiv 2304.01373), a GPT-NeoX: attention beside the feed-forward network, each with a norm, and a quarter of
    each head turned; 32 layers of 4096; 6,857,302,016 parameters."""
    shape: dict[str, Any] = dict(positions=Rotary(dims=32), biases="qkvo", order="parallel_two", output=Output(tied=False))
    return _released(_decoder("gpt_neox", vocab=50_432, layers=32, dim=4096, heads=32, **shape))


def opt_6_7b() -> Experiment:
    """OPT 6.7B (arXiv 2205.01068): learned positions from the third row of their table on; 32 layers of 4096; 6,658,473,984
    parameters."""
    shape: dict[str, Any] = dict(positions=Learned(rows=2050, first=2), biases="qkvo", activation="relu")
    return _released(_decoder("opt", vocab=50_272, layers=32, dim=4096, heads=32, **shape))


def gptj_6b() -> Experiment:
    """GPT-J 6B (Wang and Komatsuzaki, 2021): PaLM's parallel layers before PaLM; 28 layers of 4096; 6,050,882,784 parameters."""
    shape: dict[str, Any] = dict(positions=Rotary(dims=64), order="parallel", activation="gelu_tanh")
    return _released(_decoder("gptj", vocab=50_400, layers=28, dim=4096, heads=16, output=Output(tied=False, bias=True), **shape))


def falcon_7b() -> Experiment:
    """Falcon 7B (arXiv 2311.16867): parallel layers, one head of keys and values for 71 of queries; 32 layers of 4544;
    6,921,720,704 parameters."""
    shape: dict[str, Any] = dict(positions=Rotary(), kv_heads=1, order="parallel", bias=False)
    return _released(_decoder("falcon", vocab=65_024, layers=32, dim=4544, heads=71, **shape))


def bloom_7b1() -> Experiment:
    """BLOOM 7B1 (arXiv 2211.05100): ALiBi, and a norm of the embeddings; 30 layers of 4096; 7,069,016,064 parameters."""
    shape: dict[str, Any] = dict(positions=Alibi(), biases="qkvo", activation="gelu_tanh", norms_embedding=True)
    return _released(_decoder("bloom", vocab=250_880, layers=30, dim=4096, heads=32, **shape))


def granite3_8b() -> Experiment:
    """Granite 3.0 8B (IBM, 2024): LLaMA's shape with factors of embeddings, attention, residual branches and logits; 40 layers of
    4096; 8,170,848,256 parameters."""
    model = GptConfig(
        dialect="granite",
        vocab=49_155,
        layers=40,
        model_dim=4096,
        attention=GroupedQuery(heads=32, head_dim=128, kv_heads=8, scale_dim=128.0**2),
        positions=Rotary(),
        feed_forward=Dense(hidden_dim=12_800, activation="silu", gated=True),
        norm=NormConfig(eps=1e-5, branch_scale=0.22),
        output=Output(tied=True, divisor=16.0),
        embedding_scale=12.0,
    )
    return _released(model)


def _decoder(
    dialect: Any,
    *,
    dim: int,
    heads: int,
    kv_heads: int = 0,
    biases: Any = "",
    bias: bool = True,
    activation: Any = "gelu",
    order: Any = "pre",
    norms_embedding: bool = False,
    **fields: Any,
) -> GptConfig:
    """Returns a decoder with layer norms and a hidden size of four times the width; `bias` is of feed-forward networks."""
    return GptConfig(
        dialect=dialect,
        model_dim=dim,
        attention=GroupedQuery(heads=heads, head_dim=dim // heads, kv_heads=kv_heads, biases=biases),
        feed_forward=Dense(hidden_dim=4 * dim, activation=activation, bias=bias),
        norm=NormConfig(kind="layer", bias=True, eps=1e-5, order=order, embedding=norms_embedding),
        **fields,
    )


def _released(model: GptConfig) -> Experiment:
    e, layout = gpt_released.llama2_70b(), fully_sharded(64, 1)
    data = TextData(batch_size=1024, length=2048)
    return replace(e, model=model, layout=layout, data=data, eval=replace(e.eval, batch_size=layout.devices))
