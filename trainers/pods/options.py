"""The compiler options that a step is compiled with: those that `scripts.plan` prices for the same chip and experiment.

Imports no JAX: `scripts.plan` must set the compiler's environment before (trainers/pods/libtpu.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from configs.experiment import Experiment
from configs.pods import PODS
from trainers.pods.chips import CHIPS, KINDS, Chip, Options, parse_slice

if TYPE_CHECKING:
    import jax

USUAL = "overlapped"


def planned_chip(e: Experiment) -> Chip:
    """Returns the generation that an experiment is planned for: its pod's, else TPU v4."""
    return parse_slice(PODS[e.name].slice).chip if e.name in PODS else CHIPS["v4"]


def set_for(e: Experiment, chip: Chip) -> str:
    """Returns the name of the experiment's set of options; the usual one where it has none, or none for this chip."""
    name = PODS[e.name].options if e.name in PODS else USUAL
    return name if name in chip.options else USUAL


def options_for(e: Experiment, devices: Sequence[Any]) -> Options:
    """Returns the options for an experiment on these devices: none unless they are TPUs of a known generation."""
    device = devices[0]
    if device.platform != "tpu" or device.device_kind not in KINDS:
        return {}
    chip = CHIPS[KINDS[device.device_kind]]
    return chip.option_set(set_for(e, chip))


def compile_with(lowered: jax.stages.Lowered, options: Options, say: Callable[[str], None]) -> jax.stages.Compiled:
    """Compiles a program with these options, but for those that the installed compiler refuses by name.

    Args:
      say: is given a line for each option that is left out.
    """
    accepted = dict(options)
    while True:
        try:
            return lowered.compile(accepted or None)
        except Exception as error:
            # The longest first: names of options begin with names of others.
            refused = next((name for name in sorted(accepted, key=len, reverse=True) if name in str(error)), None)
            if refused is None:
                raise
            why = str(error).partition("\n")[0]
            say(f"compiler option {refused}={accepted.pop(refused)} is left out, the compiler refuses it: {why:.160}")
