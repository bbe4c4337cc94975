"""How a model is computed (models/execution.py): what another execution does to a small one's loss."""

import dataclasses
from pathlib import Path
from typing import Any

from configs import registry
from configs.experiment import Experiment, HeldOut
from models.parts.nested import changed
from models.sharding.layouts import ONE_DEVICE
from scripts.reproductions import training
from scripts.reproductions.entry import Row, reproduction

LOSS = "eval/cross_entropy"
STEPS, ROWS = 200, 2


def _small() -> Experiment:
    """Returns gpt.quickstart's decoder with 4 layers of 128 on its English text."""
    e = registry.load("gpt.quickstart")
    data: Any = e.data
    small = dataclasses.replace(
        e,
        model=changed(e.model, {"model_dim": 128, "feed_forward.hidden_dim": 352, "attention.head_dim": 32}),
        layout=ONE_DEVICE,
        data=dataclasses.replace(data, batch_size=ROWS),
        eval=HeldOut(limit=40, batch_size=8),
    )
    return training.shortened(small, STEPS, evaluations=4, warm=False)


def _arms() -> list[training.Arm]:
    bfloat16 = "--execution.dtype=bfloat16"
    return [
        training.arm("float32", _small()),
        training.arm("bfloat16", _small(), bfloat16),
        training.arm("int8", _small(), bfloat16, "--execution.quantization=int8"),
    ]


@reproduction(
    "Accurate Quantized Training for TPU v5e (Google Cloud, 2023); MaxText's quantization",
    "memory",
    unit="held-out cross-entropy, nats a token",
    kind="trained",
    minutes=20,
)
def int8(folder: Path) -> list[Row]:
    """Training with products in 8 bits, forward and backward, has the loss of training in bfloat16."""
    runs = training.train(folder, _arms())
    loss = {name: training.values(of_arm, LOSS) for name, of_arm in runs.items()}
    tokens = STEPS * ROWS * 256 / 1e6
    note = f"no verdict: after {tokens:.1f} million tokens a model knows how frequent words are, where 8 bits can hardly be worse"
    rows = training.curve_rows(runs, LOSS)
    for name, other in (("bfloat16", "float32"), ("int8", "bfloat16")):
        rows.append(training.measured(f"{name} less {other}", training.differences(loss[name], loss[other]), None, note))
    return rows
