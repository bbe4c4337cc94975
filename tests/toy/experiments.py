"""Experiments of the toy family."""

import dataclasses

from configs.experiment import Checkpointing, Experiment, Train
from configs.optimizers import Constant, Sgd
from data.images.config import Augmentation, ImageData
from models.sharding.layouts import data_parallel
from scripts.skeletons.kind.config import SkeletonData
from tests.toy.conv.config import ToyConvConfig
from tests.toy.grids.config import ToyGrids
from tests.toy.linear.config import ToyLinearConfig


def conv() -> Experiment:
    """Predicts the next grid."""
    return Experiment(
        model=ToyConvConfig(),
        layout=data_parallel(1, 1),
        data=ToyGrids(),
        optimizer=Sgd(schedule=Constant(value=0.05), momentum=0.9),
        train=Train(steps=6, log_every=1, checkpoint=Checkpointing(every=2)),
    )


def linear() -> Experiment:
    """Names the class of small pictures, which are mixed in pairs."""
    return Experiment(
        model=ToyLinearConfig(),
        layout=data_parallel(1, 1),
        data=ImageData(
            batch_size=16, height=8, width=8, eval_crop=1.0, augmentation=Augmentation(crop="padded", pad=1, mixup=0.2)
        ),
        optimizer=Sgd(schedule=Constant(value=0.1), momentum=0.9),
        train=Train(steps=20, log_every=1, checkpoint=Checkpointing(every=10)),
    )


def colours() -> Experiment:
    """Names colours."""
    return dataclasses.replace(linear(), data=SkeletonData())
