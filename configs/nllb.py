"""NLLB-200's experiments: the released sizes (No Language Left Behind, arXiv 2207.04672), and its mixture of experts, the one
released descendant of GShard M4.

202 languages in one vocabulary of 256,206 ids. Data and optimizer as in configs/m2m100.py.
"""

from dataclasses import replace

from configs.experiment import Checkpointing, Experiment, Train
from configs.m2m100 import dense, pretraining
from configs.optimizers import AdamW, Cosine
from data.translation.config import Translate, TranslationData
from models.parts.moe.config import ExpertsConfig, MoeConfig, MoeLosses, Top2
from models.sharding.expert_layouts import expert_fully_sharded
from models.sharding.layouts import fully_sharded

VOCAB = 256_206


def n600m() -> Experiment:
    """NLLB-200 distilled 600M: 615,073,792 parameters."""
    return pretraining(dense(12, 1024, 4096, VOCAB), fully_sharded(32, 1))


def n1_3b() -> Experiment:
    """NLLB-200 1.3B: 1,370,638,336 parameters."""
    return pretraining(dense(24, 1024, 8192, VOCAB), fully_sharded(64, 1))


def n3_3b() -> Experiment:
    """NLLB-200 3.3B: 3,344,863,232 parameters."""
    return pretraining(dense(24, 2048, 8192, VOCAB), fully_sharded(128, 1))


def catalogues() -> Experiment:
    """Fine-tunes NLLB-200 distilled 600M, or with `--model.vocab 128112` M2M-100 418M, on m4_quickstart's message catalogues.

        scripts.train nllb.catalogues --train.finetune.init-from FOLDER --workdir runs/nllb --prepare

    FOLDER is a Hugging Face folder; its vocabulary encodes the data. Other sizes need their `--model...` fields. Parameters,
    gradients and Adam's two moments take 9.8 GB. Not from the paper, and not run: no weights can be fetched here.
    """
    base = n600m()
    return replace(
        base,
        layout=fully_sharded(1, 1),
        data=TranslationData(cache="m4_quickstart_released", batch_size=32, source_length=64, target_length=48),
        optimizer=AdamW(schedule=Cosine(peak=3e-5, steps=2000, warmup=100), b2=0.98, weight_decay=0.01),
        train=Train(steps=2000, clip_norm=1.0, checkpoint=Checkpointing(every=500, keep=2), eval_every=500),
        eval=Translate(per_language=2, beams=4, max_length=48, batch_size=32),
    )


def moe_54b() -> Experiment:
    """NLLB-200 54.5B: 54,500,569,088 parameters, 128 experts in every fourth layer, two a token (section 8.2.1)."""
    moe = MoeConfig(
        experts=ExpertsConfig(count=128, token_dropout=0.2),
        group_size=2048,
        router=Top2(second_threshold=0.0),
        losses=MoeLosses(balance_weight=0.01),
        every=4,
    )
    model = replace(dense(24, 2048, 8192, VOCAB), moe=moe)
    kept = "dispatched+attention_in+attention_out"
    return pretraining(model, expert_fully_sharded(1, 128), remat=kept)
