"""`python -m tests.multi_device.lagging NOTES ARGUMENTS...`: scripts.train, whose last process takes LAG more to read a
batch."""

import os
import sys
import time
from typing import Any

from data.reading import batches
from scripts import cli, train
from trainers import trainer

LAG = 5  # seconds: more than a step of a tiny model on any machine


class Batches(batches.Batches):
    def _read(self, step: int) -> Any:
        if int(os.environ["JAX_PROCESS_ID"]) == int(os.environ["JAX_NUM_PROCESSES"]) - 1:
            time.sleep(LAG)
        return super()._read(step)


if __name__ == "__main__":
    sys.argv.pop(1)
    trainer.Batches = Batches
    cli.run(train.main)
