"""Agreement between the processes of one run: on settings, failures and signals to stop. A single process agrees at once."""

import collections
import contextlib
import hashlib
import importlib.metadata
import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils

from models.errors import UserError

T = TypeVar("T")

SHOWN = 4  # the most differences that an error names


class DisagreementError(UserError):
    """The processes of one run differ, or one of them cannot continue; the message names the process and the difference."""


def coordinator() -> Any:
    """Returns the client of JAX's coordination service, which carries what the processes tell each other beside collectives."""
    return distributed.global_state.client


def coordinator_address() -> str:
    """Returns HOST:PORT of JAX's coordination service, which runs in process 0."""
    return distributed.global_state.coordinator_address or ""


def wait_for_all(what: str, seconds: float = 7200) -> None:
    """Waits until every process is here, which must all call this in the same order.

    Collectives on CPUs wait for 30 s alone, and two processes may need longer than that apart to compile the same program.

    Raises:
      DisagreementError: some process has not come within these seconds.
    """
    if jax.process_count() == 1:
        return
    try:
        coordinator().wait_at_barrier(f"shardzoo/{what}", round(1000 * seconds))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        raise DisagreementError(f"not every process has {what} within {seconds:g} s") from error


def any_process(flag: bool) -> bool:
    """Returns whether the flag is set on any process. Every process must call this."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def gather(*values: float) -> np.ndarray:
    """Returns the values of all processes, float32 [processes, values]. Every process must call this."""
    local = np.array(values, np.float32)
    return multihost_utils.process_allgather(local) if jax.process_count() > 1 else local[None]


def gather_names(name: str) -> list[str]:
    """Returns the names of all processes, cut to 64 bytes. Every process must call this."""
    if jax.process_count() == 1:
        return [name]
    return [other.rstrip(b"\0").decode(errors="replace") for other in _gather_bytes(name.encode()[:64].ljust(64, b"\0"))]


def gather_values(value: Any) -> list[Any]:
    """Returns the JSON-able values of all processes, in order. Every process must call this."""
    if jax.process_count() == 1:
        return [json.loads(json.dumps(value))]
    text = json.dumps(value).encode()
    longest = int(gather(len(text)).max())
    return [json.loads(other) for other in _gather_bytes(text.ljust(longest))]


def agree(settings: Mapping[str, str]) -> None:
    """Compares settings with those of the other processes. Every process must call this.

    The processes exchange a hash, and the settings themselves only if the hashes differ.

    Args:
      settings: values by name.

    Raises:
      DisagreementError: settings differ. Every process raises it with the same message, which names the settings and the
        processes.
    """
    processes = jax.process_count()
    if processes == 1:
        return
    # Gathering needs the same number of devices on every process, which each process can check by itself.
    devices = collections.Counter(device.process_index for device in jax.devices())
    if len(set(devices.values())) > 1:
        raise DisagreementError(disagreement([{"devices": str(devices[n])} for n in range(processes)]))
    text = json.dumps(settings, sort_keys=True).encode()
    summaries = _gather_bytes(hashlib.sha256(text).digest() + len(text).to_bytes(8))
    if len(set(summaries)) > 1:
        longest = max(int.from_bytes(summary[-8:]) for summary in summaries)
        raise DisagreementError(disagreement([json.loads(other) for other in _gather_bytes(text.ljust(longest))]))


def _gather_bytes(message: bytes) -> list[bytes]:
    """Returns the messages of all processes in order. They must have equal lengths, and every process must call this."""
    rows = multihost_utils.process_allgather(np.frombuffer(message, np.uint8))
    return [row.tobytes() for row in rows]


def disagreement(settings: Sequence[Mapping[str, str]]) -> str:
    """Returns one line that names each setting that differs from process 0's, and the first process where it does.

    Args:
      settings: values by name, for each process.
    """

    def value(number: int, name: str) -> str:
        text = settings[number].get(name, "none")
        return text if len(text) <= 100 else f"{text[:100]}..."

    differences = []
    for name in sorted(set().union(*settings)):
        others = [n for n in range(len(settings)) if settings[n].get(name) != settings[0].get(name)]
        if others:
            differences.append(f"process {others[0]} has {name}={value(others[0], name)}, process 0 has {value(0, name)}")
    more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
    return f"the processes of this run differ: {'; '.join(differences[:SHOWN])}{more}"


def jointly(function: Callable[..., T], *args: Any) -> T:
    """Returns function(*args) if it fails on no process. Every process must call this; none then waits for one that failed.

    Raises:
      Exception: the function's own exception, on a process where it fails.
      DisagreementError: on the other processes; the message names a process that failed.
    """
    try:
        result = function(*args)
    except Exception:
        gather(True)
        raise
    failed = np.flatnonzero(gather(False))
    if len(failed):
        raise DisagreementError(f"process {failed[0]} failed; its own output has the error")
    return result


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Turns SIGTERM and SIGINT into a request to stop; yields a function that says, after each step, whether to stop now.

    A signal to any process stops all of them after the same step. A second SIGINT interrupts at once.
    """
    several = jax.process_count() > 1
    asked = threading.Event()

    def ask(number, frame):
        del frame
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()
        if several:
            os.kill(os.getpid(), signal.SIGTERM)

    # With several processes, JAX's coordinator receives SIGTERM and picks the call at which all of them stop: one more than
    # the highest number that it was last given. Step numbers would not do, because those of a resumed run begin late.
    calls = itertools.count(1)

    def picked() -> bool:
        return multihost_utils.reached_preemption_sync_point(next(calls))

    signals = [signal.SIGINT] if several else [signal.SIGINT, signal.SIGTERM]
    if threading.current_thread() is not threading.main_thread():  # Python receives signals in the main thread alone
        signals = []
    old = {number: signal.signal(number, ask) for number in signals}
    try:
        yield picked if several else asked.is_set
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


_OF_A_PROCESS = (
    # Caches of compiled programs, which may lie on disks of one host.
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_compilation_cache_check_contents",
    "jax_enable_compilation_cache",
    "jax_persistent_cache_enable_xla_caches",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
    "jax_raise_persistent_cache_errors",
    # Which devices of its host are a process's own, and where it is reached; numbers of devices are compared by themselves.
    "jax_cuda_visible_devices",
    "jax_rocm_visible_devices",
    "jax_oneapi_visible_devices",
    "jax_num_cpu_devices",
    "jax_cross_host_transfer_socket_address",
    "jax_cross_host_transport_addresses",
    "jax_mtls_ca_file",
    "jax_mtls_cert_file",
    "jax_mtls_key_file",
    "--xla_force_host_platform_device_count",
    # Words of one process, to look at it: logs, tracebacks, dumps.
    "jax_logging_level",
    "jax_debug_log_modules",
    "jax_log_compiles",
    "jax_log_checkpoint_residuals",
    "jax_distributed_debug",
    "jax_explain_cache_misses",
    "jax_compiler_detailed_logging_min_ops",
    "jax_captured_constants_report_frames",
    "jax_captured_constants_warn_bytes",
    "jax_pprint_use_color",
    "jax_traceback_filtering",
    "jax_traceback_in_locations_limit",
    "jax_tracer_error_num_traceback_frames",
    "jax_include_full_tracebacks_in_locations",
    "jax_dump_ir_to",
    "jax_dump_ir_modes",
    "jax_include_debug_info_in_dumps",
    "--xla_dump_to",
    "--xla_dump_hlo_as_text",
    "--xla_dump_hlo_as_proto",
    "--xla_dump_hlo_pass_re",
    "--xla_dump_hlo_module_re",
)
"""Settings of JAX and XLA in which the processes of a run may differ. A setting that a later JAX adds is compared."""


def jax_settings() -> dict[str, str]:
    """Returns JAX's settings and the flags of XLA and libtpu, by name, but for those of one process alone."""
    settings = {name: str(value) for name, value in jax.config.values.items()}
    for variable in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        text = os.environ.get(variable, "").strip()
        if text and not text.startswith("-") and os.path.isfile(text):  # XLA takes a file of flags, too
            with open(text) as file:
                text = file.read()
        for flag in text.split():
            name, _, value = flag.partition("=")
            settings[f"{variable} {name}"] = value or "set"
    return {name: value for name, value in settings.items() if name.split()[-1] not in _OF_A_PROCESS}


def versions() -> dict[str, str]:
    """Returns the versions of the libraries that decide a run's numbers."""
    return {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint")}
