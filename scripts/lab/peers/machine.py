"""The machine on which systems are compared: its processor, the instructions that they may use, and its bounds."""

import datetime
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.paths import ROOT, environment
from models.errors import UserError

# For each instruction set the variables that hold XLA, PyTorch's own kernels, oneDNN, MKL, and NumPy's OpenBLAS to it.
HELD = {
    "AVX2": {
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    }
}
# The widest that a processor has, by a flag of /proc/cpuinfo.
_INSTRUCTIONS = {"amx_tile": "AVX-512 and AMX", "avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX", "asimd": "NEON"}


def held(instructions: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that hold a process of this environment, and those that it starts, to an instruction set.

    Args:
      instructions: a key of HELD; "" holds to none.
    """
    added = dict(HELD[instructions]) if instructions else {}
    if "XLA_FLAGS" in added:
        added["XLA_FLAGS"] = f"{variables.get('XLA_FLAGS', '')} {added['XLA_FLAGS']}".strip()
    return added


def processor(text: str) -> tuple[str, str]:
    """Returns the model and the widest instructions of a processor, from /proc/cpuinfo's text; "unknown" where it has none."""
    model = re.search(r"^model name\s*: *(.*)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*: *(.*)$", text, re.MULTILINE)
    present = set(flags[1].split()) if flags else set()
    widest = next((name for flag, name in _INSTRUCTIONS.items() if flag in present), "unknown")
    return (model[1].strip() if model else "unknown"), widest


def measure(instructions: str = "") -> dict[str, Any]:
    """Returns what the machine is and what bounds it, measured in processes of this environment.

    Args:
      instructions: those that the environment holds processes to, a key of HELD; "" if it does not.

    Returns:
      date, processor, instructions, held (the argument), cpus; load: of other processes, before the measurement, over a minute;
      products: by library, "flops" of its fastest product and its "version"; flops: the largest of them; copy, triad: bytes per
      second.
    """
    load = os.getloadavg()[0]
    cpuinfo = Path("/proc/cpuinfo")
    model, widest = processor(cpuinfo.read_text(errors="replace") if cpuinfo.exists() else "")
    pythons = {"numpy": sys.executable, "jax": sys.executable, "torch": str(environment("parity") / "bin/python")}
    products = {name: _bounds(name, python) for name, python in pythons.items() if Path(python).exists()}
    return {
        "date": datetime.date.today().isoformat(),
        "processor": model,
        "instructions": widest,
        "held": instructions,
        "cpus": os.cpu_count(),
        "load": load,
        "flops": max(product["flops"] for product in products.values()),
        "copy": products["numpy"].pop("copy"),
        "triad": products["numpy"].pop("triad"),
        "products": products,
    }


def _bounds(library: str, python: str) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-m", "scripts.lab.peers.bounds", library],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(f"the products of {library}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def title(machine: Mapping[str, Any]) -> str:
    """Returns the name of a machine: the instructions that it was held to make it another."""
    instructions = f"held to {machine['held']}" if machine["held"] else machine["instructions"]
    return f"{machine['processor']}, {instructions}"


def as_text(machine: Mapping[str, Any]) -> str:
    """Returns a machine and its bounds as lines of text."""
    products = ", ".join(f"{name} {p['version']} {p['flops'] / 1e9:,.0f}" for name, p in machine["products"].items())
    return (
        f"{title(machine)}; {machine['cpus']} CPUs, load {machine['load']:.1f} before it began\n"
        f"fastest float32 products, GFLOP/s: {products}; memory: copy {machine['copy'] / 1e9:.1f} GB/s, "
        f"triad {machine['triad'] / 1e9:.1f}"
    )
