"""Experiments of the toy family."""

from configs.experiment import Experiment, Train
from configs.optimizers import Constant, Sgd
from models.sharding.layouts import data_parallel
from tests.toy.conv.config import ToyConvConfig
from tests.toy.grids.config import ToyGrids


def conv() -> Experiment:
    """Predicts the next grid."""
    return Experiment(
        name="toy.conv",
        model=ToyConvConfig(),
        layout=data_parallel(1, 1),
        data=ToyGrids(),
        optimizer=Sgd(schedule=Constant(value=0.05), momentum=0.9),
        train=Train(steps=6, log_every=1, save_every=2),
    )
