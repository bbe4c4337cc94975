"""Compares speed with Hugging Face (PyTorch, Flax), MaxText and plain PyTorch: equal shapes, batch, precision; by turns on CPUs.

Systems on PyTorch train eagerly, and with torch.compile in a second comparison. What is compared is training, of all
parameters or of adapters, beam search of an encoder-decoder, and greedy continuation by a decoder.

    make bench-peers
    python -m scripts.lab.peers.compare --experiments gpt.bench_42m --peers hf --windows 4 --json
    python -m scripts.lab.peers.compare --to scripts/lab/peers/results/mine.json    # read by scripts.lab.peers.table

Each system runs in a process of its own, which waits while another's window of steps runs. The environments are those that
`make bench-peers` sets up, and for the zoo itself under a newer JAX the one beside it; a peer without one is left out, and a line
says so. Tokens are those of the batch; an encoder-decoder's are source and target together. A ratio is our median over the
peer's, in the same windows. Losses only show that all systems learn, and do not compare them: tokens are random, drawn anew here
and by Hugging Face, constant in MaxText.

The machine comes first: its processor, the bandwidth of its memory, and the fastest float32 product of NumPy, JAX and PyTorch. A
share is that of this product's FLOP/s in which a system does the FLOPs of the model's mathematics (docs/THROUGHPUT.md), the same
for all systems; generation has none.

GPT, BERT, T5 and Switch have the same parameters everywhere. GShard M4 has two embedding tables and a softmax matrix,
SwitchTransformers one table for all three: ours updates two more. BERT here multiplies the masked tokens alone by the
vocabulary, Hugging Face's all of them and then drops most.
"""

import contextlib
import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs import registry
from configs.experiment import Experiment
from configs.registry import ConfigError
from data.paths import ROOT, environment, write_whole
from models.errors import UserError
from scripts import cli
from scripts.lab.peers import machine
from scripts.lab.peers.table import share
from trainers.text_table import text_table


@dataclasses.dataclass(frozen=True)
class Work:
    """A task for all systems: its unit of work, and the meaning of the number that they return for the last step."""

    name: str
    unit: str
    value: str


TRAIN, GENERATE = Work("train", "tokens", "loss"), Work("generate", "sentences", "length")
TRAIN_ON_IMAGES, TRAIN_ON_GRIDS = Work("train", "images", "loss"), Work("train", "grids", "loss")
TRAIN_ON_CLICKS = Work("train", "examples", "loss")
TRAIN_ON_SOUNDS, TRANSCRIBE = Work("train", "windows", "loss"), Work("generate", "windows", "length")
CONTINUE = Work("generate", "new tokens", "length")
EXPERIMENTS = {
    "gpt.bench_42m": (TRAIN,),
    "bert.bench_42m": (TRAIN,),
    "gshard_m4.bench_67m": (TRAIN,),
    "t5.bench_60m": (TRAIN, GENERATE),
    "switch.bench_8e": (TRAIN,),
    "vit.bench_s16": (TRAIN_ON_IMAGES,),
    "metnet2.bench_2m": (TRAIN_ON_GRIDS,),
    "dlrm.bench_3t": (TRAIN_ON_CLICKS,),
    "dlrm.bench_26t": (TRAIN_ON_CLICKS,),
    "whisper.bench_tiny": (TRAIN_ON_SOUNDS, TRANSCRIBE),
    "chat.bench_smollm2": (TRAIN, CONTINUE),
    "chat.bench_smollm2_alone": (CONTINUE,),
}
WARMUP = 1  # windows at the start that do not count: programs are compiled, threads and memory set up


@dataclasses.dataclass(frozen=True)
class System:
    """A system that runs the experiments of these modules of configs/.

    Attributes:
      command: starts a process that speaks as scripts/lab/peers/serve.py says; work and experiment are appended.
      needs: how to set up its environment, for a message.
      works: the names of what it can do.
    """

    name: str
    command: tuple[str, ...]
    modules: tuple[str, ...] = ("gpt", "bert", "gshard_m4", "t5", "switch", "vit", "whisper", "chat")
    needs: str = ""
    works: tuple[str, ...] = ("train", "generate")

    @property
    def is_there(self) -> bool:
        return Path(self.command[0]).exists()


def _peer(name: str, place: str, module: str, **fields: Any) -> System:
    return System(name, (str(environment(place) / "bin/python"), "-m", f"scripts.lab.peers.{module}"), **fields)


def _compiled(peer: System) -> System:
    """Returns a system on PyTorch with torch.compile, in training alone."""
    return dataclasses.replace(peer, name=f"{peer.name}, compiled", command=(*peer.command, "--compiled"), works=(TRAIN.name,))


OURS = System("Shardzoo", (sys.executable, "-m", "scripts.lab.peers.shardzoo"))
HUGGING_FACE = _peer("Hugging Face", "parity", "huggingface", needs="make bench-peers")
PYTORCH = _peer("PyTorch", "parity", "pytorch", modules=("metnet2", "dlrm"), needs="make bench-peers")
PEERS = {
    "hf": HUGGING_FACE,
    "hf_compiled": _compiled(HUGGING_FACE),
    "pytorch": PYTORCH,
    "pytorch_compiled": _compiled(PYTORCH),
    "flax": System("Flax", (sys.executable, "-m", "scripts.lab.peers.flax"), modules=("vit",), needs="make bench-peers"),
    "newest": _peer(
        "Shardzoo, newer JAX",
        "newest",
        "shardzoo",
        modules=(*System.modules, "metnet2", "dlrm"),
        needs="make setup VENV=.venv-newest PYTHON=python3.13",
    ),
    "maxtext": _peer(
        "MaxText", "maxtext", "maxtext", modules=("gpt",), needs="Python 3.12 or newer: make bench-peers PYTHON312=..."
    ),
}


class Process:
    """A running system.

    Attributes:
      about: its description of itself: "parameters", "versions", "settings".
    """

    def __init__(self, system: System, process: subprocess.Popen[str], errors: Path):
        self.system, self.process, self.errors = system, process, errors
        self.about = self._answer()

    def run(self, steps: int) -> dict[str, float]:
        """Runs a window of steps and returns {"seconds", "value"}."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):  # the process has ended; there will be no answer
            print(steps, file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()  # its last words may come after the end of its answers
            last = (self.errors.read_text(errors="replace").strip().splitlines() or ["it wrote nothing"])[-1]
            raise UserError(f"{self.system.name} stopped with exit code {code}: {last}")
        return json.loads(line)


@contextlib.contextmanager
def started(system: System, e: Experiment, work: Work) -> Iterator[Process]:
    """Yields the system, ready to do the work with the experiment's model; raises UserError with the end of its output if it
    stops."""
    variables = os.environ | {"JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "stderr"
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                [*system.command, work.name, json.dumps(registry.to_json(e))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=ROOT,
                env=variables,
            )
        try:
            yield Process(system, process, errors)
        finally:
            process.kill()  # it has nothing to save
            process.communicate()


def units(e: Experiment, work: Work) -> int:
    """Returns the tokens of a batch, for an encoder-decoder of source and target together; the tokens that continue half of a row
    each; or sentences or images."""
    if work.unit == CONTINUE.unit:
        return e.data.batch_size * (e.data.features()["tokens"].shape[0] // 2)
    if work.unit != TRAIN.unit:
        return e.data.batch_size
    features = e.data.features()
    segments = [feature for name, feature in features.items() if name.endswith("segments")]
    return e.data.batch_size * sum(feature.shape[0] for feature in segments)


def compare(
    e: Experiment, systems: Sequence[System], windows: int, steps: int, work: Work = TRAIN, bound: float = 0.0
) -> list[dict[str, Any]]:
    """Runs the experiment on all systems in turn, a window of steps each.

    Args:
      bound: FLOP/s of the machine's fastest product; 0 if it was not measured.

    Returns:
      A row for each system, as `rows` gives them, with its `share` of the bound; None where a system that counts the FLOPs of a
      step, or the bound, is missing.
    """
    with contextlib.ExitStack() as closing:
        # Started one after the other, because each compiles, or sets up its weights, on all CPUs.
        processes = [closing.enter_context(started(system, e, work)) for system in systems]
        measured: list[list[dict[str, float]]] = [[] for _ in processes]
        for _ in range(WARMUP + windows):
            for process, measured_windows in zip(processes, measured, strict=True):
                measured_windows.append(process.run(steps))
        flops = next((process.about["step_flops"] for process in processes if "step_flops" in process.about), 0)
        each = flops / units(e, work) / bound if bound else 0  # the share of a unit of work in a second
        return [
            {"experiment": e.name, "work": work.name, "system": process.system.name}
            | {"unit": work.unit, **row, "share": each * row["per_s"] or None, **process.about}
            for process, row in zip(processes, rows(measured, units(e, work) * steps), strict=True)
        ]


def rows(measured: list[list[dict[str, float]]], amount: int) -> list[dict[str, float]]:
    """Returns units per second of each system, without the first WARMUP windows: median, p10, p90, and our ratio to it.

    Args:
      measured: for each system, {"seconds", "value"} of its windows.
      amount: the units of a window.
    """
    rates = [[amount / window["seconds"] for window in windows[WARMUP:]] for windows in measured]
    medians = [statistics.median(rate) for rate in rates]
    return [
        {
            "per_s": median,
            "p10": float(np.percentile(rate, 10)),
            "p90": float(np.percentile(rate, 90)),
            "ratio": medians[0] / median,
            "value": windows[-1]["value"],
        }
        for median, rate, windows in zip(medians, rates, measured, strict=True)
    ]


def table(rows: list[dict[str, Any]], work: Work = TRAIN) -> str:
    """Returns the rows as text: the numbers, then a description of each system."""
    head = ["", f"{work.unit}/s", "p10", "p90", "ours/it", "parameters", work.value, "share"]
    forms = {"per_s": ",.4g", "p10": ",.4g", "p90": ",.4g", "ratio": ".2f", "parameters": ",", "value": ".3f"}
    cells = ([r["system"], *(format(r[key], form) for key, form in forms.items()), share(r["share"])] for r in rows)
    lines = text_table(head, cells, range(1, len(head)))
    for r in rows:
        versions = ", ".join(f"{name} {version}" for name, version in r["versions"].items())
        lines.append(f"{r['system']}: {r['settings']}; {versions}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("--experiments", default=",".join(EXPERIMENTS), help="comma-separated")
    parser.add_argument("--work", default="train,generate", help="comma-separated")
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated")
    parser.add_argument("--windows", type=int, default=8, help=f"windows of each system, after {WARMUP} that is not counted")
    parser.add_argument("--steps", type=int, default=3, help="training steps in a window")
    parser.add_argument(
        "--to", type=cli.folder, metavar="FILE.json", help="by default none: write the machine and all rows there"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line, the machine first")
    args = parser.parse_args(argv)
    experiments = cli.names("--experiments", args.experiments, EXPERIMENTS)
    works = cli.names("--work", args.work, [TRAIN.name, GENERATE.name])
    peers = [PEERS[name] for name in cli.names("--peers", args.peers, PEERS)]
    for option in ("windows", "steps"):
        if getattr(args, option) < 1:
            raise ConfigError(f"--{option} {getattr(args, option)}: at least 1 is needed")
    for peer in peers:
        if not peer.is_there:
            print(f"{peer.name} is left out: it needs {peer.needs}", file=sys.stderr, flush=True)
    peers = [peer for peer in peers if peer.is_there]
    if not peers:
        raise ConfigError(f"--peers {args.peers}: none has an environment; make bench-peers sets them up")
    host = machine.measure()
    say = functools.partial(print, flush=True)
    say(json.dumps(host) if args.json else f"{machine.as_text(host)}\n")
    kept: list[dict[str, Any]] = []
    wanted = [(name, work) for name in experiments for work in EXPERIMENTS[name] if work.name in works]
    for name, work in wanted:
        e = registry.load(name)
        systems = [OURS, *(peer for peer in peers if name.split(".")[0] in peer.modules and work.name in peer.works)]
        load = os.getloadavg()[0]  # of other processes, which slow systems down unequally
        results = [row | {"load_before": load} for row in compare(e, systems, args.windows, args.steps, work, host["flops"])]
        kept += results
        if args.to:  # after each experiment, so that what was measured is kept whatever comes
            write_whole(args.to, json.dumps({"machine": host, "rows": kept}, indent=1) + "\n")
        if args.json:
            for row in results:
                say(json.dumps(row))
            continue
        last = args.steps * (WARMUP + args.windows)
        say(
            f"{name}, {work.name}: {units(e, work):,} {work.unit} a step, {args.windows} windows of {args.steps} steps; "
            f"{work.value} of step {last}; load {load:.1f} before it began\n{table(results, work)}\n"
        )
    return 0


if __name__ == "__main__":
    cli.run(main)
