"""`python -m tests.multi_device.slowed NOTES ARGUMENTS...`: scripts.train, whose last process reads the batch of step 4 for
an hour, or whose first can write to no file of the folder $FULL from step 4 on."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from data.reading import batches
from scripts import cli, train
from tests.helpers import runs
from trainers import trainer


class Batches(batches.Batches):
    def __call__(self, step: int) -> Any:
        if "FULL" in os.environ:
            if step == 4 and os.environ["JAX_PROCESS_ID"] == "0":
                runs.fill_disk_of(Path(os.environ["FULL"]))
        elif step == 4 and int(os.environ["JAX_PROCESS_ID"]) == int(os.environ["JAX_NUM_PROCESSES"]) - 1:
            time.sleep(3600)
        return super().__call__(step)


if __name__ == "__main__":
    sys.argv.pop(1)
    trainer.Batches = Batches
    cli.run(train.main)
