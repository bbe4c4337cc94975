"""M2M-100's experiments: the released sizes (Beyond English-Centric Multilingual Machine Translation, arXiv 2010.11125).

Translation among 100 languages with one vocabulary of 128,112 ids, languages' tokens among them. The paper's data is not public;
the experiments read translations into English (GShard M4's 102 languages), with the paper's optimizer.
"""

from configs.experiment import Checkpointing, Experiment, Train
from configs.optimizers import AdamW, InverseSqrt
from data.translation.config import Translate, TranslationData
from models.execution import Execution
from models.m2m100.config import M2M100Config
from models.parts.attention.config import GroupedQuery
from models.parts.transformer_config import Dense
from models.sharding.layout import Layout
from models.sharding.layouts import fully_sharded


def dense(layers: int, dim: int, hidden: int, vocab: int) -> M2M100Config:
    """Returns a dense model; `layers` of each stack, 16 heads."""
    return M2M100Config(
        vocab=vocab,
        layers=2 * layers,
        model_dim=dim,
        attention=GroupedQuery(heads=16, head_dim=dim // 16, biases="qkvo"),
        feed_forward=Dense(hidden_dim=hidden, bias=True),
    )


def pretraining(model: M2M100Config, layout: Layout, **execution: str) -> Experiment:
    """Returns an experiment with Adam at 5e-4 and 4,000 steps of warm-up, then falling as 1 / sqrt(step)."""
    return Experiment(
        model=model,
        layout=layout,
        data=TranslationData(cache="m4_102", batch_size=2048),
        optimizer=AdamW(schedule=InverseSqrt(scale=5e-4 * 4000**0.5, flat=4000, warmup=4000), b2=0.98, eps=1e-6),
        train=Train(steps=500_000, clip_norm=1.0, checkpoint=Checkpointing(every=5000, keep=5), log_every=100),
        eval=Translate(per_language=40, max_length=128, batch_size=2048, beams=5),
        execution=Execution(dtype="bfloat16", **execution),  # pyright: ignore[reportArgumentType]
    )


def m418() -> Experiment:
    """M2M-100 "418M": 483,905,536 parameters, its table of 128,112 ids among them."""
    return pretraining(dense(12, 1024, 4096, 128_112), fully_sharded(32, 1))


def b1_2() -> Experiment:
    """M2M-100 1.2B: 1,239,470,080 parameters."""
    return pretraining(dense(24, 1024, 8192, 128_112), fully_sharded(64, 1))
