"""Conformers of BigSSL (arXiv 2109.13226) and w2v-BERT (arXiv 2108.06209), and Whisper (arXiv 2212.04356)."""

import dataclasses
from pathlib import Path

from configs import registry
from configs.experiment import Experiment
from data.config import HeldOut
from scripts.reproductions import training
from scripts.reproductions.entry import Row, reproduction
from scripts.reproductions.sizes import parameters


@reproduction("BigSSL, Table 1; Conformer (arXiv 2005.08100), Table 1", unit="billions of parameters")
def conformer() -> list[Row]:
    """Conformers of 0.1, 0.6, 1.0 and 8.0 billion parameters."""
    printed = {"conformer.large": 0.12, "conformer.xl": 0.6, "conformer.xxl": 1.0, "conformer.g": 8.0}
    note = "rounded in the paper, which does not say what it counts: decoders of transcripts are left out here"
    return [Row(name, paper, parameters(name) / 1e9, note, within=0.06) for name, paper in printed.items()]


@reproduction("w2v-BERT, Table 1", unit="billions of parameters")
def w2v_bert() -> list[Row]:
    """Pre-trained Conformers of 0.6 and 1.0 billion parameters."""
    printed = {"conformer.w2v_bert_xl": 0.6, "conformer.w2v_bert_xxl": 1.0}
    return [
        Row(name, paper, parameters(name) / 1e9, "rounded in the paper", within=0.03) for name, paper in printed.items()
    ]


@reproduction("Whisper, Table 1, and its README", unit="millions of parameters")
def whisper() -> list[Row]:
    """Five sizes from 39 million to 1.55 billion parameters, and turbo."""
    printed = {"tiny": 39, "base": 74, "small": 244, "medium": 769, "large_v2": 1550, "turbo": 809}
    rows = []
    for name, paper in printed.items():
        ours = parameters(f"whisper.{name}") / 1e6
        rows.append(Row(name, paper, ours, "ours is the count of the released checkpoint", within=0.035))
    return rows


CTC = "eval/ctc"
SEEDS, PRETRAINING, TUNING = (0, 1), 120, 120


@reproduction(
    "wav2vec 2.0 (arXiv 2006.11477), Tables 1 and 9; BigSSL, section 4", unit="held-out CTC loss, nats a token", kind="trained",
    minutes=14,
)  # fmt: skip
def wav2vec(folder: Path) -> list[Row]:
    """Pre-training on sound without texts makes a recogniser that learns from few texts better than one from scratch."""
    heard = training.arm("pretrained", _small("conformer.small_unlabelled", PRETRAINING))
    first = training.train(folder, [heard], SEEDS)["pretrained"]
    runs: training.Runs = {"scratch": [], "from-pretrained": []}
    for seed, run in zip(SEEDS, first, strict=True):  # each from the weights of its own seed
        arms = [training.arm("scratch", _small("conformer.small_czech", TUNING))]
        arms.append(training.arm("from-pretrained", arms[0].experiment, f"--train.init_from={run.workdir}"))
        for name, of_arm in training.train(folder, arms, (seed,)).items():
            runs[name] += of_arm
    loss = {name: training.values(of_arm, CTC) for name, of_arm in runs.items()}
    rows = training.curve_rows(runs, CTC)
    contrast = training.mean(training.values(first, "eval/told_apart"))
    rows.append(Row(
        "pre-training: masked positions told right", None, contrast.value, "by chance 1 of 51", error=contrast.error,
    ))  # fmt: skip
    note = f"{PRETRAINING} steps on 1.4 hours; the paper has 960 hours, 400,000 steps"
    gain = training.less(loss["from-pretrained"], loss["scratch"])
    return [*rows, training.claim("from-pretrained less scratch", gain, -1, None, note)]


def _small(name: str, steps: int) -> Experiment:
    """Returns one of the small Conformers with 4 layers of 96, two rows of 16 s a step, scored by its loss."""
    e = registry.load(name)
    e = dataclasses.replace(e, eval=HeldOut(split="test", limit=60, batch_size=4))
    sizes = ("--model.layers=4", "--model.model_dim=96", "--model.hidden_dim=384", "--data.batch_size=2")
    return training.shortened(e, steps, *sizes, evaluations=4)
