"""Training runs in folders, and damage to what they leave there."""

from pathlib import Path

import jax

from configs.experiment import Experiment
from trainers import trainer
from trainers.measure.mlperf_log import Request


def run(e: Experiment, workdir: Path, log: Request | None = None) -> int:
    """The trainer on as many of the simulated devices as the layout needs."""
    return trainer.train(e, workdir, log, jax.devices()[: e.layout.devices])


def damage(arrays: Path) -> None:
    """Flips bits in the largest file of a folder with a checkpoint's arrays."""
    files = [p for p in arrays.rglob("*") if p.is_file() and "_METADATA" not in p.name]
    victim = max(files, key=lambda p: p.stat().st_size)
    content = bytearray(victim.read_bytes())
    for i in range(len(content) // 4, len(content) // 2):
        content[i] ^= 0x5A
    victim.write_bytes(content)
