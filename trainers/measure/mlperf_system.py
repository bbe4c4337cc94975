"""The description of a system that MLPerf wants beside a submission's logs, of JAX's devices and the host that describes itself.

A submission is a folder ORGANISATION with systems/SYSTEM.json and results/SYSTEM/BENCHMARK/result_N.txt (submission_rules.adoc,
section "Directory structure"). What a machine does not say of itself is an empty text, for the submitter to fill in.
"""

import json
import os
import platform
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from trainers.runtime.processes import versions

FILE = "system.json"
_INTERNAL = "Research, Development, or Internal (RDI)"  # of the states that the checker knows, the one that claims least


def path_beside(logs: Path) -> Path:
    """Returns the file of the system whose logs are in a folder: in a submission's systems/, or else in the folder."""
    results = logs.parent.parent
    return results.parent / "systems" / f"{logs.parent.name}.json" if results.name == "results" else logs / FILE


def write(logs: Path, values: Mapping[str, Any]) -> Path:
    """Writes the description of this system, unless there is one, which the submitter may have completed; returns its path."""
    path = path_beside(logs)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        name = path.stem if path.name != FILE else str(values["submission_platform"])
        described = describe(values, name)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(described, indent=2) + "\n")
        new.replace(path)
    return path


def describe(values: Mapping[str, Any], name: str) -> dict[str, str]:
    """Returns the fields of a system's description, as texts.

    Args:
      values: those of a log: `submission_org` and `submission_division`.
      name: the system's.
    """
    device, of_host = jax.local_devices()[0], _host()
    memory = (device.memory_stats() or {}).get("bytes_limit", 0)
    used = versions() | {"python": platform.python_version()}
    empty = (
        "host_processor_interconnect",
        "host_storage_type",
        "host_networking",
        "host_networking_topology",
        "host_memory_configuration",
        "accelerator_host_interconnect",
        "accelerator_frequency",
        "accelerator_on-chip_memories",
        "accelerator_memory_configuration",
        "accelerator_interconnect",
        "accelerator_interconnect_topology",
        "cooling",
        "hw_notes",
        "sw_notes",
    )
    return {
        "submitter": str(values["submission_org"]),
        "division": str(values["submission_division"]),
        "status": _INTERNAL,
        "system_name": name,
        "number_of_nodes": str(jax.process_count()),
        **of_host,
        "host_storage_capacity": f"{shutil.disk_usage('.').total / 2**30:.0f} GiB",
        "accelerators_per_node": str(jax.local_device_count()),
        "accelerator_model_name": device.device_kind,
        "accelerator_memory_capacity": f"{memory / 2**30:.0f} GiB" if memory else "",
        "framework": f"JAX {jax.__version__}",
        "other_software_stack": ", ".join(f"{library} {number}" for library, number in used.items()),
        "operating_system": platform.platform(),
        **dict.fromkeys(empty, ""),
    }


def _host() -> dict[str, str]:
    """Returns what Linux says of the host's processors and memory; on other systems most of it is empty."""
    processors, memory = _read("/proc/cpuinfo"), _read("/proc/meminfo")

    def each(field: str) -> list[str]:
        return re.findall(rf"^{field}\s*: *(.*)$", processors, re.MULTILINE)

    sockets, models = max(1, len({*each("physical id")})), each("model name")
    threads = os.cpu_count() or 1
    cores = int((each("cpu cores") or ["0"])[0]) * sockets
    clock, caches = each("cpu MHz"), each("cache size")
    total = re.search(r"^MemTotal: *(\d+) kB", memory, re.MULTILINE)
    return {
        "host_processors_per_node": str(sockets),
        "host_processor_model_name": models[0] if models else platform.processor(),
        "host_processor_core_count": str(cores or threads),
        "host_processor_vcpu_count": str(threads),
        "host_processor_frequency": f"{float(clock[0]):.0f} MHz" if clock else "",
        "host_processor_caches": caches[0] if caches else "",
        "host_memory_capacity": f"{int(total[1]) / 2**20:.0f} GiB" if total else "",
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
