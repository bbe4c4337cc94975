"""`python -m tests.multi_device.observed NOTES ARGUMENTS...`: scripts.train, and what this process does meanwhile.

It writes into the folder NOTES, N being the process's number:

    rows.N             the index of every row that was read, one a line, in order
    writes.N           every path that Python opened for writing, made, renamed or removed
    saved-STEP.N       the state that went into a checkpoint: this process's pieces of every array
    restored-STEP.N    the state that came out of one

It stands between the trainer and its rows, checkpoints and files, and changes nothing that passes.
"""

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np

from data.reading import examples
from data.task import Example
from scripts import cli, train
from trainers import state, trainer
from trainers.checkpoints import manager
from trainers.plan import Plan, in_model_form

# A piece of an array: where it lies in the whole, as (start, stop) of each dimension, and its values.
Piece = tuple[tuple[tuple[int, int], ...], np.ndarray]
Pieces = dict[str, tuple[tuple[int, ...], list[Piece]]]  # by name, with the whole's shape


def pieces(p: Plan, of: state.State) -> Pieces:
    """Returns the pieces of a state that this process holds, as they are stored."""

    def place(shard: Any, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        return tuple(index.indices(size)[:2] for index, size in zip(shard.index, shape, strict=True))

    return {
        name: (x.shape, [(place(s, x.shape), np.asarray(s.data)) for s in x.addressable_shards])
        for name, x in state.by_name(in_model_form(p, of)).items()
    }


def observe(notes: Path) -> None:
    """Begins to take notes, for as long as this process lives."""
    number = os.environ.get("JAX_PROCESS_ID", "0")
    read, written = ((notes / f"{name}.{number}").open("w", buffering=1) for name in ("rows", "writes"))

    def note(name: str, p: Plan, current: state.State) -> None:
        (notes / f"{name}-{int(current.step)}.{number}").write_bytes(pickle.dumps(pieces(p, current)))

    class Source(examples.Source):
        def __init__(self, inner: examples.Source):
            self.inner, self.fingerprint = inner, inner.fingerprint

        def row(self, index: int) -> Example:
            print(index, file=read)
            return self.inner.row(index)

    class Checkpoints(manager.Checkpoints):
        def save(self, p: Plan, state: state.State, *args: Any, **kwargs: Any) -> None:
            note("saved", p, state)
            super().save(p, state, *args, **kwargs)

        def restore(self, p: Plan, *args: Any) -> state.State | None:
            result = super().restore(p, *args)
            if result is not None:
                note("restored", p, result)
            return result

    def hear(event: str, args: tuple[Any, ...]) -> None:  # Python tells what it is about to do
        if event == "open":
            path, _, flags = args
            paths = [path] if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else []
        else:
            paths = args[: {"os.mkdir": 1, "os.remove": 1, "os.rename": 2}.get(event, 0)]
        for path in paths:
            if isinstance(path, (str, bytes)):
                print(os.path.abspath(os.fsdecode(path)), file=written)

    trainer.open_source = lambda *args: Source(examples.open_source(*args))
    trainer.Checkpoints = Checkpoints
    sys.addaudithook(hear)


def main() -> int:
    observe(Path(sys.argv.pop(1)))
    return train.main()


if __name__ == "__main__":
    cli.run(main)
