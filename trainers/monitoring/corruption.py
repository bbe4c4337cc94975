"""Silent corruption: a step computed twice must give the same bits, and so must the replicas of an array on several devices."""

import collections
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec as P

from models.protocol import Batch
from trainers.checkpoints.checkpoint import checksums
from trainers.plan import Plan
from trainers.state import State, by_name
from trainers.step import Metrics

SHOWN = 3  # arrays that are named


class Checker:
    """Computes a step with checks.

    Args:
      compiled: the step, which consumes its state.
    """

    def __init__(self, plan: Plan, compiled: Callable[[State, Batch], tuple[State, Metrics]]):
        self.plan, self.compiled = plan, compiled
        self._copy = jax.jit(lambda state: jax.tree.map(jnp.copy, state), out_shardings=plan.shardings)
        self._of_devices: Any = None

    def __call__(self, state: State, batch: Batch) -> tuple[State, Metrics, str]:
        """Returns what the step returns, and a line about what is corrupt, or "". Takes a second state's memory."""
        said = self.replicas(state)
        sums = [jax.device_get(self._sums(*self.compiled(self._copy(state), batch)))]
        state, metrics = self.compiled(state, batch)
        sums.append(jax.device_get(self._sums(state, metrics)))
        first, second = sums
        names = [name for name in first if first[name] != second[name]]
        if names and not said:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            said = f"computed twice, it gave other bits of {', '.join(names[:SHOWN])}{more}"
        return state, metrics, said or self.replicas(state)

    def _sums(self, state: State, metrics: Metrics) -> Any:
        return checksums({f"state.{k}": x for k, x in by_name(state).items()} | {f"metrics.{k}": x for k, x in metrics.items()})

    def replicas(self, state: State) -> str:
        """Returns a line about an array of which a device holds other bits than its replicas, or "".

        Every process must call this.
        """
        mesh = self.plan.mesh
        arrays = by_name(state)
        if mesh is None or mesh.size == 1:
            return ""
        if self._of_devices is None:

            def sums(shards: list[jax.Array]) -> jax.Array:
                return jnp.stack(checksums(shards))[None]

            specs = ([x.sharding.spec for x in arrays.values()],)
            each = jax.shard_map(sums, mesh=mesh, in_specs=specs, out_specs=P(mesh.axis_names), check_vma=False)
            self._of_devices = jax.jit(each)
        table = self._of_devices(list(arrays.values()))
        table = np.asarray(multihost_utils.process_allgather(table, tiled=True))  # [devices, arrays]
        for column, (name, array) in enumerate(arrays.items()):
            places = collections.defaultdict(list)
            indices = array.sharding.devices_indices_map(array.shape)
            for row, device in enumerate(mesh.devices.flat):
                places[str(indices[device])].append((int(table[row, column]), device))
            for replicas in places.values():
                if line := _odd(name, replicas):
                    return line
        return ""


def _odd(name: str, replicas: list[tuple[int, Any]]) -> str:
    """Returns a line if the checksums of an array's replicas differ: it names the devices outside the majority."""
    (most, votes), *others = collections.Counter(value for value, _ in replicas).most_common()
    if not others:
        return ""
    if votes == others[0][1]:
        return f"replicas of {name} differ, half of them each: those of {_named(d for _, d in replicas)}"
    odd = _named(device for value, device in replicas if value != most)
    return f"{name} has other bits on {odd} than on {votes} others"


def _named(devices: Any) -> str:
    return " and ".join(f"device {device.id} (process {device.process_index})" for device in devices)
