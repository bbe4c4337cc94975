"""Experiments on conversations: released decoders tuned on them as people do it (docs/FINETUNE.md)."""

from dataclasses import replace

from configs import gpt_released
from configs.experiment import Experiment, Finetuning, Lora, Train
from configs.optimizers import AdamW, Constant, Cosine
from data.chat.config import ChatData, PreferenceData
from data.config import HeldOut
from data.text.config import TextData
from models.parts.nested import changed


def smollm2_sft() -> Experiment:
    """SmolLM2 135M tuned on the conversations of volunteers in its own chat template, of which the assistant's turns are learned.

    All 134.5e6 parameters are trained.
    """
    e = gpt_released.smollm2_135m()
    return replace(
        e,
        data=ChatData(cache="smollm2_chitchat", batch_size=4, length=1024),
        optimizer=AdamW(schedule=Cosine(peak=5e-5, steps=200, warmup=10, floor=0.1), b2=0.95),
        train=changed(e.train, {"steps": 200, "checkpoint.every": 100, "eval_every": 100}),
        eval=HeldOut(split="test", limit=50, batch_size=4),
    )


def smollm2_lora() -> Experiment:
    """`chat.smollm2_sft` with updates of rank 8 of all seven matrices of a layer.

    2,442,240 parameters: 30 layers of 8 * (4 * 576 + 576 + 2 * 192 + 576 + 3 * (576 + 1536)).
    """
    lora = Lora(rank=8, alpha=16.0, targets=("q", "k", "v", "o", "wi", "wg", "wo"))
    return changed(smollm2_sft(), {"optimizer.schedule.peak": 5e-4, "train.finetune.lora": lora})


def smollm2_dpo() -> Experiment:
    """SmolLM2 135M learns to prefer people's answers to those from other conversations, by adapters as in chat.smollm2_lora.

    Beta is that of DPO's paper (arXiv 2305.18290, appendix B), 0.1.
    """
    data = PreferenceData(cache="smollm2_preferences", batch_size=4, length=1024, pairs=4)
    schedule = Cosine(peak=1e-4, steps=100, warmup=10, floor=0.1)
    run = {"train.steps": 100, "train.checkpoint.every": 50, "train.eval_every": 50, "eval.limit": 0}
    return changed(smollm2_lora(), run | {"data": data, "optimizer.schedule": schedule})


def bench_smollm2() -> Experiment:
    """SmolLM2's 134.5e6 parameters with adapters as in chat.smollm2_lora, on random tokens: what fine-tuning and generation are
    compared on with peers (BENCHMARKS.md). Eight rows of 128 tokens; generation reads half of a row and writes the other."""
    e = smollm2_lora()
    return replace(
        e,
        data=TextData(batch_size=8, length=128),
        optimizer=AdamW(schedule=Constant(value=1e-4), weight_decay=0.01),
        train=Train(steps=1000, finetune=Finetuning(lora=e.train.finetune.lora)),
        eval=HeldOut(),
    )


def bench_smollm2_alone() -> Experiment:
    """chat.bench_smollm2 with one row: what the generation of a single text is compared on."""
    return changed(bench_smollm2(), {"data.batch_size": 1})
