"""Trains adapters by MLPerf's recipe for Llama 2, here and by `peft` on `transformers`, and compares the losses of every step.

    python -m tests.parity.adapters                 100 steps of SmolLM2 135M, whose weights must be fetched
    python -m tests.parity.adapters --steps 20

Both sides start from the same weights (4 bits, made float32) and the same adapters, and read the same rows in the same order:
packages' descriptions in Debian with their one-line summaries, packed as GovReport's (data/text/summaries.py). Rank, alpha,
targets, optimizer, clipping and schedule are those of `mlperf.llama2_70b_lora`, the schedule over as many steps as are taken;
without dropout, whose draws differ. Both sides compute in float32.
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import save_file

from configs import registry
from configs.experiment import Experiment, Finetuning
from configs.optimizers import AdamW, Cosine, for_steps
from data import paths
from data.packages.fetch import PACKAGE_INDEX, fetch
from data.packages.weights import weights_folder
from data.prepare import prepare
from data.reading.batches import Batches
from data.reading.examples import open_source
from data.text.caches import SummaryCache
from data.text.config import SummaryData
from data.text.sources import description_entries
from models.execution import Execution
from models.sharding.layouts import ONE_DEVICE
from tests.parity.live import theirs
from trainers.plan import make_plan
from trainers.step import train_step
from trainers.weights import huggingface, init_from, load_any, peft

TOLERANCE = 0.01  # nats
_ROWS, _LENGTH, _CACHE = 2, 128, "descriptions"
_EVERY = 25  # of this many descriptions one is read


def reports(to: Path) -> Path:
    """Writes descriptions of packages as reports with summaries, in the form of SCROLLS."""
    (index,) = fetch([PACKAGE_INDEX], paths.data_dir() / "packages")
    entries = list(description_entries(index))[::_EVERY]
    pairs = (text.partition("\n") for _, _, text in entries)
    to.write_text("".join(json.dumps({"input": text, "output": summary}) + "\n" for summary, _, text in pairs if text))
    return to


def recipe(base: Path, steps: int) -> Experiment:
    """Returns the fine-tuning of a model in a folder by the recipe of Llama 2's benchmark."""
    e = registry.load("mlperf.llama2_70b_lora")
    lora = dataclasses.replace(e.train.finetune.lora, dropout=0.0)
    train = dataclasses.replace(e.train, steps=steps, benchmark="", finetune=Finetuning(init_from=str(base), lora=lora))
    return dataclasses.replace(
        e,
        model=load_any.open_weights(base).config,
        layout=ONE_DEVICE,
        execution=Execution(dtype="float32"),
        data=SummaryData(cache=_CACHE, batch_size=_ROWS, length=_LENGTH),
        optimizer=for_steps(e.optimizer, e.train.steps, steps),
        train=train,
    )


def ours(e: Experiment, base: Path, scratch: Path) -> list[float]:
    """Returns the losses of all steps; writes the first adapters, in PEFT's form, and the rows that are read."""
    plan = make_plan(e, jax.devices()[:1])
    state = init_from.new_state(plan, base, print)
    peft.write(e.model, jax.device_get(state.params), e.train.finetune.lora, scratch / "adapter", str(base))
    batches = Batches(open_source(e.data, e.model), e.data, plan.batch_shardings())
    take, losses, read = train_step(plan), list[float](), list[np.ndarray]()
    for at in range(e.train.steps):
        batch = batches(at)
        read.append(np.asarray(batch["tokens"]))
        state, metrics = take(state, batch)
        losses.append(float(metrics["loss"]))
    batches.close()
    save_file({"tokens": np.stack(read)}, scratch / "adapter" / "rows.safetensors")
    return losses


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args(arguments).steps
    released = load_any.open_weights(weights_folder("smollm2_135m"))
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        base = huggingface.write_folder(released, scratch / "base")
        table = reports(scratch / "reports.jsonl")
        os.environ["SHARDZOO_DATA"] = made
        prepare(_CACHE, SummaryCache(source=f"file:{table}", length=_LENGTH), vocabulary=base)
        e, begun = recipe(base, steps), time.perf_counter()
        here, done = ours(e, base, scratch), time.perf_counter()
        assert isinstance(e.optimizer, AdamW) and isinstance(e.optimizer.schedule, Cosine)
        optimizer = json.dumps({"rate": e.optimizer.schedule.peak, "decay": e.optimizer.weight_decay, "clip": e.train.clip_norm})
        there = json.loads(theirs("adapt", base, scratch / "adapter", optimizer))
        seconds = done - begun, time.perf_counter() - done
    apart = np.abs(np.subtract(here, there))
    print(f"{'step':>6}{'here':>10}{'peft':>10}{'apart':>10}")
    for at in sorted({*range(0, steps, 10), steps - 1, int(apart.argmax())}):
        print(f"{at:>6}{here[at]:>10.5f}{there[at]:>10.5f}{apart[at]:>10.1e}")
    print(f"{steps} steps of {_ROWS} x {_LENGTH} tokens: at most {apart.max():.1e} nats apart, in step {apart.argmax()}")
    print(f"{seconds[0]:.0f} s here, {seconds[1]:.0f} s there, compilation and loading included")
    return 0 if apart.max() <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
