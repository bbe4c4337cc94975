"""T5's experiments: T5 1.0 and 1.1, and mT5, whose sizes and recipe are those of the released checkpoints.

Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, arXiv 1910.10683; T5 1.1 is described in the
released checkpoints of the text-to-text-transfer-transformer repository, mT5 in arXiv 2010.11934. Counts are exact; the names
are the paper's, which round them ("large" was printed as 770 M).

Pre-training is span corruption of C4 (568 tokens are 512 inputs and 114 targets), 2^20 input tokens a step, a million steps, with
Adafactor at 1 / sqrt(max(step, 10,000)). T5's own vocabulary lies in no package: the experiments read C4 with a byte-level BPE of
32,000 ids made from it. mT5's corpus of 101 languages, mC4, is not prepared here either: its experiments have its sizes.
"""

from dataclasses import replace
from typing import Any

from configs.experiment import Checkpointing, Experiment, HeldOut, Train
from configs.optimizers import Adafactor, AdamW, Constant, Cosine, InverseSqrt
from configs.table import row
from data.config import Decode
from data.text.config import SpanTextData
from data.text_to_text.config import TextToTextData
from data.translation.config import Translate, TranslationData
from models.execution import Execution
from models.parts.attention.config import GroupedQuery
from models.parts.nested import changed
from models.parts.transformer_config import DecoderConfig, Dense, TokenLoss
from models.sharding.expert_layouts import expert_parallel
from models.sharding.layout import Layout
from models.sharding.layouts import fully_sharded
from models.t5.config import T5Config

QUICKSTART = T5Config(
    vocab=8320,
    layers=8,
    model_dim=256,
    attention=GroupedQuery(heads=4, head_dim=64, scale_dim=1.0),
    feed_forward=Dense(hidden_dim=512),
    tied=True,
    loss=TokenLoss(z_weight=1e-4),
)


def v1_0(layers: int, dim: int, hidden: int, heads: int, head_dim: int = 64) -> T5Config:
    """T5 1.0: ReLU, logits tied to the embedding, dropout 0.1 in pre-training; `layers` of each stack."""
    return T5Config(
        layers=2 * layers,
        model_dim=dim,
        attention=GroupedQuery(heads=heads, head_dim=head_dim, scale_dim=1.0),
        feed_forward=Dense(hidden_dim=hidden, dropout=0.1),
        tied=True,
        loss=TokenLoss(z_weight=1e-4),
        dropout=0.1,
        decoder=DecoderConfig(source_dropout=0.1),
    )


def v1_1(layers: int, dim: int, hidden: int, heads: int, vocab: int = 32_128) -> T5Config:
    """T5 1.1 and mT5: gated GELU, logits of their own, no dropout in pre-training; `layers` of each stack."""
    return T5Config(
        vocab=vocab,
        layers=2 * layers,
        model_dim=dim,
        attention=GroupedQuery(heads=heads, head_dim=64, scale_dim=1.0),
        feed_forward=Dense(hidden_dim=hidden, activation="gelu_tanh", gated=True),
        tied=False,
        scale_logits=False,
        loss=TokenLoss(z_weight=1e-4),
    )


def experiment(model: T5Config, layout: Layout, **execution: Any) -> Experiment:
    """Pre-training as all T5's have it."""
    return Experiment(
        model=model,
        layout=layout,
        data=SpanTextData(cache="c4_t5_568", batch_size=2048, length=568, multiple=128),
        optimizer=Adafactor(schedule=InverseSqrt()),
        train=Train(steps=1_000_000, checkpoint=Checkpointing(every=5000, keep=5), log_every=100),
        eval=HeldOut(limit=4096, batch_size=2048),  # a multiple of every layout's devices
        execution=Execution(dtype="bfloat16", **execution),
    )


def quickstart() -> Experiment:
    """A first T5: 7.4 M parameters on 5.9 M words of English, of which it puts back spans that were taken out.

    What switch.quickstart is compared with: the same layers, of which half are a mixture there. Rows are short, steps are many,
    and Adafactor scales updates by the parameters' size: with rows of 284 tokens or with AdamW such a model spends its first
    thousand steps on the frequencies of words (docs/LOG.md).
    """
    return Experiment(
        model=QUICKSTART,
        layout=expert_parallel(1, 1),
        data=SpanTextData(cache="t5_small", batch_size=32, length=70, multiple=16),  # 64 inputs and 14 targets
        optimizer=Adafactor(schedule=Cosine(peak=0.02, steps=2000, warmup=100, floor=0.1)),
        train=Train(steps=2000, log_every=10, checkpoint=Checkpointing(every=500, keep=2), eval_every=100),
        eval=HeldOut(limit=200, batch_size=16),
        execution=Execution(unroll=0),
    )


def bench_60m() -> Experiment:
    """T5-Small in single precision without dropout, on random translations: what speed on CPUs is compared on."""
    model = changed(
        v1_0(6, 512, 2048, 8), {"dropout": 0.0, "feed_forward.dropout": 0.0, "decoder.source_dropout": 0.0, "loss.z_weight": 0.0}
    )
    return Experiment(
        model=model,
        layout=expert_parallel(1, 1),
        data=TranslationData(batch_size=8, source_length=128, target_length=128),
        optimizer=AdamW(schedule=Constant(value=1e-4), weight_decay=0.01),
        train=Train(steps=1000),
        eval=Translate(beams=4, max_length=64),
        execution=Execution(unroll=0),
    )


def debian_sections_5k() -> Experiment:
    """The quickstart, fine-tuned to write which of 58 sections a Debian package belongs to: 5,000 labels.

    With `--train.finetune.init-from` a run or a release of t5.quickstart. The learning rate is constant, as where T5 is
    fine-tuned (section 3.1.2), and ten times T5's, since there are so few steps.
    """
    return replace(
        quickstart(),
        data=TextToTextData(cache="t5_debian_sections_5k", batch_size=2),
        optimizer=Adafactor(schedule=Constant(value=1e-2)),
        train=Train(steps=500, clip_norm=1.0, log_every=20, checkpoint=Checkpointing(every=250, keep=1)),
        eval=Decode(split="test", beams=1, length_penalty=0.0, max_length=16),
    )


def _size(model: T5Config, chips: int, **execution: Any) -> Experiment:
    return experiment(model, fully_sharded(chips, 1), **execution)


v1_0_small = row(_size, "T5-Small: 60,506,624 parameters.", v1_0(6, 512, 2048, 8), 16)
v1_0_base = row(_size, "T5-Base: 222,903,552 parameters.", v1_0(12, 768, 3072, 12), 32)
v1_0_large = row(_size, "T5-Large: 737,668,096 parameters (printed: 770 M).", v1_0(24, 1024, 4096, 16), 64)
v1_0_3b = row(_size, "T5-3B: 2,851,598,336 parameters; heads of 128.", v1_0(24, 1024, 16_384, 32, 128), 128, remat="full")
v1_0_11b = row(_size, "T5-11B: 11,307,321,344 parameters; 128 heads of 128.", v1_0(24, 1024, 65_536, 128, 128), 256, remat="full")
v1_1_small = row(_size, "T5 1.1 Small: 76,961,152 parameters.", v1_1(8, 512, 1024, 6), 16)
v1_1_base = row(_size, "T5 1.1 Base: 247,577,856 parameters.", v1_1(12, 768, 2048, 12), 32)
v1_1_large = row(_size, "T5 1.1 Large: 783,150,080 parameters.", v1_1(24, 1024, 2816, 16), 64)
v1_1_xl = row(_size, "T5 1.1 XL: 2,849,757,184 parameters.", v1_1(24, 2048, 5120, 32), 128, remat="full")


def v1_1_xxl() -> Experiment:
    """T5 1.1 XXL: 11,135,332,352 parameters."""
    kept = "attention_in+attention_out+gate+up"
    return experiment(v1_1(24, 4096, 10_240, 64), fully_sharded(128, 1), remat=kept)


MT5_VOCAB = 250_112


def _mt5(model: T5Config, like: Experiment) -> Experiment:
    """mT5's rows (1024 tokens, batches of 1024) of random tokens, otherwise as T5 1.1 of the same size.

    Its two tables of 250,112 ids have 256,114,688 of the small model's parameters.
    """
    data = SpanTextData(batch_size=1024, length=1137, multiple=128)  # 1024 inputs
    return replace(like, model=model, data=data)


mt5_small = row(_mt5, "mT5-Small: 300,176,768 parameters.", v1_1(8, 512, 1024, 6, MT5_VOCAB), v1_1_small())
mt5_base = row(_mt5, "mT5-Base: 582,401,280 parameters.", v1_1(12, 768, 2048, 12, MT5_VOCAB), v1_1_base())
mt5_large = row(_mt5, "mT5-Large: 1,229,581,312 parameters.", v1_1(24, 1024, 2816, 16, MT5_VOCAB), v1_1_large())
mt5_xl = row(_mt5, "mT5-XL: 3,742,619,648 parameters.", v1_1(24, 2048, 5120, 32, MT5_VOCAB), v1_1_xl())
mt5_xxl = row(_mt5, "mT5-XXL: 12,921,057,280 parameters.", v1_1(24, 4096, 10_240, 64, MT5_VOCAB), v1_0_11b())
