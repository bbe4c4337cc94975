"""LaMDA's experiments (Language Models for Dialog Applications, arXiv 2201.08239), and its fine-tuning on a released decoder.

The decoders of Table 27: gated GELU of 8 model widths, heads of 128, T5's relative attention, 256K tokens a batch. The vocabulary
of 32,000 is that of GSPMD's models, of which the largest is one. The table's arithmetic does not close: by its steps, batch and
days the 2B and 137B runs would need 162 % and 103 % of the chips' peak; the architectures are consistent with the sizes.
"""

from dataclasses import replace

from configs import gpt, gpt_released
from configs.experiment import Experiment
from configs.optimizers import AdamW, Cosine
from data.lamda.config import LamdaData, RateAndRank
from models.parts.nested import changed
from models.sharding.layout import Layout
from models.sharding.layouts import fully_sharded


def lamda_2b() -> Experiment:
    """LaMDA 2B: 10 layers of 2560, 40 heads; 2,179,138,560 parameters. 501k steps."""
    return _pretraining(layers=10, dim=2560, heads=40, steps=501_000, layout=fully_sharded(64, 1))


def lamda_8b() -> Experiment:
    """LaMDA 8B: 16 layers of 4096, 64 heads; 8,721,174,528 parameters. 521k steps."""
    return _pretraining(layers=16, dim=4096, heads=64, steps=521_000, layout=fully_sharded(64, 1))


def lamda_137b() -> Experiment:
    """LaMDA 137B: 64 layers of 8192, 128 heads; 137,702,416,384 parameters, the model of gpt.gspmd_128b.

    56.5 % of 1024 v3 chips' peak (section 10, which does not say whether recomputation counts). 3M steps as printed.
    """
    return _pretraining(layers=64, dim=8192, heads=128, steps=3_000_000, layout=gpt.gspmd_128b().layout)


def _pretraining(*, layers: int, dim: int, heads: int, steps: int, layout: Layout) -> Experiment:
    sizes = {"layers": layers, "model_dim": dim, "feed_forward.hidden_dim": 8 * dim, "attention.heads": heads}
    model = {f"model.{path}": size for path, size in sizes.items()} | {"model.attention.head_dim": 128}
    run = {"layout": layout, "data.batch_size": 256, "data.length": 1024, "train.steps": steps}
    return changed(gpt.gspmd_128b(), model | run)


def smollm2_chat() -> Experiment:
    """SmolLM2 135M learns responses and their ratings, generative and discriminative fine-tuning in one model (section 6.1).

    The upper third of the layers is trained: two cores have half an hour for it.
    """
    e, frozen = gpt_released.smollm2_135m(), {"finetune.freeze": ("embedding",), "finetune.freeze_layers": 20}
    return replace(
        e,
        data=LamdaData(cache="chitchat", batch_size=4, length=256, temperature=100.0),
        optimizer=AdamW(schedule=Cosine(peak=2e-4, steps=220, warmup=20, floor=0.1), b2=0.95),
        train=changed(e.train, {"steps": 220, "checkpoint.every": 110, "eval_every": 0} | frozen),
        eval=RateAndRank(split="test", limit=0, batch_size=4),
    )
