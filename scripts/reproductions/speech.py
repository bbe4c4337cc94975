"""wav2vec 2.0 (arXiv 2006.11477): a small Conformer, pre-trained on sound and tuned on transcripts."""

import dataclasses
from pathlib import Path

from configs import registry
from configs.experiment import Experiment
from data.config import HeldOut
from scripts.reproductions import training
from scripts.reproductions.entry import Row, reproduction

CTC = "eval/ctc"
SEEDS, PRETRAINING, TUNING = (0, 1), 120, 120


@reproduction(
    "wav2vec 2.0 (arXiv 2006.11477); BigSSL (arXiv 2109.13226)",
    "memory",
    unit="held-out CTC loss, nats a token",
    kind="trained",
    minutes=14,
)
def wav2vec(folder: Path) -> list[Row]:
    """Pre-training on sound without texts makes a recogniser that learns from few texts better than one from scratch."""
    pretrained = training.arm("pretrained", _small("conformer.small_unlabelled", PRETRAINING))
    first = training.train(folder, [pretrained], SEEDS)["pretrained"]
    runs: training.Runs = {"scratch": [], "from-pretrained": []}
    for seed, run in zip(SEEDS, first, strict=True):  # each from the weights of its own seed
        arms = [training.arm("scratch", _small("conformer.small_czech", TUNING))]
        arms.append(training.arm("from-pretrained", arms[0].experiment, f"--train.finetune.init_from={run.workdir}"))
        for name, of_arm in training.train(folder, arms, (seed,)).items():
            runs[name] += of_arm
    loss = {name: training.values(of_arm, CTC) for name, of_arm in runs.items()}
    rows = training.curve_rows(runs, CTC)
    contrast = training.mean(training.values(first, "eval/told_apart"))
    rows.append(Row("pre-training: masked positions told right", None, contrast.value, "by chance 1 of 51", error=contrast.error))
    note = f"{PRETRAINING} steps on 1.4 hours; the paper has 960 hours, 400,000 steps"
    gain = training.less(loss["from-pretrained"], loss["scratch"])
    return [*rows, training.claim("from-pretrained less scratch", gain, -1, None, note)]


def _small(name: str, steps: int) -> Experiment:
    """Returns one of the small Conformers with 4 layers of 96, two rows of 16 s a step, scored by its loss."""
    e = registry.load(name)
    e = dataclasses.replace(e, eval=HeldOut(split="test", limit=60, batch_size=4))
    sizes = ("--model.layers=4", "--model.model_dim=96", "--model.hidden_dim=384", "--data.batch_size=2")
    return training.shortened(e, steps, *sizes, evaluations=4)
