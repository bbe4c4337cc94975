"""Several processes that train together, started as a user starts them, over loopback."""

import dataclasses
import json
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from data.vocabularies import tokenizers
from tests.helpers.caches import write_text_cache
from tests.helpers.compiling import CHEAP
from tests.helpers.waiting import HANGS, wait_until
from tests.multi_device.observed import Pieces
from trainers.monitoring import metrics

VARYING = re.compile("memory_gib|.*_per_s")


@dataclasses.dataclass
class Run:
    """Processes that train together, and their output as files NOTES/out.N and NOTES/err.N."""

    processes: list[subprocess.Popen]
    workdir: Path
    notes: Path

    def said(self, number: int) -> str:
        return (self.notes / f"out.{number}").read_text()

    def complained(self, number: int) -> str:
        return (self.notes / f"err.{number}").read_text()

    def wait_for(self, text: str) -> None:
        """Until process 0 has printed this."""

        def printed() -> bool:
            running = all(p.poll() is None for p in self.processes)  # asked first: a process may print and end
            assert text in self.said(0) or running, self._everything()
            return text in self.said(0)

        wait_until(printed, self._everything)

    def end(self) -> list[int]:
        """The exit codes, once all processes have ended."""
        deadline = time.monotonic() + HANGS
        try:
            return [p.wait(max(0.1, deadline - time.monotonic())) for p in self.processes]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run hangs: {self._everything()}") from None

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def _everything(self) -> str:
        return "\n".join(self.said(n)[-2000:] + self.complained(n)[-2000:] for n in range(len(self.processes)))

    def losses(self) -> list[dict[str, float]]:
        """Every scalar that the run logged of each step, evaluations in lines of their own."""
        return [{k: v for k, v in line.items() if not VARYING.fullmatch(k)} for line in metrics.read(self.workdir)]

    def events(self) -> list[dict]:
        """run.jsonl."""
        return [json.loads(line) for line in (self.workdir / "run.jsonl").read_text().splitlines()]

    def checkpoints(self) -> list[int]:
        return sorted(int(p.name) for p in (self.workdir / "checkpoints").iterdir() if p.name.isdigit())

    def state(self, name: str) -> dict[str, np.ndarray]:
        """Whole arrays of a state that all processes noted; fails where they differ in a copy or leave a gap."""
        whole: dict[str, np.ndarray] = {}
        seen: dict[str, np.ndarray] = {}
        for number in range(len(self.processes)):
            noted: Pieces = pickle.loads((self.notes / f"{name}.{number}").read_bytes())
            for key, (shape, parts) in noted.items():
                for place, values in parts:
                    index = tuple(slice(*ends) for ends in place)
                    array = whole.setdefault(key, np.zeros(shape, values.dtype))
                    covered = seen.setdefault(key, np.zeros(shape, bool))
                    again = covered[index]
                    assert array[index][again].tobytes() == values[again].tobytes(), f"copies of {key} differ"
                    array[index], covered[index] = values, True
        assert all(covered.all() for covered in seen.values())
        return whole


class Starter:
    """Starts runs as a user does, on toy data; whatever still runs in the end is killed."""

    def __init__(self, root: Path):
        self.root = root
        self.started: list[Run] = []
        write_text_cache(root / "data" / "caches" / "toy", tokenizers.train_bpe, 300, 16)

    def __enter__(self) -> "Starter":
        return self

    def __exit__(self, *error: object) -> None:
        for run in self.started:
            run.kill()

    def __call__(self, name: str, processes: int, *arguments: str, through: str = "scripts.train", **env: str) -> Run:
        """Starts a run in the folder of this name, which may exist; "{number}" in arguments and variables is the process's.

        Args:
          through: the module that is run; those of tests.multi_device take a folder for their notes first.
          env: more environment variables.
        """
        workdir, notes = self.root / name, self.root / f"{name}.notes"
        shutil.rmtree(notes, ignore_errors=True)
        notes.mkdir()
        module = [through, *([str(notes)] if through.startswith("tests.") else [])]
        command = [sys.executable, "-m", *module, *arguments, "--workdir", str(workdir)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        together = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(processes)} if processes > 1 else {}
        run = Run([], workdir, notes)
        self.started.append(run)
        for number in range(processes):
            mine = together and {"JAX_PROCESS_ID": str(number)}
            fixed = {
                "SHARDZOO_DATA": str(self.root / "data"),
                "XLA_FLAGS": CHEAP,  # no number of devices: the command simulates them
                "JAX_ENABLE_X64": "1",
                "PYTHONHASHSEED": str(number),  # the order of sets must not enter the program
            }
            with (notes / f"out.{number}").open("w") as out, (notes / f"err.{number}").open("w") as err:
                given = {name: value.format(number=number) for name, value in env.items()}
                everything = os.environ | fixed | together | mine | given
                own = [argument.format(number=number) for argument in command]
                run.processes.append(subprocess.Popen(own, env=everything, stdout=out, stderr=err))
        return run
