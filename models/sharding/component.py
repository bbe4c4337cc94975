"""A component's place: its layout, its path in the model, the mesh and its execution; from logical names to PartitionSpecs."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from models.execution import Execution
from models.sharding import torus
from models.sharding.layout import Layout, LayoutError, Rules

# Dimensions that may have size 1 and are whole then: attention inputs that are the same for all rows, a position that is decoded.
SINGLE = ("batch", "length", "res_length", "keys")


@dataclasses.dataclass(frozen=True)
class Component:
    """The place of a module: its layout, its dotted path in the model, the mesh (None for a single device) and its execution.

    `where / "encoder"` is the child component. Hashable and static, so it is part of a trace's key.
    """

    layout: Layout
    path: str = ""
    mesh: Mesh | None = None
    execution: Execution = Execution()

    def __truediv__(self, name: str) -> "Component":
        return dataclasses.replace(self, path=f"{self.path}.{name}" if self.path else name)

    def at(self, path: str) -> "Component":
        """Returns the component of this path, in the same layout and on the same mesh."""
        return dataclasses.replace(self, path=path)

    def spec(self, names, shape=None, *, tensor: str = "an activation", extra: Rules = (), manual: bool = False) -> PartitionSpec:
        """Returns the PartitionSpec of a tensor whose dimensions carry these logical names; raises LayoutError (`Layout.cut`)."""
        cuts = self.layout.cut(names, shape, component=self.path, tensor=tensor, extra=extra, manual=manual)
        return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in cuts))

    @property
    def dtype(self) -> jnp.dtype:
        """Returns the dtype of activations, and of weights as they are used."""
        return jnp.dtype(self.execution.dtype)

    @property
    def remat(self) -> str:
        """Returns the policy of this component's layers: what the backward pass keeps of them (models/sharding/remat.py)."""
        return self.execution.remat_at(self.path)

    @property
    def on_tpu(self) -> bool:
        """Returns whether the mesh's devices are TPUs, including those of a TPU that is only compiled for."""
        return self.mesh is not None and self.mesh.devices.flat[0].platform == "tpu"

    @property
    def on_gpu(self) -> bool:
        """Returns whether the mesh's devices are GPUs, including those of a GPU that is only compiled for."""
        return self.mesh is not None and self.mesh.devices.flat[0].platform == "gpu"

    @property
    def on_cpu(self) -> bool:
        """Returns whether the mesh's devices are CPUs."""
        return self.mesh is not None and self.mesh.devices.flat[0].platform == "cpu"

    @property
    def on_one_cpu(self) -> bool:
        """Returns whether the mesh is a single CPU device."""
        return self.on_cpu and self.mesh is not None and self.mesh.size == 1

    def num_shards(self, name: str) -> int:
        """Returns the number of shards into which the layout cuts dimensions of this name."""
        return self.layout.num_shards(self.layout.resolve(self.path).get(name, ()))

    def shard(self, x: jax.Array, *names: str | None) -> jax.Array:
        """Constrains an activation by the logical names of its dimensions; only checks them without a mesh."""
        spec = self.spec_of(x, *names)
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec)) if self.mesh else x

    def spec_of(self, x: jax.Array, *names: str | None) -> PartitionSpec:
        """Returns the PartitionSpec of an activation, whose size is checked only with a mesh; raises LayoutError.

        A single row or position has nothing to cut and is left whole.
        """
        if len(names) != x.ndim:
            raise LayoutError(f"component {self.path!r}: {len(names)} names {names} for an activation of shape {x.shape}")
        names = tuple(None if n in SINGLE and size == 1 else n for n, size in zip(names, x.shape, strict=True))
        return self.spec(names, x.shape if self.mesh else None)


def make_mesh(layout: Layout, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns the device mesh of a layout; raises LayoutError if there are not as many devices as it needs."""
    devices = jax.devices() if devices is None else devices
    if len(devices) != layout.devices:
        processes = len({device.process_index for device in devices})
        raise LayoutError(
            f"layout {layout.name!r} needs {layout.devices} devices for mesh {dict(layout.mesh)}, but {len(devices)} "
            f"{'is' if len(devices) == 1 else 'are'} here{f', over {processes} processes' if processes > 1 else ''}; "
            f"choose a mesh whose product is {len(devices)}"
        )
    names, sizes = zip(*layout.mesh, strict=True)
    if devices[0].platform != "tpu":  # others know no slices: theirs are blocks of equal size, in the devices' order
        return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(names), devices=devices)
    blocks = [_in_slice(layout, block) for block in _by_slice(layout, devices)]
    return Mesh(np.stack(blocks).reshape(sizes), names, axis_types=(AxisType.Auto,) * len(names))


def _by_slice(layout: Layout, devices: Sequence[Any]) -> list[list[Any]]:
    """Returns the TPUs of each slice; raises LayoutError if a layout has another number of slices."""
    slices: dict[int, list[Any]] = {}
    for device in devices:
        slices.setdefault(getattr(device, "slice_index", 0), []).append(device)
    if len(slices) != layout.slices:
        raise LayoutError(
            f"layout {layout.name!r} with mesh {dict(layout.mesh)} is for {layout.slices} slice{'s' * (layout.slices > 1)}, but "
            f"the devices are of {len(slices)}; choose a layout of as many"
        )
    return [slices[index] for index in sorted(slices)]


def _in_slice(layout: Layout, devices: Sequence[Any]) -> np.ndarray:
    """Returns a slice's devices in the shape of its mesh: along the torus of a pod, or in JAX's own order where there is none."""
    mesh = layout.mesh_of_slice
    if dims := torus.sides(devices):
        by_place = sorted(devices, key=torus.place)
        return np.array(by_place)[torus.positions(mesh, dims, torus.assignment(mesh, dims, layout.torus))]
    names, sizes = zip(*mesh, strict=True)
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(names), devices=devices).devices
