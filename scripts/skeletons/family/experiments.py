"""Experiments of the family `skeleton`."""

import dataclasses

from configs.experiment import Checkpointing, Experiment, Train
from configs.optimizers import AdamW, Cosine
from data.text.config import TextData
from models.sharding.layouts import LAYOUTS

from .config import SkeletonConfig


def small() -> Experiment:
    """Learns to add in a few seconds on one device."""
    return Experiment(
        model=SkeletonConfig(),
        layout=LAYOUTS["data_parallel"](1, 1),
        data=TextData(batch_size=64, length=16),  # without a cache: random numbers
        optimizer=AdamW(schedule=Cosine(peak=3e-3, steps=100, warmup=10)),
        train=Train(steps=100, log_every=10, checkpoint=Checkpointing(every=50)),
    )


def eight() -> Experiment:
    """The same on eight devices, which are simulated where there are no others."""
    return dataclasses.replace(small(), layout=LAYOUTS["tensor_parallel"](2, 4))
