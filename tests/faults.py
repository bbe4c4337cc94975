"""Kills runs at random moments, most of them inside saves, and compares what they become with runs that were left alone.

    python -m tests.faults --kills 200 --seed 7
    python -m tests.faults --kills 20 --runs pipeline,LoRA --json

A run is killed and started again until it ends, then the next one begins, until every kind of run has had its share of the kills.
For each kind the table has: kills, how many of them left a half-written save behind, runs, restarts that did not go on from
the newest complete checkpoint, and runs whose logged numbers or last state differ by a bit from those of the run left alone.

Processes are forked from this one, which has imported everything; it needs Linux.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from configs.registry import ConfigError
from data import paths
from scripts import cli
from scripts.lab import forks
from scripts.launching.local import free_port

STEPS, EVERY = 40, 3  # of a run, and between its saves
IN_SAVES = 0.75  # of the kills are aimed at saves
LOCAL = "local"  # the folder of local checkpoints, beside the runs' folders
LIMIT = 300  # seconds, after which a start is said to hang
TEXT = ["--data.cache", "documents", "--model.vocab", "300", "--eval.split", "test", "--eval.batch_size", "8"]
BEST = ["--train.checkpoint.best", "eval/cross_entropy", "--train.eval_every", "3", "--train.checkpoint.keep", "1"]
TIERS = ["--train.checkpoint.local.every", "1", "--train.checkpoint.local.folder", "{local}"]
KINDS = {  # arguments after `gpt.quickstart --tiny`, and processes
    "one device": (["--layout", "data_parallel:1x1"], 1),
    "eight devices": (["--layout", "fully_sharded:2x4"], 1),
    "pipeline": (["--layout", "pipeline_interleaved:2x2x2"], 1),
    "LoRA": (["--layout", "data_parallel:1x1", "--train.finetune.lora.rank", "4"], 1),
    "best by metric": (["--layout", "data_parallel:1x1", *TEXT, *BEST], 1),
    "two tiers": (["--layout", "data_parallel:1x1", *TIERS], 1),
    "two processes": (["--layout", "fully_sharded:2x4", "--train.faults.stall_seconds", "5"], 2),
}


@dataclasses.dataclass
class Tally:
    """The outcomes of the runs of one kind."""

    kind: str
    kills: int = 0
    in_saves: int = 0
    runs: int = 0
    saves_lost: int = 0
    differences: list[str] = dataclasses.field(default_factory=list)

    def row(self) -> str:
        different = "; ".join(self.differences) or "none"
        return f"| {self.kind} | {self.kills} | {self.in_saves} | {self.runs} | {self.saves_lost} | {different} |"


def write_documents(folder: Path) -> None:
    """Writes a small prepared cache of this project's own documentation, with held-out paragraphs."""
    from data.reading import packing
    from data.text import encoding
    from data.vocabularies import tokenizers

    texts = [p for file in sorted((paths.ROOT / "docs").glob("*.md")) for p in file.read_text().split("\n\n")]
    (folder / "train").mkdir(parents=True)
    tokenizers.train_bpe(texts, folder / tokenizers.FILE, 300)
    tokenizer = tokenizers.Tokenizer(folder)
    rows, _ = encoding.rows_of(texts[20:100], tokenizer, 16)
    packing.write_rows(folder / "train" / "documents.array_record", rows)
    held_out = [{"id": str(i), "origin": "documents", "text": text} for i, text in enumerate(texts[:20])]
    (folder / "test.jsonl").write_text("".join(json.dumps(example) + "\n" for example in held_out))
    parts = {"documents": {"examples": len(rows), "rows": len(rows), "tokens": 16 * len(rows), "dropped": 0}}
    manifest = {"cache": folder.name, "kind": "text", "corpus": "documents", "length": 16, "vocabulary": tokenizer.size}
    manifest |= {"rows": len(rows), "parts": parts, "fingerprint": paths.digest(texts)}
    (folder / "manifest.json").write_text(json.dumps(manifest))


class Start:
    """One start of a run: its processes, forked from this one."""

    def __init__(self, kind: str, workdir: Path, data: Path):
        arguments, processes = KINDS[kind]
        run = ["gpt.quickstart", "--tiny", "--workdir", str(workdir), "--train.steps", str(STEPS)]
        run += ["--train.checkpoint.every", str(EVERY), "--train.log_every", "1"]
        run += [argument.format(local=workdir.parent / LOCAL) for argument in arguments]
        together = {}
        if processes > 1:
            together["JAX_COORDINATOR_ADDRESS"] = f"127.0.0.1:{free_port()}"
            together["JAX_NUM_PROCESSES"] = str(processes)
        # Compiling takes most of a start; less optimised programs take less of it.
        env = {"SHARDZOO_DATA": str(data), "XLA_FLAGS": "--xla_backend_optimization_level=0"} | together
        self.output = workdir.with_suffix(".log")
        self.pids = [self._fork(run, env | ({"JAX_PROCESS_ID": str(n)} if together else {})) for n in range(processes)]

    def _fork(self, arguments: Sequence[str], env: dict[str, str]) -> int:
        if pid := os.fork():
            return pid

        def prepare() -> None:
            os.environ.update(env)
            import jax  # imported before the fork: it does not read the environment any more

            jax.config.update("jax_compilation_cache_dir", str(Path(env["SHARDZOO_DATA"]) / "xla-cache"))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

        forks.run(["scripts.train", *arguments], self.output, prepare)

    def last_line(self) -> str:
        return (self.output.read_text().splitlines() or ["it said nothing"])[-1]

    def running(self) -> bool:
        return all(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None for pid in self.pids)

    def kill(self, which: int | None = None) -> None:
        """Kills one process, or all that are left."""
        for pid in self.pids if which is None else [self.pids[which]]:
            os.kill(pid, signal.SIGKILL)

    def end(self) -> list[int]:
        """Waits for all processes and returns their exit codes, negative for signals."""
        deadline, codes = time.monotonic() + LIMIT, []
        for pid in self.pids:
            while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.005)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return codes


def complete(workdir: Path) -> list[int]:
    """Returns the steps of all complete checkpoints, local ones too, of which each is one file of a single process."""
    folder = workdir / "checkpoints"
    stored = [int(p.name) for p in folder.iterdir() if p.name.isdigit()] if folder.is_dir() else []
    return sorted(stored + [int(p.name.split(".")[0]) for p in (workdir.parent / LOCAL).glob(f"{workdir.name}-*/[0-9]*.npz")])


def half_written(workdir: Path) -> set[tuple[str, int]]:
    """Returns the temporary folders of saves, by name and inode: one of the same name may be left from an earlier kill."""
    result = set()
    for folder, pattern in (
        (workdir / "checkpoints", "*.orbax-checkpoint-tmp*"),
        (workdir.parent / LOCAL, f"{workdir.name}-*/.*"),
    ):
        with contextlib.suppress(FileNotFoundError):  # a folder gets its name, or goes
            result |= {(path.name, path.stat().st_ino) for path in folder.glob(pattern)}
    return result


def wait_for_save(start: Start, workdir: Path, rng: random.Random) -> None:
    """Waits until one of the first saves of a start is being written, and a little longer."""
    for _ in range(rng.randint(1, 4)):
        before = half_written(workdir)
        while start.running() and not half_written(workdir) - before:
            time.sleep(0.0005)
    time.sleep(rng.uniform(0, 0.03))


def differences(whole: Path, killed: Path) -> list[str]:
    """Returns what differs between two finished runs: lines of the log, arrays of the last checkpoint."""
    from trainers.monitoring import metrics

    def lines(workdir: Path) -> list[Any]:
        return [{k: v for k, v in x.items() if k != "memory_gib" and "_per_s" not in k} for x in metrics.read(workdir)]

    def last(workdir: Path) -> dict[str, Any]:
        path = workdir / "checkpoints" / str(STEPS) / "meta" / "metadata"
        return json.loads(path.read_text())["checksums"]

    result = [] if lines(whole) == lines(killed) else ["logged numbers"]
    sums, others = last(whole), last(killed)
    result += [name for name in sums.keys() | others.keys() if sums.get(name) != others.get(name)]
    return result if in_a_process(same_params, whole, killed) else [*result, "the last parameters"]


def in_a_process(function: Callable, *arguments: Any) -> Any:
    """Returns function(*arguments), called in a fork: what starts threads, as JAX, TensorStore and ArrayRecord do, can't be in a
    process that others are forked from."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(function, *arguments).result(LIMIT)


def same_params(whole: Path, killed: Path) -> bool:
    import numpy as np

    from trainers.checkpoints import checkpoint

    first, second = (checkpoint.read_stored(workdir, STEPS)[2] for workdir in (whole, killed))
    return first.keys() == second.keys() and all(np.asarray(first[k]).tobytes() == np.asarray(second[k]).tobytes() for k in first)


def campaign(kind: str, kills: int, rng: random.Random, folder: Path) -> Tally:
    """Kills runs of one kind so many times."""
    tally, data = Tally(kind), folder / "data"
    whole = folder / f"{kind.replace(' ', '_')}_whole"
    for _ in range(2):  # the first one compiles
        shutil.rmtree(whole, ignore_errors=True)
        began = time.monotonic()
        start = Start(kind, whole, data)
        if any(codes := start.end()):
            raise ConfigError(f"a run of {kind!r} that nobody killed ended with {codes}: {start.last_line()}")
        duration = time.monotonic() - began
    while tally.kills < kills:
        tally.runs += 1
        workdir = folder / f"{kind.replace(' ', '_')}_{tally.runs}"
        codes = [-signal.SIGKILL]
        while any(codes):
            newest, starts, old = max(complete(workdir), default=None), started(workdir), half_written(workdir)
            start = Start(kind, workdir, data)
            if tally.kills < kills:
                if rng.random() < IN_SAVES:
                    wait_for_save(start, workdir, rng)
                else:
                    time.sleep(rng.uniform(0, duration))
                if start.running():
                    start.kill(rng.randrange(len(start.pids)))
            codes = start.end()
            if -signal.SIGKILL in codes:
                tally.kills += 1
                tally.in_saves += bool(half_written(workdir) - old)
            elif any(codes):
                raise ConfigError(f"a start of {kind!r} ended with {codes}: {start.last_line()}")
            now = started(workdir)
            tally.saves_lost += len(now) > len(starts) and now[-1]["restored"] != newest
        tally.differences += [f"run {tally.runs}: {what}" for what in differences(whole, workdir)]
        shutil.rmtree(workdir)
    return tally


def started(workdir: Path) -> list[dict[str, Any]]:
    from trainers import runlog

    return [event for event in runlog.events(workdir) if event.get("event") == "start"]


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("--kills", type=int, default=200, help="of all kinds of runs together")
    parser.add_argument("--seed", type=int, default=7, help="of the moments")
    parser.add_argument("--runs", default=",".join(KINDS), help=f"kinds of runs, with commas: {', '.join(KINDS)}")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    args = parser.parse_args()
    kinds = cli.names("--runs", args.runs, KINDS)

    rng, tallies = random.Random(args.seed), []
    with paths.scratch(Path(tempfile.gettempdir()) / "shardzoo_faults") as folder:
        in_a_process(write_documents, folder / "data" / "caches" / "documents")
        if not args.json:
            print("| run | kills | of them inside a save | runs | saves lost | differences |\n" + "| --- " * 6 + "|", flush=True)
        for number, kind in enumerate(kinds):
            share = args.kills // len(kinds) + (number < args.kills % len(kinds))
            tallies.append(campaign(kind, share, rng, folder))
            if not args.json:
                print(tallies[-1].row(), flush=True)
    if args.json:
        cli.print_json([dataclasses.asdict(tally) for tally in tallies])
    sys.exit(any(tally.differences or tally.saves_lost for tally in tallies))


if __name__ == "__main__":
    cli.run(main)
