"""Measures what commands take to their first output: CPU seconds with an empty and with a filled cache of compiled programs.

    python -m scripts.lab.starts --runs DIR                         # makes the runs in DIR that commands read, then measures all
    python -m scripts.lab.starts --runs DIR --commands train,translate --times 5 --json
    python -m scripts.lab.starts --runs DIR --commands train --parts          # where the seconds go, and each compiled program

Each command is a fresh process, with an empty cache once and then with the one that it has filled, of which the median counts.
CPU seconds are those of the user and of the system, of all threads. Training ends when its first step is in metrics.jsonl, other
commands when they end. Released weights must have been fetched (`make demo` does).

With --parts a command is run once more in each state under a watch, which takes some seconds itself. A part is what the process
takes in it, without the parts inside it: imports, tracing, lowering, XLA (compiling a program, or reading it from the cache).
"""

import argparse
import builtins
import collections
import importlib
import json
import os
import runpy
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from configs.registry import ConfigError
from data.paths import data_dir
from scripts import cli
from trainers.text_table import markdown

FIRST = ("--train.steps", "3", "--train.eval-every", "0", "--prepare")
"""The rest of a command that makes a run which others read."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "train": ("train", "gpt.quickstart", "--synthetic", "--layout", "data_parallel:1x1", "--train.log-every", "1"),
    "translate": ("translate", "--checkpoint", "{runs}/gshard_m4.quickstart", "--from", "de", "Passwort vergessen?"),
    "generate": ("generate", "--checkpoint", "{runs}/gpt.quickstart", "It was a", "--tokens", "1"),
    "classify": ("classify", "--checkpoint", "{runs}/bert.minilm_debian_sections_1k", "terminal emulator for GNOME"),
    "evaluate": ("evaluate", "--checkpoint", "{runs}/gpt.quickstart", "--limit", "8"),
    "generate_released": ("generate", "--checkpoint", "smollm2_135m", "The capital of France is", "--tokens", "1"),
    "transcribe": ("transcribe", "--checkpoint", "whisper_base", "{data}/sounds/call.wav"),
    "embed": ("embed", "--checkpoint", "minilm_l6", "I forgot my password", "How do I reset it?"),
}
"""Arguments by the name of a measurement; the first is the command's."""

_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "XLA",
}
_SHOWN = 0.02  # seconds of a program that has a line
_TICK = 0.002  # seconds between two looks at the process's clock


def main(arguments: list[str] | None = None) -> int:
    """Prints a row for each command and state of the cache."""
    parser = cli.parser(__doc__)
    parser.add_argument("--runs", type=cli.folder, required=True, metavar="DIR", help="the folder of the runs that commands read")
    parser.add_argument("--commands", default=",".join(COMMANDS), help=f"any of {', '.join(COMMANDS)}; all by default")
    parser.add_argument("--times", type=int, default=3, metavar="N", help="how often each is measured with a filled cache")
    parser.add_argument("--parts", action="store_true", help="also print where the seconds go")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--watch", nargs=argparse.REMAINDER, metavar="FILE", help="run the command behind FILE, and write its parts"
    )
    options = parser.parse_args(arguments)
    if options.times < 1:
        raise ConfigError(f"--times {options.times}: at least 1 is needed")
    if options.watch:
        file, module, *command = options.watch
        return watched(module, command, Path(file))
    rows = []
    for name in cli.names("--commands", options.commands, COMMANDS):
        rows += measured(name, options.runs.resolve(), options.times, options.parts)
    if options.json:
        cli.print_json(rows)
        return 0
    head = ["command", "cache", "CPU-s", "range", "wall s", "peak MiB"]
    shown = [[r["command"], r["cache"], _of(r["cpu"]), _range(r["cpu"]), _of(r["wall"]), round(max(r["mib"]))] for r in rows]
    print("\n".join(markdown(head, shown)))
    for row in rows:
        if "parts" in row:
            parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in row["parts"].items())
            print(f"\n{row['command']}, {row['cache']} cache: {parts}")
            print("\n".join(f"  {seconds:6.2f} {program}" for program, seconds in row["programs"] if seconds > _SHOWN))
    return 0


def _of(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}"


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def measured(name: str, runs: Path, times: int, parts: bool) -> Iterator[dict[str, Any]]:
    """Yields a row for an empty and one for a filled cache: CPU and wall seconds, and the peak memory in MiB, of each process."""
    command = [part.format(runs=runs, data=data_dir()) for part in COMMANDS[name]]
    for part in command:
        experiment = part.removeprefix(f"{runs}/")
        if experiment != part:  # of a run that is whole, this trains nothing
            made = [sys.executable, "-m", "scripts.train", experiment, "--workdir", part, *FIRST]
            subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as folder:
        for state, number in (("empty", 1), ("filled", times)):
            figures = [run(command, Path(folder) / "cache", Path(folder)) for _ in range(number)]
            row: dict[str, Any] = {"command": name, "cache": state}
            row |= {key: [each[key] for each in figures] for key in figures[0]}
            if parts:
                # A second empty cache, since the first run has filled its own.
                cache = Path(folder) / ("cache" if state == "filled" else "other")
                file = Path(folder) / "parts.json"
                run(command, cache, Path(folder), ["-m", "scripts.lab.starts", "--runs", str(runs), "--watch", str(file)])
                row |= json.loads(file.read_text())
            yield row


def run(command: Sequence[str], cache: Path, folder: Path, under: Sequence[str] = ()) -> dict[str, float]:
    """Runs a command to its first output in a process, and returns its CPU seconds, wall seconds and peak memory in MiB.

    Args:
      cache: the folder of compiled programs.
      folder: in which training has a new workdir.
      under: arguments of Python before the command, which then ends training itself.
    """
    name, *arguments = command
    own = Path(tempfile.mkdtemp(dir=folder))
    workdir = own / "run" if name == "train" else None
    arguments += ["--workdir", str(workdir)] if workdir else []
    argv = [sys.executable, *(under or ["-m"]), f"scripts.{name}", *arguments]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    began = time.perf_counter()
    with (own / "output").open("wb") as output:
        pid = os.posix_spawn(argv[0], argv, environment, file_actions=[(os.POSIX_SPAWN_DUP2, output.fileno(), n) for n in (1, 2)])
    ended, status, usage = os.wait4(pid, os.WNOHANG if workdir and not under else 0)
    while not ended:
        if workdir and _has_stepped(workdir):
            os.kill(pid, signal.SIGKILL)
            ended, _, usage = os.wait4(pid, 0)
        else:
            time.sleep(_TICK)
            ended, status, usage = os.wait4(pid, os.WNOHANG)
    if status:
        raise RuntimeError(f"{' '.join(command)}: ended with {status}: {(own / 'output').read_text()[-2000:]}")
    return {"cpu": usage.ru_utime + usage.ru_stime, "wall": time.perf_counter() - began, "mib": usage.ru_maxrss / 1024}


def _has_stepped(workdir: Path) -> bool:
    file = workdir / "metrics.jsonl"
    return file.exists() and file.stat().st_size > 0


# --- in the process that is watched -----------------------------------------------------------------------------------


class Clock:
    """Notes the CPU seconds of this process over time in a thread, so that those of a span can be told afterwards."""

    def __init__(self) -> None:
        self.points = [(time.time(), time.process_time())]
        self.spans: list[tuple[float, float, str, str]] = []  # begin, end, part, program
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.points.append((time.time(), time.process_time()))
            time.sleep(_TICK)

    def ended(self, event: str, duration_secs: float, **about: Any) -> None:
        """Notes an event of jax.monitoring, which has just ended."""
        if part := _EVENTS.get(event):
            now = time.time()
            self.spans.append((now - duration_secs, now, part, str(about.get("fun_name", ""))))

    @contextmanager
    def importing(self) -> Iterator[None]:
        """Notes imports, wherever they happen."""
        imports, load, depth = builtins.__import__, importlib.import_module, threading.local()

        def noted(function: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                if getattr(depth, "inside", False):
                    return function(*args, **kwargs)
                depth.inside, began = True, time.time()
                try:
                    return function(*args, **kwargs)
                finally:
                    depth.inside, now = False, time.time()
                    if now - began > _TICK:
                        self.spans.append((began, now, "imports", str(args[0])))

            return call

        builtins.__import__, importlib.import_module = noted(imports), noted(load)
        try:
            yield
        finally:
            builtins.__import__, importlib.import_module = imports, load

    def parts(self) -> dict[str, Any]:
        """Returns what `split` does of this process so far."""
        self.points.append((time.time(), time.process_time()))
        return split(self.points, self.spans)


def split(points: Sequence[tuple[float, float]], spans: Sequence[tuple[float, float, str, str]]) -> dict[str, Any]:
    """Returns the CPU seconds of each part, without the parts inside it, and those of each part and program together.

    Args:
      points: the CPU seconds of a process over time: (time, seconds).
      spans: (begin, end, part, program) on the same clock; one lies inside another or apart from it.
    """
    times, seconds = np.array(points).T

    def spent(begin: float, end: float) -> float:
        return float(np.interp(end, times, seconds) - np.interp(begin, times, seconds))

    parts = collections.defaultdict[str, float](float)
    programs = collections.defaultdict[str, float](float)
    around: list[tuple[float, str]] = []  # the spans that the next may lie inside: end, part
    for begin, end, part, program in sorted(spans, key=lambda span: (span[0], -span[1])):
        while around and around[-1][0] <= begin:
            around.pop()
        cpu = spent(begin, end)
        parts[part] += cpu
        if around:
            parts[around[-1][1]] -= cpu
        around.append((end, part))
        programs[f"{part} {program}"] += cpu
    whole = points[-1][1]
    parts = {"in all": whole, **parts, "all else": whole - sum(parts.values())}
    return {"parts": parts, "programs": sorted(programs.items(), key=lambda item: -item[1])}


def watched(module: str, arguments: Sequence[str], file: Path) -> int:
    """Runs a command in this process and writes its parts to a file; training ends after its first step."""
    clock = Clock()

    def finish() -> None:
        file.write_text(json.dumps(clock.parts()))

    def wait(workdir: Path) -> None:
        while not _has_stepped(workdir):
            time.sleep(_TICK)
        finish()
        os._exit(0)

    if "--workdir" in arguments:
        workdir = Path(arguments[arguments.index("--workdir") + 1])
        threading.Thread(target=wait, args=(workdir,), daemon=True).start()
    with clock.importing():
        from jax import monitoring

        monitoring.register_event_duration_secs_listener(clock.ended)
        sys.argv = [module, *arguments]
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            finish()
            return ended.code if isinstance(ended.code, int) else 1
    return 1


if __name__ == "__main__":
    cli.run(main)
