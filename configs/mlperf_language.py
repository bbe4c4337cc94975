"""MLPerf Training's language benchmarks of the rounds 5.1 to 6.1, with the settings of the closed division (docs/MLPERF.md).

Sources. "Rules" is training_rules.adoc of github.com/mlcommons/training_policies (of 2026-05-14, commit d73e20f1), "checker"
the file closed_BENCHMARK.yaml of compliance_checker/training_6.1.0 in the package mlperf-logging, "RCP" the reference
convergence points rcp_checker/training_6.1.0/rcps_BENCHMARK.json there, "reference" the implementation in
github.com/mlcommons/training. Rate, warm-up and batch, where the rules leave them free, are those of the smallest batch that
has a convergence point.

The data are the user's: C4 and GovReport are prepared by `scripts.prepare_data NAME --from ...` with the vocabulary of a folder
(docs/MLPERF.md has the commands), and named by `--data.cache NAME`; without it a run reads random tokens and is no attempt at
a benchmark. Each attempt has a seed of its own, `--train.seed N`; a submission has as many attempts as the benchmark's `runs`
(trainers/measure/mlperf_benchmarks.py).

C4's rows differ from the references' in one thing: documents that share a row do not see each other, and positions begin anew in
each; there a row is one running text, as GovReport's are here too.
"""

from dataclasses import replace

from configs import gpt_experts, gpt_released
from configs.experiment import Checkpointing, Experiment, Finetuning, Lora, Train
from configs.optimizers import AdamW, Cosine, gpt3_adamw
from data.config import HeldOut
from data.text.config import SummaryData, TextData
from models.execution import Execution
from models.parts.attention.config import Rotary
from models.parts.moe.config import Capacity, MoeLosses
from models.parts.nested import changed
from models.sharding.layouts import fully_sharded

LLAMA3_VOCABULARY = 128_256
_HELD_OUT = 20_000  # documents of C4's validation split: more than fill 1024 rows of 8192 tokens, at about 500 tokens each


def _pretraining(e: Experiment, benchmark: str, *, batch: int, warmup: int, rate: float) -> Experiment:
    """Returns an experiment with what Llama 3.1 8B and gpt-oss 20B have in common, which is all but the model and the target.

    Rules: rows of 8192 tokens; AdamW of 0.9, 0.95 and 1e-5, decay 0.1, gradients clipped at 1.0, no dropout; a cosine over
    1,200,000 steps less the warm-up, to a tenth of the rate; 1,200,000 steps at most; an evaluation every 12,288 rows. Checker:
    1024 rows are evaluated; by the reference, the first ones of C4's validation split.
    """
    steps = 1_200_000
    return replace(
        e,
        data=TextData(batch_size=batch, length=8192),
        optimizer=gpt3_adamw(peak=rate, steps=steps, warmup=warmup, eps=1e-5),
        train=Train(
            steps=steps,
            clip_norm=1.0,
            log_every=10,
            eval_every=-(-12_288 // batch),
            benchmark=benchmark,
            checkpoint=Checkpointing(every=0),
        ),
        eval=HeldOut(limit=_HELD_OUT, rows=1024, batch_size=16),
    )


def llama31_8b() -> Experiment:
    """MLPerf's Llama 3.1 8B from scratch on C4, to a log perplexity of 3.3; 10 attempts. Rules 5.1, 6.0 and 6.1.

    Optimizer, schedule and evaluation: `_pretraining`. Rate and warm-up by the RCP of batch 16: 4e-4, 256 rows. Other batches:
    32 (8e-4, 4096 rows), 64 (8e-4, 6144), 96 (1e-3, 16,348) and 128 (2e-3, 32,768); `eval_every` is then 12,288 rows, rounded up
    to whole batches. Not the reference's: initial weights have each matrix's own variance, not 0.02 in standard deviation.
    """
    e = gpt_released.llama3_1_8b()
    e = replace(e, layout=fully_sharded(16, 1), execution=Execution(dtype="bfloat16", remat="full", loss_chunks=8))
    return _pretraining(e, "llama31_8b", batch=16, warmup=16, rate=4e-4)


def gpt_oss_20b() -> Experiment:
    """MLPerf's gpt-oss 20B from scratch on C4, to a log perplexity of 3.34; 10 attempts. Rules 6.0 and 6.1.

    Optimizer, schedule and evaluation: `_pretraining`. Rate and warm-up by the RCP of batch 16: 4e-4, 2048 rows; batch 32 has
    8e-4 and 4096, 64 has 1e-3 and 12,288. By the reference (small_llm_moe_pretraining/primus/conf) the vocabulary is Llama
    3.1's, no choice of an expert is dropped, and there is no balance loss. Not the reference's: initial weights have each
    matrix's own variance, not 0.008 in standard deviation; ends of documents are predicted, which it leaves out of the loss;
    positions are gpt-oss's own, by YaRN, of which the reference's settings name the base alone.
    """
    e = gpt_experts.gpt_oss_20b()
    moe = {"model.moe.capacity": Capacity(factor=0.0), "model.moe.losses": MoeLosses(balance_weight=0.0)}
    rows = {"model.vocab": LLAMA3_VOCABULARY, "model.moe.group_size": 8192}
    e = replace(changed(e, moe | rows), layout=fully_sharded(16, 1))
    e = replace(e, execution=Execution(dtype="bfloat16", remat="full", dispatch="ragged", loss_chunks=8))
    return _pretraining(e, "gpt_oss_20b", batch=16, warmup=128, rate=4e-4)


def deepseekv3_671b() -> Experiment:
    """MLPerf's DeepSeek-V3 671B on C4, from its checkpoint to a log perplexity of 3.6; 3 attempts. Rules 6.0 and 6.1.

    Rules: batches of at least 15,360 rows of 4096 tokens; a rate of 2.4e-5 times the root of batch / 16,384, four steps of
    warm-up, a cosine to step 12,000; AdamW of 0.9, 0.95 and 1e-8, decay 0.1, clip 1.0; an evaluation after every step. Checker:
    1024 rows are evaluated; the balance loss has weight 0.01; under 6.1 the first evaluation is that of step
    floor(42 + 24,576 / batch), 43 here, under 6.0 that of the first step (`--train.eval-from 0`). Reference: the smallest rate is
    1e-8, the tokenizer is Llama 3.1's.

    The second prediction head's loss has weight 0.1: the reference calls `deepseek_v3_pretrain_config` of Megatron-Bridge, which
    sets that. 682,636,487,424 parameters are trained, 11,610,068,224 of them its own.

    `train.finetune.init-from` names MLPerf's checkpoint, which its members can download. Not MLPerf's: the second head starts
    fresh, not from the checkpoint's; the balance loss, GShard's for the reference's over each row; in training an expert serves
    1.25 of its even share of a row, where the reference drops nothing.
    """
    e, batch, rate, steps = gpt_experts.deepseek_v3(), 16_384, 2.4e-5, 12_000
    return replace(
        changed(e, {"model.moe.losses.balance_weight": 0.01, "model.output.mtp": 0.1}),
        data=TextData(batch_size=batch, length=4096),
        optimizer=AdamW(
            schedule=Cosine(peak=rate, steps=steps, warmup=4, floor=1e-8 / rate), b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1
        ),
        train=Train(
            steps=steps,
            clip_norm=1.0,
            microbatches=16,
            log_every=1,
            eval_every=1,
            eval_from=43,
            benchmark="deepseekv3_671b",
            checkpoint=Checkpointing(every=0),
            finetune=Finetuning(fresh=("head", "mtp")),
        ),
        eval=HeldOut(limit=_HELD_OUT, rows=1024, batch_size=1024),
    )


def llama2_70b_lora() -> Experiment:
    """MLPerf's fine-tuning of Llama 2 70B on SCROLLS GovReport by adapters, to a loss of 0.925; 10 attempts. Rules 4.1 to 6.1.

    Rules: rows of 8192 tokens (they print 8196; the reference has 8192), alpha 32, dropout 0.1 of what adapters read, AdamW with
    decay 1e-4, gradients clipped at 0.3; an evaluation every 384 rows, the first floor(0.125 batch + 2) left out, so that the
    fourth, of step 192, comes first here. Checker: rank 16. RCP of batch 8: rate 4e-4 without warm-up, a cosine over 1024 steps,
    which are all. Reference: adapters of queries, keys, values and attention's output; beta 0.9 and 0.999, epsilon 1e-8 are its
    library's defaults; the whole validation split is evaluated.

    The data are reports and summaries in full rows of running text, all of which is learned; held-out ones are scored by their
    summaries alone (data/text/summaries.py). `train.finetune.init-from` names a folder with the weights, whose vocabulary encodes
    them. Not MLPerf's: queries, keys and values have adapters of their own, and draws of dropout, where the reference has one of
    rank 16 for the three together. Dropout of 0.1 is 26/256 in this zoo.
    """
    e = gpt_released.llama2_70b()
    e = changed(e, {"model.dialect": "llama", "model.positions": Rotary(), "model.norm.eps": 1e-5})
    lora = Lora(rank=16, alpha=32.0, targets=("q", "k", "v", "o"), dropout=0.1)
    return replace(
        e,
        layout=fully_sharded(8, 1),
        data=SummaryData(batch_size=8, length=8192),
        optimizer=AdamW(schedule=Cosine(peak=4e-4, steps=1024), weight_decay=1e-4),
        train=Train(
            steps=1024,
            clip_norm=0.3,
            log_every=8,
            eval_every=48,
            eval_from=192,
            benchmark="llama2_70b_lora",
            checkpoint=Checkpointing(every=0),
            finetune=Finetuning(lora=lora),
        ),
        eval=HeldOut(batch_size=8),
        execution=Execution(dtype="bfloat16", remat="full", loss_chunks=4),
    )
