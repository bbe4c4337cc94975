"""The parts that all commands share: experiments with overrides, one-line errors, devices.

This module does not import JAX: simulated devices must be requested before JAX looks for devices.
"""

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import re
import sys
import typing
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from configs import registry
from configs.experiment import Experiment
from configs.overrides import override, schedule_notes
from configs.registry import ConfigError
from data.packages.fetch import FetchError
from data.paths import data_dir, is_address, scratch
from data.stages import quiet_libraries
from models.errors import UserError, exit_code, nearest
from models.execution import Execution
from models.sharding.layout import Layout, split_slices
from models.sharding.layouts import over_slices
from scripts import versions
from trainers.audit import redaction
from trainers.runtime import xla_flags

if typing.TYPE_CHECKING:
    from trainers.weights.source import Weights

quiet_libraries()  # before any command imports JAX

COLLECTED = 100_000, 50, 100
"""Thresholds of Python's garbage collection: new objects until it looks through them, such looks until it goes to older ones."""


def run(main: Callable[[], int | None]) -> typing.NoReturn:
    """Runs a command. A user's error is one line on standard error and exit code 2; a bug keeps its traceback. Neither has
    credentials."""
    sys.excepthook = redaction.crash
    # A start makes a million objects that live: imported modules, and programs as they are traced. Looking through them again and
    # again for cycles takes a sixth of its time.
    gc.set_threshold(*COLLECTED)
    try:
        versions.warn_of_jax()
        code = main() or 0
        gc.freeze()  # skips the last garbage collection, which takes half a second once JAX is loaded
        sys.exit(code)
    except BrokenPipeError:  # the reader of our output has closed it
        sys.stdout = None
        sys.exit(0)
    except (UserError, FetchError, OSError) as error:
        if os.environ.get("SHARDZOO_TRACEBACK"):
            raise
        first, *_ = str(error).strip().splitlines() or [type(error).__name__]
        code = exit_code(error, 2)
        with contextlib.suppress(OSError):  # the output may be a file on the disk that is full
            print(f"error: {redaction.redacted(first)}", file=sys.stderr, flush=True)
        if code != 2:  # the run is over, and a save that hangs must not hold the process
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os._exit(code)
        sys.exit(code)


def parser(doc: str | None, **kwargs: Any) -> argparse.ArgumentParser:
    """Returns an argument parser whose errors are one line, like all others, and whose help ends with each default."""
    program = Path(sys.argv[0])
    if program.parent.name == "scripts":  # a command, by either of its names
        kwargs.setdefault("prog", f"shardzoo {program.stem}")
    return _Parser(description=doc, **kwargs)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Adds the default of an option to its help, where it has one and its help does not say so itself."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        absent = action.default in (None, "", argparse.SUPPRESS) or isinstance(action.default, bool)
        if absent or not action.option_strings or "default" in (action.help or ""):
            return action.help
        return f"{action.help} (default: %(default)s)"


class _Parser(argparse.ArgumentParser):
    """A parser, and those of its commands."""

    def __init__(self, **kwargs: Any):
        super().__init__(**{"formatter_class": _Help, "allow_abbrev": False} | kwargs)

    def error(self, message: str) -> typing.NoReturn:
        raise ConfigError(f"{message} (see --help)")


def add_experiment(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """Adds the arguments that `chosen` reads."""
    parser.add_argument(
        "experiment", nargs="?" if optional else None, help="a name that scripts.show lists, FILE.py:FUNCTION, or FILE.json"
    )
    parser.add_argument(
        "--layout",
        metavar="[Nx]NAME[:XxY]",
        help="a layout of the family, e.g. fully_sharded:2x4, or 2xfully_sharded:2x4 on two slices; by default the experiment's",
    )
    parser.add_argument("--synthetic", action="store_true", help="random data instead of the experiment's")
    parser.add_argument(
        "--tiny", action="store_true", help="shrink the experiment to run in seconds on one device, on random data"
    )


def chosen(args: argparse.Namespace, overrides: Sequence[str]) -> Experiment:
    """Returns the experiment that the command line asks for; typed `--field.path value` overrides are applied last, and a cache
    among them decides the fields that it must (configs/from_data.py).

    Raises:
      ConfigError: an unknown experiment, layout or field (with the nearest one), or a value of the wrong type.
    """
    from configs import from_data  # a command's --help must not wait for NumPy

    e = registry.load(args.experiment)
    if args.tiny:
        e = registry.tiny(e)
    if args.layout:
        e = dataclasses.replace(e, layout=named_layout(e, args.layout))
    e = synthetic(e) if args.synthetic else e
    changed = override(e, list(overrides), options=vars(args))
    for note in [] if args.tiny else schedule_notes(e, changed, overrides):
        print(note, file=sys.stderr)
    redaction.refuse(changed.name, dict(line.split(": ", 1) for line in registry.lines(changed)))
    return from_data.taken(changed, e, overrides)


def add_checkpoint(parser: argparse.ArgumentParser, forms: str) -> None:
    """Adds the arguments of `opened` and `opened_to_serve`; `forms` says in which forms a trained model may lie there."""
    parser.add_argument("--checkpoint", type=folder, required=True, metavar="DIR", help=forms)
    parser.add_argument("--step", type=int, help="the checkpoint of a workdir; the newest by default")
    add_precision(parser)


def add_precision(parser: argparse.ArgumentParser) -> None:
    """Adds the argument of `computed_in`."""
    parser.add_argument(
        "--execution.dtype",
        dest="dtype",
        default="",
        metavar="D",
        help="precision of the computation, float32 or bfloat16; by default that of the run, or of a foreign model's weights",
    )


def opened(path: Path, step: int | None = None, dtype: str = "", like: str = "") -> tuple[Experiment, "Weights"]:
    """Returns the experiment and the weights of a trained model, and says on standard error in which precision it is computed.

    Args:
      path: see `trainers.weights.load_any.open_model`; also the name of released weights that were fetched.
      dtype: the precision; by default the experiment's.
    """
    from trainers.weights import load_any
    from trainers.weights.init_from import located

    e, weights = load_any.open_model(located(str(path)), step, like)
    return dataclasses.replace(e, execution=computed_in(dtype, e.execution, weights)), weights


def opened_to_serve(path: Path, step: int | None = None, dtype: str = "") -> tuple["Weights", Execution]:
    """Returns the weights of a trained model and how it is computed, for commands that need no experiment; see `opened`."""
    from trainers.weights import load_any
    from trainers.weights.init_from import located

    weights, execution = load_any.open_to_serve(located(str(path)), step)
    return weights, computed_in(dtype, execution, weights)


@dataclasses.dataclass(frozen=True)
class _Computation:
    execution: Execution


def computed_in(dtype: str, execution: Execution, weights: "Weights") -> Execution:
    """Returns the execution with another precision if there is one, and says on standard error which it is."""
    if dtype:
        execution = override(_Computation(execution), [f"--execution.dtype={dtype}"]).execution
    print(f"computed in {execution.dtype}; the weights are stored as {weights.stored}", file=sys.stderr)
    return execution


def synthetic(e: Experiment) -> Experiment:
    """Returns the same experiment on random data, which needs no files."""
    return dataclasses.replace(e, data=dataclasses.replace(e.data, cache=""))


def named_layout(e: Experiment, text: str) -> Layout:
    """Returns the layout `NAME` or `NAME:XxY` of an experiment's family, or with the number of slices in front, `2xNAME:XxY`;
    without sizes, on the experiment's own mesh."""
    from models.families import family_of

    table = family_of(e.model).layouts
    slices, one = split_slices(text)
    name, _, sizes = one.partition(":")
    if name not in table:
        raise ConfigError(f"no layout {name!r}{nearest(name, table)}")
    axes = len(table[name].axes)
    given = [int(s) for s in sizes.split("x")] if re.fullmatch(r"\d+(x\d+)*", sizes) else []
    if not sizes:
        given = [size for _, size in e.layout.mesh_of_slice]
        slices = e.layout.slices if one == text else slices
    if len(given) != axes:
        form = "x".join("242"[:axes])
        raise ConfigError(f"--layout {text!r}: {name} needs a mesh of {axes} sizes, for example {name}:{form}")
    return over_slices(table[name](*given), slices)


SIMULATED = Layout(name="simulated", mesh=(("all", 8),))  # for commands that run every layout


def use_devices(layout: Layout, processes: int = 1) -> None:
    """Sets up JAX: a cache of compiled programs and, without accelerators, as many simulated devices as the layout has.

    Programs of a single CPU device run synchronously in the calling thread, so that its memory is reused
    (trainers/runtime/host_memory.py). Must be called before JAX looks for devices; the devices of an accelerator are not changed.

    Args:
      processes: how many processes share the layout's devices; each simulates its share of them.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        here = max(1, layout.devices // processes)
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={here}".strip()
    xla_flags.add()
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(data_dir() / "xla-cache"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
    import jax

    # JAX has read the environment where a module has imported it before.
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    least = float(os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least)
    jax.config.update("jax_cpu_enable_async_dispatch", False)


class JoinError(ConfigError):
    """The other processes of a run cannot be reached for now; the message is one line."""

    exit_code = 75  # trainers.runlog.PREEMPTED: the run is started again


def use_devices_of_all(layout: Layout, detect: bool, stall_seconds: float = 20) -> None:
    """Sets up JAX as `use_devices` does, and joins the other processes of the run, if there are any.

    $JAX_COORDINATOR_ADDRESS, $JAX_NUM_PROCESSES and $JAX_PROCESS_ID describe the processes. On TPU pods, under Slurm and under
    Open MPI, JAX finds the missing ones by itself.

    Args:
      detect: joins other processes even if none of the variables is set.
      stall_seconds: how long a process may give no sign of life (`train.faults.stall_seconds`). JAX itself ends the others with a
        traceback, and only later than trainers/monitoring/stalls.py does.

    Raises:
      ConfigError: a variable is missing or has no sensible value.
      JoinError: the other processes cannot be reached.
    """
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    processes, number = _count("JAX_NUM_PROCESSES", 1), _count("JAX_PROCESS_ID", 0)
    if address and not re.fullmatch(r".+:\d+", address):
        raise ConfigError(f"JAX_COORDINATOR_ADDRESS={address!r} is not of the form HOST:PORT")
    if processes is not None and number is not None and number >= processes:
        raise ConfigError(f"JAX_PROCESS_ID={number} must be below JAX_NUM_PROCESSES={processes}")
    use_devices(layout, processes or 1)
    given = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": processes, "JAX_PROCESS_ID": number}
    if not detect and all(value is None for value in given.values()):
        return
    import jax

    try:
        heartbeat = round(2 * stall_seconds) + 60
        jax.distributed.initialize(address, processes, number, heartbeat_timeout_seconds=heartbeat)
    except ValueError:  # JAX found no pod and no job that would complete the variables
        missing = ", ".join(name for name, value in given.items() if value is None)
        raise ConfigError(f"no TPU pod, Slurm or Open MPI job is found here: set {missing}") from None
    except RuntimeError as error:
        first, *_ = str(error).splitlines()
        raise JoinError(f"cannot join the other processes: {first}; run the same command again") from error


def _count(variable: str, least: int) -> int | None:
    """Returns a whole number from the environment, or None where it is not set."""
    text = os.environ.get(variable)
    if text is not None and not (text.isdecimal() and int(text) >= least):
        raise ConfigError(f"{variable}={text!r} is not a whole number from {least} on")
    return None if text is None else int(text)


def names(option: str, text: str, known: Collection[str]) -> list[str]:
    """Returns the comma-separated names of an option, in the order of `known`; raises ConfigError with the nearest one."""
    requested = [name.strip() for name in text.split(",")]
    for name in requested:
        if name not in known:
            raise ConfigError(f"{option} {name!r} is not known{nearest(name, known)}")
    return [name for name in known if name in requested]


def numbers(text: str) -> list[int]:
    """Parses an argument: whole numbers with commas between them."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not whole numbers with commas between them, as 16,64") from None


def headline(text: str) -> None:
    """Prints the title of a part of what a command does, after an empty line."""
    print(f"\n\x1b[1m{text}\x1b[0m", flush=True)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, default=str))


def folder(text: str) -> Path:
    """Parses an argument: a path."""
    if is_address(text):
        raise argparse.ArgumentTypeError(f"{text!r} is an address, and a path is needed")
    return Path(text).expanduser()


def check_picture(path: Path) -> None:
    """Raises ConfigError if the file's suffix is not a picture format that can be written."""
    from matplotlib.figure import Figure

    if path.suffix[1:] not in (known := sorted(Figure().canvas.get_supported_filetypes())):
        raise ConfigError(f"--plot {path}: no pictures in format {path.suffix!r}; choose from {', '.join(known)}")


def save_picture(figure: Any, path: Path) -> None:
    """Writes a matplotlib figure atomically, in the format of the file's suffix."""
    check_picture(path)
    with scratch(path.absolute()) as folder:
        figure.savefig(folder / path.name)
        (folder / path.name).replace(path)
