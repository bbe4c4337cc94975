"""Trains a model here and by `transformers`' Trainer, and compares the losses of every step.

    python -m tests.parity.curves                      all of TUNINGS (tests/parity/tunings.py), 50 steps each
    python -m tests.parity.curves adapters --steps 100
    python -m tests.parity.curves preferences summaries

Both sides start from the same weights, and take the same batches in the same order; optimizer, schedule and clipping are the same
settings, and both compute in float32, without dropout, whose draws differ. Here examples are packed, several in a row; there each
has a row of its own. Adapters are those of `peft`. DPO's loss is that of TRL's DPOTrainer, written out on the Trainer that it
derives from, with a second model as the reference. Weights and packages must be fetched (scripts.prepare_data smollm2_135m,
minilm_l6).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import save_file

from configs.experiment import Experiment
from configs.optimizers import AdamW, Cosine, Linear
from data import paths
from data.reading.batches import Batches
from data.reading.caches import cache_folder
from data.reading.examples import open_source
from models.errors import nearest
from tests.parity.tunings import TUNINGS, Tuning
from trainers.plan import make_plan
from trainers.step import train_step
from trainers.weights import huggingface, init_from, peft
from trainers.weights.source import Arrays


def settings(e: Experiment, loss: str) -> dict[str, object]:
    """Returns what the other side is told beside the batches."""
    rule, schedule = e.optimizer, e.optimizer.schedule
    assert isinstance(rule, AdamW) and isinstance(schedule, Linear | Cosine) and not schedule.floor
    of_rule = {"rate": schedule.peak, "warmup": schedule.warmup, "decay": rule.weight_decay, "b2": rule.b2}
    return of_rule | {
        "schedule": type(schedule).__name__.lower(),
        "clip": e.train.clip_norm,
        "loss": loss,
        "beta": getattr(e.data, "beta", 0),
    }


def ours(e: Experiment, tuning: Tuning, to: Path) -> tuple[list[float], Path]:
    """Returns the losses of all steps, and the folder that the other side starts from; writes the batches and the settings."""
    plan = make_plan(e, jax.devices()[:1])
    state = init_from.new_state(plan, cache_folder(e.data), print)
    params, lora = jax.device_get(state.params), e.train.finetune.lora
    if lora.rank:
        start = Path(e.train.finetune.init_from)
        peft.write(e.model, params, lora, to / "adapter", str(start))
    else:
        start = huggingface.write_folder(Arrays(e.model, params), to / "start")
        config = json.loads((start / "config.json").read_text()) | tuning.settings
        (start / "config.json").write_text(json.dumps(config))
    batches = Batches(open_source(e.data, e.model), e.data, plan.batch_shardings())
    take, losses, read = train_step(plan), list[float](), dict[str, np.ndarray]()
    for at in range(e.train.steps):
        batch = batches(at)
        arrays = tuning.theirs({name: np.asarray(x) for name, x in batch.items()})
        read |= {f"{at}.{name}": np.ascontiguousarray(x) for name, x in arrays.items()}
        state, metrics = take(state, batch)
        losses.append(float(metrics["loss"]))
    batches.close()
    save_file(read, to / "batches.safetensors")
    (to / "settings.json").write_text(json.dumps(settings(e, tuning.loss)))
    return losses, start


def theirs(start: Path, folder: Path) -> list[float]:
    """Returns the losses of the other side."""
    command = [paths.environment("parity") / "bin/python", paths.ROOT / "tests/parity/training.py", start, folder]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def compare(name: str, steps: int) -> bool:
    """Prints the losses of both sides; returns whether all are near enough."""
    tuning = TUNINGS[name]
    with tempfile.TemporaryDirectory() as made:
        (folder := Path(made) / "passed").mkdir()
        e, begun = tuning.experiment(Path(made), steps), time.perf_counter()
        (here, start), done = ours(e, tuning, folder), time.perf_counter()
        there = theirs(start, folder)
        seconds = done - begun, time.perf_counter() - done
    apart = np.abs(np.subtract(here, there))
    print(f"{name:>14}{'step':>6}{'here':>10}{'there':>10}{'apart':>10}")
    for at in sorted({*range(0, steps, 10), steps - 1, int(apart.argmax())}):
        print(f"{at:>20}{here[at]:>10.5f}{there[at]:>10.5f}{apart[at]:>10.1e}")
    print(f"{name}: {steps} steps, at most {apart.max():.1e} nats apart, in step {apart.argmax()}")
    print(f"{seconds[0]:.0f} s here, {seconds[1]:.0f} s there, compilation and loading included", flush=True)
    return bool(apart.max() <= tuning.tolerance)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TUNINGS)}; all by default")
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in TUNINGS:
            parser.error(f"no {name!r}{nearest(name, TUNINGS)}")
    packages = paths.data_dir() / "packages", paths.data_dir() / "weights"
    with tempfile.TemporaryDirectory() as made:
        for folder in packages:  # prepared data are of this comparison alone
            (Path(made) / folder.name).symlink_to(folder.absolute())
        os.environ["SHARDZOO_DATA"] = made
        near = [compare(name, options.steps) for name in options.names or TUNINGS]
    return 0 if all(near) else 1


if __name__ == "__main__":
    sys.exit(main())
