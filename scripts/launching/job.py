"""A training run as every engine starts it: the checked experiment, the machines, the train command and its exit codes."""

import dataclasses
import math
import re
import shlex
import unicodedata
from pathlib import PurePosixPath

from configs.experiment import Experiment
from configs.registry import ConfigError
from data.paths import is_address
from models.errors import nearest, shortened
from models.sharding import torus
from models.sharding.layout import split_slices
from trainers.plan import make_plan
from trainers.runlog import CORRUPTED, DIVERGED, DONE, UNSAVED
from trainers.runtime.chips import CHIPS, Slice, parse_slice, set_for, usual_slice

BAD_ARGUMENT = 2  # the exit code of scripts.cli.run for a user's error
FINAL = (DONE, BAD_ARGUMENT, UNSAVED, DIVERGED, CORRUPTED)
"""Exit codes after which somebody must look first; after any other one the run is started again."""

GRACE = 300
"""Seconds between SIGTERM and SIGKILL, in which a run saves."""

_MACHINES = ("cpu", "gpu")
_CONTROLS = ("Cc", "Cs", "Zl", "Zp")  # Unicode's categories: controls, halves of pairs, line and paragraph separators


@dataclasses.dataclass(frozen=True)
class Machines:
    """The hosts that a job asks for.

    Attributes:
      platform: "tpu", "gpu" or "cpu".
      hosts: how many there are, of all slices.
      per_host: TPU devices, GPUs or simulated CPU devices of each.
      slice: of TPUs, the slice or slices; None otherwise.
    """

    platform: str
    hosts: int
    per_host: int
    slice: Slice | None = None

    @property
    def devices(self) -> int:
        return self.hosts * self.per_host

    def __str__(self) -> str:
        return str(self.slice) if self.slice else f"{self.platform}:{self.hosts}x{self.per_host}"


@dataclasses.dataclass(frozen=True)
class Job:
    """A run that is ready to be started.

    Attributes:
      experiment: with all overrides.
      arguments: the arguments of scripts.train that select it, before --workdir.
      workdir: the run's folder, or gs://BUCKET/FOLDER.
      data: the data folder, likewise; "" for the checkout's own.
      restarts: how often the run is started again, at most.

    Raises:
      ConfigError: one of these texts has a control character.
    """

    experiment: Experiment
    arguments: tuple[str, ...]
    machines: Machines
    workdir: str
    data: str
    restarts: int

    def __post_init__(self):
        layout = self.experiment.layout
        texts = {"--workdir": self.workdir, "--data": self.data, "name": self.experiment.name, "layout": layout.name}
        for option, text in texts.items():
            plain(option, text)
        for text in (*self.arguments, *(axis for axis, _ in layout.mesh)):
            plain("argument", text)

    @property
    def name(self) -> str:
        """Returns the name of the job in Kubernetes and in Google Cloud: at most 40 lower-case letters, digits and dashes."""
        return re.sub("[^a-z0-9]+", "-", self.experiment.name.lower())[:40].strip("-")

    def train(self, python: str) -> str:
        """Returns the command that every host runs, quoted for a shell."""
        folder = ["--workdir", mounted(self.workdir)]
        return shlex.join([python, "-m", "scripts.train", *self.arguments, *folder, "--distributed"])

    def variables(self) -> dict[str, str]:
        """Returns the environment of the train command, by name."""
        data = {"SHARDZOO_DATA": mounted(self.data)} if self.data else {}
        if self.machines.platform == "cpu":
            data["JAX_PLATFORMS"] = "cpu"
            data["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={self.machines.per_host}"
        return data

    def summary(self) -> list[str]:
        """Returns what a reader of the file should know, in lines: the layout, and the compiler options that the trainer sets."""
        e = self.experiment
        mesh = " x ".join(f"{name} {size}" for name, size in e.layout.mesh)
        lines = [f"{e.name}, layout {e.layout.name} ({mesh}) on {self.machines}: {self.machines.hosts} hosts"]
        if self.machines.slice:
            chip = self.machines.slice.chip
            chosen = set_for(e, chip)
            options = " ".join(f"{name}={str(value).lower()}" for name, value in chip.option_set(chosen).items())
            lines += [f"scripts.train compiles with the plan's options on {chip.name}, set {chosen!r}:", options or "none"]
        return lines

    def buckets(self) -> list[str]:
        """Returns the buckets of Cloud Storage that must be mounted."""
        return sorted({bucket_of(place) for place in (self.workdir, self.data)} - {""})


def plain(option: str, text: str) -> str:
    """Returns a text that goes into a script or a manifest; raises ConfigError if it has a control character.

    A line break ends a comment, even one in quotation marks, and what stands behind it would be a command.
    """
    if any(unicodedata.category(character) in _CONTROLS for character in text):
        raise ConfigError(f"{option} '{shortened(text)}' has a control character, and no such text goes into a launch file")
    return text


def bucket_of(place: str) -> str:
    """Returns the bucket of "gs://BUCKET/FOLDER", "" for a path.

    Raises:
      ConfigError: the address has no folder, or another scheme.
    """
    if not is_address(place):
        return ""
    match = re.fullmatch(r"gs://([a-z0-9][a-z0-9._-]+)/[\w./=-]*[\w=-]/?", place)
    if not match:
        raise ConfigError(f"{place!r}: expected a bucket and a folder, as gs://bucket/runs/mine")
    return match[1]


def mounted(place: str) -> str:
    """Returns the path at which a host sees a folder: /mnt/BUCKET/FOLDER of gs://BUCKET/FOLDER, any other path unchanged."""
    bucket = bucket_of(place)
    return str(PurePosixPath("/mnt") / place.removeprefix("gs://").rstrip("/")) if bucket else place


def machines_of(text: str) -> Machines:
    """Reads --topology: a TPU slice, "v4:8x16x16", or several, "2xv6e:16x16", or hosts and the devices of each, "gpu:4x8" or
    "cpu:2x1".

    Raises:
      ConfigError: neither.
      PodError: no such slice.
    """
    name, _, sizes = text.partition(":")
    generation = split_slices(name)[1]
    if name in _MACHINES:
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", sizes):
            raise ConfigError(f"--topology {text!r}: expected hosts and the devices of each, as {name}:2x4")
        hosts, per_host = map(int, sizes.split("x"))
        return Machines(name, hosts, per_host)
    if generation not in CHIPS:
        raise ConfigError(f"--topology {text!r}: no machines {name!r}{nearest(generation, [*CHIPS, *_MACHINES])}")
    pod = parse_slice(text)
    block = (2, 2, 1) if pod.chip.torus == 3 else (2, 2)
    single = pod.chip.torus == 2 and pod.dims in ((1, 1), (2, 4))  # one host of 1 or 8 chips
    if not single and any(side % part for side, part in zip(pod.dims, block, strict=True)):
        host = "x".join(map(str, block))
        raise ConfigError(f"--topology {text!r}: a host of {generation} has {host} chips, and a slice has whole hosts")
    on_host = math.prod(pod.dims) if single else math.prod(block)
    return Machines("tpu", pod.chips // on_host, on_host * pod.chip.devices, pod)


def check(e: Experiment, machines: Machines) -> None:
    """Raises a UserError, in one line, for an experiment that cannot run on these machines.

    The layout must have a device for each of theirs, its mesh must lie on the slice's torus, and the model, the batch and the
    optimizer must fit the layout. Memory is not checked: `scripts.plan` does, with the TPU compiler.
    """
    layout = e.layout
    slices = machines.slice.slices if machines.slice else layout.slices
    if (layout.devices, layout.slices) != (machines.devices, slices):
        mesh = " x ".join(f"{name} {size}" for name, size in layout.mesh)
        if machines.slice:
            fitting = str(usual_slice(machines.slice.chip, layout.devices, layout.slices))
        else:
            hosts = max(1, round(layout.devices / machines.per_host))
            while layout.devices % hosts:
                hosts -= 1
            fitting = f"{machines.platform}:{hosts}x{layout.devices // hosts}"
        raise ConfigError(
            f"layout {layout.name!r} of {e.name} has a mesh of {mesh} = {layout.devices:,} devices, but {machines} has "
            f"{machines.devices:,}{f' in {slices} slices' * (slices > 1)}: take --topology {fitting}, or another --layout "
            f"{f'{slices}x' * (slices > 1)}NAME:XxY"
        )
    if machines.slice:
        torus.assignment(layout.mesh_of_slice, machines.slice.places, layout.torus)
    make_plan(e, abstract=True)
