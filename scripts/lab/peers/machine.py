"""The machine on which systems are compared: its processor, its instructions, and its bounds."""

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

# The widest that a processor has, by a flag of /proc/cpuinfo.
_INSTRUCTIONS = {"amx_tile": "AVX-512 and AMX", "avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX", "asimd": "NEON"}


def processor(text: str) -> tuple[str, str]:
    """Returns the model and the widest instructions of a processor, from /proc/cpuinfo's text; "unknown" where it has none."""
    model = re.search(r"^model name\s*: *(.*)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*: *(.*)$", text, re.MULTILINE)
    present = set(flags[1].split()) if flags else set()
    widest = next((name for flag, name in _INSTRUCTIONS.items() if flag in present), "unknown")
    return (model[1].strip() if model else "unknown"), widest


def measure() -> dict[str, Any]:
    """Returns what the machine is and what bounds it, measured in processes of this environment.

    Returns:
      date, processor, instructions, cpus; memory_kept: whether glibc keeps what programs give back, by the environment; load: of
      other processes, before the measurement, over a minute; products: by library, "flops" of its fastest product and its
      "version"; flops: the largest of them; copy, triad: bytes per second.
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
        "cpus": os.cpu_count(),
        "memory_kept": os.environ.get("MALLOC_MMAP_MAX_") == "0",
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
    """Returns the name of a machine: its processor and instructions, and whether memory is kept."""
    return f"{machine['processor']}, {machine['instructions']}" + (", memory kept" if machine["memory_kept"] else "")


def as_text(machine: Mapping[str, Any]) -> str:
    """Returns a machine and its bounds as lines of text."""
    products = ", ".join(f"{name} {p['version']} {p['flops'] / 1e9:,.0f}" for name, p in machine["products"].items())
    return (
        f"{title(machine)}; {machine['cpus']} CPUs, load {machine['load']:.1f} before it began\n"
        f"fastest float32 products, GFLOP/s: {products}; memory: copy {machine['copy'] / 1e9:.1f} GB/s, "
        f"triad {machine['triad'] / 1e9:.1f}"
    )
