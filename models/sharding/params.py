"""From names to the mesh: the few helpers with which models declare parameters and mark activations.

Modules are `flax.nnx.Module`s used as structure only; what runs is plain JAX. A module is a pytree whose leaves are its
parameters, so `jax.eval_shape`, `jax.vmap`, `jax.lax.scan` and `jax.grad` take it as it is, and its static part (config,
component path, layout) is hashed into every trace: tracing reads no global, so no two layouts can share a trace.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.sharding.component import Component
from models.sharding.layout import LayoutError, Rules
from models.sharding.padding import even
from models.sharding.pipelines.gpipe import circular
from models.sharding.remat import LAYER_IN, names
from models.sharding.stacks import layer_scan

PyTree = Any
Params = dict[str, Any]  # arrays by dotted name
Initializer = Callable[[jax.Array, tuple[int, ...], Any], jax.Array]

# The name that `jax.ad_checkpoint.checkpoint_name` gives to a product in 8 bits, with its scales.
SCALED = "scaled_product"

# Names of axes along which a parameter is a pile of separate tensors: optimizers act on each one alone.
STACKED = ("layers", "expert")
OF_OUTPUTS = frozenset(("heads", "kv_heads", "kv", "code_groups", "codes"))  # dimensions of projections to heads, and to codes


def param(
    key: jax.Array,
    shape: tuple[int, ...],
    axes: tuple[str, ...],
    init: Initializer,
    scope: Component,
    *,
    sign_step: float | None = None,
):
    """Makes a parameter: its float32 value, its logical axes (a name per dimension) and the component that owns it.

    Args:
      sign_step: how far each step moves its numbers against the signs of their gradients; None leaves it to the optimizer.
    """
    if len(shape) != len(axes):
        raise LayoutError(f"component {scope.path!r}: {len(axes)} names {axes} for a parameter of shape {shape}")
    return nnx.Param(init(key, shape, jnp.float32), axes=axes, scope=scope, sign_step=sign_step)


def statistic(shape: tuple[int, ...], axes: tuple[str, ...], init: Initializer, scope: Component):
    """Makes a running statistic: state that lies among the parameters, but is replaced by each step (Loss.statistics) and never
    optimized."""
    return nnx.BatchStat(init(jax.random.key(0), shape, jnp.float32), axes=axes, scope=scope, sign_step=None)


def normal(scale: float) -> Initializer:
    """Returns a Gaussian initializer of this standard deviation."""
    return lambda key, shape, dtype: scale * jax.random.normal(key, shape, dtype)


def ones(key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
    return jnp.ones(shape, dtype)


def constant(value: float) -> Initializer:
    """All of one value."""
    return lambda key, shape, dtype: jnp.full(shape, value, dtype)


def zeros(key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
    return jnp.zeros(shape, dtype)


def stack_modules(make: Callable[[jax.Array], nnx.Module], key: jax.Array, n: int, name: str = "layers") -> Any:
    """Makes n modules from n keys as one module with a leading axis `name` on every parameter."""

    def prefix(v):
        return type(v)(v.get_raw_value(), **v.get_metadata() | dict(axes=(name, *v.get_metadata()["axes"])))

    modules = jax.vmap(make)(jax.random.split(key, n))
    return jax.tree.map(prefix, modules, is_leaf=lambda v: isinstance(v, nnx.Variable))


def _keeps(primitive: Any, *operands: Any, **params: Any) -> Any:
    """Keeps products without a batch, but those of whole numbers only once they are scaled: they have four bytes before."""
    if any(jnp.issubdtype(x.dtype, jnp.integer) for x in operands):
        return False
    return jax.checkpoint_policies.dots_with_no_batch_dims_saveable(primitive, *operands, **params)


def _policy(remat: str, offloaded: Sequence[str]) -> Any:
    """Returns the policy of `jax.checkpoint` (models/sharding/remat.py)."""
    if remat == "dots":
        names_too = jax.checkpoint_policies.save_only_these_names(SCALED)
        return jax.checkpoint_policies.save_from_both_policies(_keeps, names_too)
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=names(remat),
        names_which_can_be_offloaded=offloaded,
        offload_src="device",
        offload_dst="pinned_host",
    )


def _recomputed(body: Callable, scope: Component) -> Callable:
    """Returns the body of a loop over layers, of which the backward pass finds what the component's execution says."""
    if scope.remat == "none":
        return body
    offloaded = scope.execution.offloaded

    def named(x: jax.Array) -> jax.Array:
        return checkpoint_name(x, LAYER_IN) if x.ndim > 1 else x  # a number that layers add to is not worth the way

    def with_input(carry: PyTree, *of_layer: Any) -> Any:
        return body(jax.tree.map(named, carry), *of_layer)

    return jax.checkpoint(
        with_input if LAYER_IN in offloaded else body, policy=_policy(scope.remat, offloaded), prevent_cse=False
    )


def scan(
    body: Callable, carry: PyTree, stacked: PyTree, rows: PyTree = None, *, scope: Component | None = None, staged: bool = True
) -> tuple[PyTree, PyTree]:
    """`lax.scan` of `body(carry, slice, rows) -> (carry, out)` over stacked modules and per-layer inputs.

    Args:
      carry: arrays with the batch's rows in front, where the stack may run in pipeline stages.
      stacked: a pytree (module, keys, caches, ...) with a leading layer axis on every leaf.
      rows: what all layers read of each row (masks, positions): rows in front, or 1 for what is the same for all.
      scope: the component that the stack belongs to: its execution says what is kept for the backward pass and how much of
        the loop is unrolled; its layout may run it in pipeline stages, and then `out` must be a sum over rows. None is a plain
        loop.
      staged: whether pipeline stages may be used; they have loops of their own.
    """
    if scope is not None:
        body = _recomputed(body, scope)
    unroll = 1 if scope is None else scope.execution.unroll
    with jax.named_scope(scope.path if scope else ""):  # in the trace, by which a program's readers know the stack's component
        if scope is not None and staged and (pipeline := scope.layout.pipeline(scope.path)):
            return circular(body, carry, stacked, rows, scope, pipeline)
        if not unroll and jax.tree.leaves(stacked)[0].shape[0] == 1:  # of which JAX would make a loop all the same
            carry, out = body(carry, jax.tree.map(lambda x: x[0], stacked), rows)
            return carry, jax.tree.map(lambda x: x[None], out)
        # A loop of our own writes what it keeps into the device's memory. GPUs have JAX's: in ours each would allocate a stack as
        # large as those of all devices together (jaxlib 0.10.2).
        recomputes = (
            scope is not None and not (scope.remat == "none" or scope.execution.offloaded or scope.on_gpu) and unroll == 1
        )
        return layer_scan(body, carry, stacked, rows, recomputes=recomputes, unroll=unroll or True)


# --- a model as parameters by name -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ParamInfo:
    """A parameter without its value: name, shape, dtype, logical axes, component, `sign_step` (`param`), and
    whether it is a running statistic (`statistic`)."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    axes: tuple[str, ...]
    scope: Component
    sign_step: float | None = None
    statistic: bool = False

    def spec(self, extra: Rules = ()) -> PartitionSpec:
        return self.scope.spec(self.axes, self.shape, tensor=self.name, extra=extra)

    def placement(self, mesh: Mesh) -> NamedSharding:
        """Returns the sharding with which a parameter of its own size is read, stored and served."""
        return even(self.shape, NamedSharding(mesh, self.spec()))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def shard_size(self) -> int:
        """Elements of this parameter on one device, padding included."""
        layout = self.scope.layout
        return layout.shard_size(self.shape, layout.cut(self.axes, self.shape, component=self.scope.path, tensor=self.name))

    @property
    def bytes_per_device(self) -> int:
        return self.shard_size * jnp.dtype(self.dtype).itemsize

    @property
    def stacked(self) -> int:
        """The number of leading dimensions that only stack separate tensors (layers, stages, experts)."""
        n = 0
        while n < len(self.axes) and self.axes[n] in STACKED:
            n += 1
        return n

    @property
    def inputs(self) -> int:
        """The number of dimensions of one tensor that are inputs, seen as a matrix between the model dimension and all others."""
        shape, axes = self.shape[self.stacked :], self.axes[self.stacked :]
        return 1 if len(shape) < 2 or axes[0] in ("embed", "latent") else len(shape) - 1

    @property
    def is_matrix(self) -> bool:
        """True if one tensor has inputs and outputs, or is a table: what weight decay and low-rank updates act on.

        A bias of heads has two dimensions, and both are outputs.
        """
        own = self.axes[self.stacked :]
        return len(own) >= 2 and not OF_OUTPUTS.issuperset(own)


def describe(model: PyTree) -> Iterator[ParamInfo]:
    """Yields the parameters of a (possibly abstract) model, in the order of its leaves."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(model, is_leaf=lambda v: isinstance(v, nnx.Variable))
    for path, variable in leaves:
        name = ".".join(entry.name for entry in path)
        raw, meta = variable.get_raw_value(), variable.get_metadata()
        is_statistic = isinstance(variable, nnx.BatchStat)
        yield ParamInfo(name, raw.shape, raw.dtype, meta["axes"], meta["scope"], meta["sign_step"], is_statistic)


def components(model: PyTree) -> set[str]:
    """Returns every component path of a model, inner ones included."""
    paths = {info.scope.path for info in describe(model)}
    return {".".join(p.split(".")[:i]) for p in paths for i in range(1, p.count(".") + 2)}


def to_params(model: PyTree) -> Params:
    """Returns a model's parameters by name, the form in which they are optimized."""
    params = {info.name: leaf for info, leaf in zip(describe(model), jax.tree.leaves(model), strict=True)}
    return dict(sorted(params.items()))


def with_params(abstract: PyTree, params: Params) -> Any:
    """Returns a model with the structure of `abstract` and these parameters: the inverse of `to_params`."""
    return jax.tree.unflatten(jax.tree.structure(abstract), [params[info.name] for info in describe(abstract)])


def param_name(path: Any) -> str:
    """Returns the name of the parameter to which a leaf of an optimizer's state belongs, from JAX's path of the leaf."""
    return ".".join(entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey))
