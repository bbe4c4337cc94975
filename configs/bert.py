"""BERT's experiments: pre-training rows of the papers, and fine-tuning of released weights that a CPU can do.

The papers' text (Wikipedia and books) is not in a package: pre-training reads Wikipedia by its TFDS name.
"""

from dataclasses import replace
from typing import Any

from configs.experiment import Checkpointing, Experiment, Finetuning, HeldOut, Train
from configs.optimizers import Adafactor, AdamW, Constant, Exponential, Lamb, Linear
from data.labelled.config import LabelledData
from data.text.config import MaskedTextData
from models.bert.config import BertConfig, BertEmbedding
from models.execution import Execution
from models.parts.attention.config import GroupedQuery, LayerVariant, Learned, Rotary
from models.parts.heads_config import Classification, Head, MaskedLm, SentenceEmbedding, Span, Tagging
from models.parts.nested import changed
from models.parts.transformer_config import Dense, NormConfig, Output
from models.sharding import layouts
from models.sharding.layout import rules


def _bert(*, layers: int, dim: int, heads: int, vocab: int = 30_522, **fields: Any) -> BertConfig:
    """Returns BERT's block: biases everywhere, four times the width inside, GELU."""
    return BertConfig(
        vocab=vocab,
        layers=layers,
        model_dim=dim,
        attention=GroupedQuery(heads=heads, head_dim=dim // heads, biases="qkvo"),
        feed_forward=Dense(hidden_dim=4 * dim, activation="gelu", bias=True),
        **fields,
    )


def quickstart() -> Experiment:
    """A first encoder: masked words of 5.9 M words of English, minutes on a CPU; WordPiece of 30,522 ids."""
    return Experiment(
        model=_bert(layers=4, dim=192, heads=4, positions=Learned(rows=128), dropout=0.0),
        layout=layouts.data_parallel(2, 1),
        data=MaskedTextData(cache="bert_small", batch_size=32, length=128),
        optimizer=AdamW(schedule=Linear(peak=1e-3, steps=600, warmup=60), weight_decay=0.01),
        train=Train(steps=600, clip_norm=1.0, log_every=10, checkpoint=Checkpointing(every=200, keep=2)),
        eval=HeldOut(limit=400, batch_size=32),
    )


def quickstart_pairs() -> Experiment:
    """`bert.quickstart` with next-sentence prediction, BERT's second task."""
    pairs = {"model.head": MaskedLm(next_sentence=True), "data.cache": "bert_small_pairs", "data.pairs": 8}
    return changed(quickstart(), pairs)


def bench_42m() -> Experiment:
    """BERT of the shape of gpt.bench_42m, single precision, random tokens."""
    return Experiment(
        model=_bert(layers=8, dim=512, heads=8, vocab=32_000, positions=Learned(rows=256), dropout=0.0),
        layout=layouts.data_parallel(1, 1),
        data=MaskedTextData(batch_size=8, length=256),
        optimizer=AdamW(schedule=Constant(value=1e-4), weight_decay=0.01),
        train=Train(steps=1000),
        eval=HeldOut(),
        execution=Execution(unroll=0),
    )


# --- BERT, arXiv 1810.04805 --------------------------------------------------------------------------------------


def base() -> Experiment:
    """BERT base: 12 layers of 768, 109.5e6 parameters (110M). 1M steps of 256 x 512 tokens; the paper's appendix A.2.

    Of the paper's two tasks the masked words alone (RoBERTa found no use for the other); `bert.quickstart_pairs` has both.
    """
    return Experiment(
        model=_bert(layers=12, dim=768, heads=12),
        layout=layouts.data_parallel(16, 1),
        data=MaskedTextData(cache="wikipedia_512", batch_size=256, length=512),
        optimizer=AdamW(schedule=Linear(peak=1e-4, steps=1_000_000, warmup=10_000), eps=1e-6, weight_decay=0.01),
        train=Train(steps=1_000_000, clip_norm=1.0, log_every=100, checkpoint=Checkpointing(every=5000), eval_every=10_000),
        eval=HeldOut(limit=10_000, batch_size=256),
    )


def large() -> Experiment:
    """BERT large: 24 layers of 1024, 335.2e6 parameters; otherwise as base, whole words masked (the later release)."""
    sizes = {"model": _bert(layers=24, dim=1024, heads=16), "layout": layouts.fully_sharded(64, 1)}
    return changed(base(), sizes | {"data.whole_word": True})


def large_lamb() -> Experiment:
    """BERT large in 76 minutes (You et al. 2020, arXiv 1904.00962, Table 1): LAMB, batch 32,768, here its 512-token phase."""
    optimizer = Lamb(schedule=Linear(peak=5e-3, steps=15_625, warmup=3125))
    run = {"train.steps": 15_625, "train.checkpoint.every": 500, "train.eval_every": 500}
    sizes = {"layout": layouts.fully_sharded(1024, 1), "data.batch_size": 32_768, "eval.batch_size": 1024}
    return changed(large(), sizes | {"optimizer": optimizer} | run)


# --- RoBERTa, arXiv 1907.11692 ------------------------------------------------------------------------------------


def roberta_base() -> Experiment:
    """RoBERTa base: BERT base with a byte-level vocabulary of 50,265 and one type of tokens; 124,697,433 parameters. Table 9.

    500,000 steps of 8,192 x 512 tokens, masked anew each time; fine-tuned by its authors it scores 87.6 on MNLI (matched).
    Rows 0 and 1 of the 514 positions are padding's: 512 tokens at most. Random tokens: its 160 GB of text are not in a package.
    """
    return Experiment(
        model=_bert(
            layers=12,
            dim=768,
            heads=12,
            vocab=50_265,
            positions=Learned(rows=514, first=2),
            norm=NormConfig(bias=True, kind="layer", eps=1e-5, order="post"),
            embedding=BertEmbedding(types=1),
        ),
        layout=layouts.data_parallel(64, 1),
        data=MaskedTextData(batch_size=8192, length=512),
        optimizer=AdamW(schedule=Linear(peak=6e-4, steps=500_000, warmup=24_000), b2=0.98, eps=1e-6, weight_decay=0.01),
        train=Train(steps=500_000, log_every=100, checkpoint=Checkpointing(every=5000)),
        eval=HeldOut(batch_size=256),
    )


# --- ModernBERT, arXiv 2412.13663 ---------------------------------------------------------------------------------


def modernbert_base() -> Experiment:
    """ModernBERT base: 22 layers of 768, 149,655,232 parameters; every third layer sees all, the others 64 tokens to either side.

    The paper's first phase (section 2.2): 1.7T tokens in rows of 1,024, batches up to 4,608, 30 % of tokens masked, StableAdamW
    with a rate of 8e-4 that stays; here AdamW, batches of one size, and a rate that falls. Then 300B tokens in rows of 8,192,
    with base 160,000 in layers that see everything, as here. Random tokens: its text is not in a package.
    """
    return Experiment(
        model=BertConfig(
            vocab=50_368,
            layers=22,
            model_dim=768,
            attention=GroupedQuery(
                heads=12, head_dim=64, pattern=(LayerVariant(), *[LayerVariant(window=65, base=10_000.0)] * 2)
            ),
            positions=Rotary(base=160_000.0),
            feed_forward=Dense(hidden_dim=1152, activation="gelu", gated=True),
            norm=NormConfig(kind="layer", eps=1e-5),
            bare_first=True,
            embedding=BertEmbedding(types=0),
            dropout=0.0,
        ),
        layout=layouts.data_parallel(64, 1),
        data=MaskedTextData(batch_size=4608, length=1024, rate=0.3),
        optimizer=AdamW(schedule=Linear(peak=8e-4, steps=360_000, warmup=640), b2=0.98, eps=1e-6, weight_decay=1e-5),
        train=Train(steps=360_000, log_every=100, checkpoint=Checkpointing(every=5000)),
        eval=HeldOut(batch_size=256),
        execution=Execution(dtype="bfloat16"),
    )


# --- MLPerf 1.1, open division, Google: TPU v4 -------------------------------------------------------------------


def mlperf_480b() -> Experiment:
    """Google's 480B encoder, MLPerf 1.1 open: 481,815,347,200 parameters on 2048 TPU-v4 chips, 22.74 s a step.

    64 layers of 16384, gated SiLU, one head of keys and values, batch 4096 x 512: 130.7 TFLOPS a chip, 47.5 % MFU
    (63 % with recomputation, as advertised). Mesh (256, 8), GSPMD's 2D; the embedding cut as (vocab y, model x).
    Modelled: 16.7 s, 65 % MFU; as Google ran it, 18.2 s.
    """
    return Experiment(
        model=BertConfig(
            vocab=30_522,
            layers=64,
            model_dim=16_384,
            attention=GroupedQuery(heads=256, head_dim=128, kv_heads=1),
            feed_forward=Dense(hidden_dim=131_072, activation="silu", gated=True),
            norm=NormConfig(eps=1e-6),
            output=Output(label_smoothing=0.1),
            embedding=BertEmbedding(types=0, norm=False),
            head=MaskedLm(transform=False),
            dropout=0.0,
        ),
        # 30,522 = 2 x 3 x 5087 ids divide by neither axis: the vocabulary stays whole, the model dimension is cut.
        layout=replace(layouts.two_d(256, 8), name="mlperf_480b", components=(("embedding", rules(vocab=None, act_vocab=None)),)),
        data=MaskedTextData(cache="wikipedia_512", batch_size=4096, length=512),
        optimizer=Adafactor(),
        train=Train(steps=100_000, log_every=10, checkpoint=Checkpointing(every=500), eval_every=500),
        eval=HeldOut(limit=10_000, batch_size=2048),
        # Google's run kept nothing; TPU v4 has memory to spare.
        execution=Execution(dtype="bfloat16", remat="attention_out+gate"),
    )


def mlperf_200b() -> Experiment:
    """Google's 200B encoder, MLPerf 1.1 open: 199,717,148,096 parameters on 1024 TPU-v4 chips, 16.83 s a step.

    66 layers of 12288, ReLU with biases, a scale per dimension of the queries, attention logits capped at 50 and output
    logits at 30, no position weights; batch 4096 x 512: 146.4 TFLOPS a chip, 53 % MFU, on a mesh of (64, 16); here (128, 8),
    which needs less of the links. Random tokens: its vocabulary of 32,000 is not public. Modelled: 14.5 s, 62 % MFU; as Google
    ran it, 16.6 s.
    """
    return Experiment(
        model=BertConfig(
            vocab=32_000,
            layers=66,
            model_dim=12_288,
            attention=GroupedQuery(heads=128, head_dim=96, per_dim_scale=True, logit_cap=50.0),
            positions=None,
            feed_forward=Dense(hidden_dim=98_304, bias=True),
            norm=NormConfig(bias=True, kind="layer", eps=1e-6),
            output=Output(bias=True, cap=30.0, label_smoothing=0.1),
            embedding=BertEmbedding(types=0, norm=False),
            head=MaskedLm(transform=False),
            dropout=0.0,
        ),
        layout=replace(layouts.two_d(128, 8), name="mlperf_200b"),
        data=MaskedTextData(batch_size=4096, length=512),
        optimizer=Adafactor(schedule=Exponential(peak=2.5e-4, steps=100_000, warmup=4000, floor=0.1), parameter_scale=False),
        train=Train(steps=100_000, clip_norm=5.0, log_every=10, checkpoint=Checkpointing(every=500)),
        eval=HeldOut(batch_size=1024),
        execution=Execution(dtype="bfloat16", remat="attention_in+attention_out"),
    )


# --- fine-tuning MiniLM: released weights, real tasks, minutes on a CPU --------------------------------------------


def minilm_l6() -> Experiment:
    """MiniLM (arXiv 2002.10957), 6 layers of 384, as sentence encoder: 22.6e6 parameters, released weights.

    Trained on with pairs of a package's short and long description, contrastively (Sentence-BERT, arXiv 1908.10084).
    """
    return Experiment(
        model=_bert(layers=6, dim=384, heads=12, dropout=0.0, head=SentenceEmbedding()),
        layout=layouts.data_parallel(1, 1),
        data=LabelledData(cache="debian_similar", batch_size=8, length=256, slots=16),
        optimizer=AdamW(schedule=Linear(peak=5e-5, steps=300, warmup=30), weight_decay=0.01),
        train=Train(
            steps=300, clip_norm=1.0, finetune=Finetuning(init_from="minilm_l6"), checkpoint=Checkpointing(every=100, keep=1)
        ),
        eval=HeldOut(limit=1000, batch_size=16),
    )


def minilm_debian_sections_1k() -> Experiment:
    """MiniLM told which of 58 sections a package belongs to from its one-line synopsis: 1,000 labels."""
    return _minilm_sections("1k", steps=200)


def minilm_debian_sections_5k() -> Experiment:
    """`bert.minilm_debian_sections_1k` with 5,000 labels."""
    return _minilm_sections("5k", steps=500)


def minilm_debian_sections_20k() -> Experiment:
    """`bert.minilm_debian_sections_1k` with 20,000 labels."""
    return _minilm_sections("20k", steps=1200)


def minilm_debian_sections() -> Experiment:
    """`bert.minilm_debian_sections_1k` with all labels."""
    return _minilm_sections("", steps=2500)


def minilm_debian_descriptions_5k() -> Experiment:
    """MiniLM told the section from the synopsis and the beginning of the description, with the same 5,000 labels: a teacher."""
    e = _minilm_sections("5k", steps=750)
    return replace(
        e,
        model=replace(e.model, dropout=0.0),  # unrolled for CPUs; dropout doesn't pay in so few epochs
        data=LabelledData(cache="debian_descriptions_5k", batch_size=10, length=48, slots=4),
        eval=HeldOut(split="validation", limit=500, batch_size=32),
        execution=replace(e.execution, unroll=0),
    )


def minilm_debian_taught_5k() -> Experiment:
    """5,000 labels again, and 20,000 synopses more whose sections that teacher names, reading their descriptions."""
    e = _minilm_sections("5k", steps=1400, peak=2e-4)
    return replace(
        e,
        # The teacher is unsure as it is, and two epochs of noisy labels and masked words need no more noise.
        model=changed(e.model, {"dropout": 0.0, "output.label_smoothing": 0.0}),
        data=replace(e.data, cache="debian_taught_5k", slots=128, masked=0.15),
        execution=replace(e.execution, unroll=0),
    )


def _minilm_sections(labels: str, *, steps: int, peak: float = 1.5e-4) -> Experiment:
    # Released weights need a small rate, the fresh head a large one: chosen on validation at 1,000 labels (docs/LOG.md).
    data = LabelledData(cache=f"debian_sections{'_' if labels else ''}{labels}", batch_size=4, length=128, slots=16)
    schedule = Linear(peak=peak, steps=steps, warmup=steps // 10)
    noise = {"model.dropout": 0.1, "model.output.label_smoothing": 0.1, "train.finetune.head_rate": 30.0}
    return changed(_minilm(Classification(labels=58, pooling="mean"), data, steps), noise | {"optimizer.schedule": schedule})


def _minilm(head: Head, data: LabelledData, steps: int, every: int = 0, limit: int = 0) -> Experiment:
    """Returns MiniLM fine-tuned with another head."""
    run = {"train.steps": steps, "train.checkpoint.every": every or steps, "model.head": head, "data": data}
    return changed(minilm_l6(), run | {"eval": HeldOut(split="test", limit=limit, batch_size=16)})


def minilm_brown_tags() -> Experiment:
    """MiniLM as a part-of-speech tagger of the Brown corpus."""
    data = LabelledData(cache="brown_tags", batch_size=8, length=128, slots=128)
    rates = {"optimizer.schedule": Linear(peak=3e-4, steps=200, warmup=20), "train.finetune.head_rate": 10.0}
    return changed(_minilm(Tagging(labels=12), data, 200, limit=2000), rates)


def minilm_brown_genres() -> Experiment:
    """MiniLM told which of 15 genres a passage of the Brown corpus comes from."""
    data = LabelledData(cache="brown_genres", batch_size=4, length=256, slots=4)
    return _minilm(Classification(labels=15, pooling="mean"), data, 400, every=200)


def minilm_spam() -> Experiment:
    """MiniLM told spam from mail (SpamAssassin's public corpus)."""
    data = LabelledData(cache="spam", batch_size=4, length=256, slots=8)
    return _minilm(Classification(labels=2, pooling="mean"), data, 300, every=100)


# --- fine-tuning BERT base on public sets, by their TFDS names: BERT, section 4 and appendix A.3 -------------------


def base_mnli() -> Experiment:
    """BERT base on MNLI, three epochs; the paper's test accuracy is 84.6 (matched)."""
    # 392,702 pairs, packed about 8 to a row of 128 tokens: 49k rows an epoch.
    return _base_task(Classification(labels=3), LabelledData(cache="glue_mnli", batch_size=32, slots=8), 4600)


def base_sst2() -> Experiment:
    """BERT base on SST-2, three epochs; the paper's test accuracy is 93.5."""
    return _base_task(Classification(labels=2), LabelledData(cache="glue_sst2", batch_size=32, slots=16), 1200)


def base_squad() -> Experiment:
    """BERT base on SQuAD 1.1, three epochs at 5e-5; the paper's development F1 is 88.5, exact match 80.8."""
    data = LabelledData(cache="squad", batch_size=32, length=384, slots=4, spans=True)
    return _base_task(Span(), data, 4200)


BASE = "runs/bert_base"


def _base_task(head: Classification | Span, data: LabelledData, steps: int) -> Experiment:
    e = base()
    return replace(
        e,
        model=replace(e.model, head=head),
        layout=layouts.data_parallel(8, 1),
        data=data,
        optimizer=AdamW(schedule=Linear(peak=5e-5, steps=steps, warmup=steps // 10), eps=1e-6, weight_decay=0.01),
        train=Train(
            steps=steps, clip_norm=1.0, log_every=50, checkpoint=Checkpointing(every=500), finetune=Finetuning(init_from=BASE)
        ),
        eval=HeldOut(batch_size=32),
    )
