"""Experiments on the kind of data `skeleton`."""

import dataclasses

from configs import vit
from configs.experiment import Checkpointing, Experiment, Train
from configs.optimizers import AdamW, Cosine
from models.sharding.layouts import data_parallel
from models.vit.config import Classifier, Patches

from .config import SkeletonData


def random() -> Experiment:
    """Runs on random colours, which need no files."""
    return Experiment(
        model=dataclasses.replace(
            vit.QUICKSTART, layers=2, patches=Patches(height=8, width=8, channels=3, size=4), head=Classifier(classes=3)
        ),
        layout=data_parallel(1, 1),
        data=SkeletonData(),
        optimizer=AdamW(schedule=Cosine(peak=3e-3, steps=60, warmup=6)),
        train=Train(steps=60, clip_norm=1.0, log_every=10, checkpoint=Checkpointing(every=30)),
    )


def sample() -> Experiment:
    """Learns the names of the colours in sample.colours; --prepare makes the cache of them."""
    return dataclasses.replace(random(), data=SkeletonData(cache="skeleton_sample"))
