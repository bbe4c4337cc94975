"""Carrying out a routing (models/parts/moe/routing.py): tokens to their experts, through them, and back.

Four ways, equal value for value and gradient for gradient.

A token's gates travel with it, and multiply the hidden layer of its experts rather than their outputs, which is the same: the
products that follow are linear. So a gate's gradient is found where the expert is, and the backward pass needs neither the
experts' outputs nor their way back a second time.

G groups, S tokens of a group, E experts, C slots, M model, H hidden, N assignments; R rows of the experts' input, T tokens
that rows are taken from, J readers of a row.

| dispatch | tokens move by | between devices by | cost beside the experts' |
| --- | --- | --- | --- |
| "einsum" | products with one-hot masks (GShard, Algorithm 2) | constraints: the compiler's all-to-all | S / H of their FLOPs |
| "sort" | gathers, forward and backward, into the same buffers | the same | moves |
| "all_to_all" | as "sort" | an all_to_all of the buffers, written down | moves |
| "ragged" | gathers into rows without gaps (MegaBlocks, 2211.15841) | an all_to_all of the rows, padded | moves |

The first three multiply E * C slots of a group, filled or empty: with capacity factor 0 (C = S) that is E / K times the work
that was asked for. "ragged" multiplies the rows there are, whatever the capacity. What it exchanges must have a size that is
known beforehand: where experts are cut, the worst case of min(S K, C times its experts) rows of a group for each peer, which
dropless are mostly empty. `jax.lax.ragged_dot` has a kernel on TPUs; on CPUs it multiplies every row with every expert of the
device.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from models.execution import Dispatch
from models.parts import eight_bits
from models.parts.moe.routing import Routing, per_expert
from models.sharding.component import Component
from models.sharding.layout import Axes, LayoutError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Experts:
    """E feed-forward networks, activation(x up_1, x up_2, ...) down: one `up` for ReLU, two for gated activations.

    Attributes:
      up: arrays [E, M, H].
      down: an array [E, H, M].
      activation: of as many arguments as there are `up`s.
      up_bias: arrays [E, H], one for each of `up`, or none.
      down_bias: an array [E, M], or None.
      hidden: what happens to the hidden layer after the activation, as dropout; it may depend on the place in the buffers.
    """

    up: tuple[jax.Array, ...]
    down: jax.Array
    activation: Callable[..., jax.Array] = dataclasses.field(metadata={"static": True})
    up_bias: tuple[jax.Array, ...] = ()
    down_bias: jax.Array | None = None
    hidden: Callable[[jax.Array], jax.Array] | None = dataclasses.field(default=None, metadata={"static": True})


def mixture(x_GSM: jax.Array, routing: Routing, slots: int, experts: Experts, scope: Component, dispatch: Dispatch) -> jax.Array:
    """Returns y_GSM, the gated sum of what each token's experts returned; zero for tokens without one.

    Args:
      slots: C, which the routing was made with.
      scope: the component; its layout says which mesh axes cut "group", "act_expert", "expert_group", "act_expert_mlp".
      dispatch: see the head of this file.

    Raises:
      LayoutError: experts that the mesh axes do not divide, or, for the explicit exchanges, groups that are not cut by the
        axes that cut experts.
    """
    x_GSM = scope.shard(x_GSM, "group", None, "act_embed")
    run = ragged if dispatch == "ragged" else functools.partial(buffered, moves=BUFFERED[dispatch])
    return scope.shard(run(x_GSM, routing, slots, experts, scope), "group", None, "act_embed")


# --- buffers of C slots -------------------------------------------------------------------------------------------

Move = Callable[[jax.Array], jax.Array]


class Dispatcher(NamedTuple):
    """Moves between tokens and the slots of their experts, whose buffers have experts first.

    Attributes:
      dispatch: x_GSM -> x_EGCM, empty slots zero.
      gates: dtype -> the gates [E, G, C] of slots.
      combine: y_EGCM -> y_GSM, sums over a token's slots.
    """

    dispatch: Move
    gates: Callable[[Any], jax.Array]
    combine: Move


def buffered(
    x_GSM: jax.Array, routing: Routing, slots: int, experts: Experts, scope: Component, moves: tuple[Any, Any]
) -> jax.Array:
    """Computes `mixture` through buffers [E, G, C, M]: experts first, so that their products need no transposition.

    Args:
      moves: between tokens and slots, and the exchange between devices, see `BUFFERED`.
    """
    dispatcher, exchange = moves
    dispatch, gates, combine = dispatcher(routing, x_GSM.shape[1], experts.down.shape[0], slots)

    def through_experts(x_EGCM: jax.Array, gate_EGC: jax.Array, experts: Experts) -> jax.Array:
        x_EGCM, gate_EGC = (checkpoint_name(exchange(x, scope), "dispatched") for x in (x_EGCM, gate_EGC))
        y_EGCM = in_experts(x_EGCM, gate_EGC[..., None], experts, scope)
        return checkpoint_name(exchange(y_EGCM, scope, back=True), "returned")

    whole = dispatch(x_GSM), gates(x_GSM.dtype), experts
    peers = scope.layout.num_shards(scope.layout.resolve(scope.path).get("act_expert", ())) if scope.mesh else 1
    parts = math.gcd(scope.execution.exchange_parts, len(experts.down) // peers) if peers > 1 else 1
    if parts == 1:
        return combine(through_experts(*whole))
    if experts.hidden:
        raise LayoutError("dropout inside experts is drawn by place in their buffers, which exchange_parts divides; use 1")

    def part(i: int) -> Any:
        def of(x: jax.Array) -> jax.Array:
            return x.reshape(peers, parts, -1, *x.shape[1:])[:, i].reshape(-1, *x.shape[1:])

        return jax.tree.map(of, whole)

    outputs = (through_experts(*part(i)) for i in range(parts))
    y_PXEGCM = jnp.stack([y_EGCM.reshape(peers, -1, *y_EGCM.shape[1:]) for y_EGCM in outputs], axis=1)
    return combine(y_PXEGCM.reshape(whole[0].shape))


def in_experts(x_EGCM: jax.Array, gate_EGC1: jax.Array, experts: Experts, scope: Component) -> jax.Array:
    """Returns y_EGCM, what each expert makes of its slots, times their gates."""
    form = scope.execution.quantization
    if form == "none":
        multiply = _multiply
    else:
        multiply = jax.vmap(lambda x_GCI, w_IO: eight_bits.product(x_GCI, w_IO, form, exact=not scope.on_tpu))
    h_EGCH = (multiply(x_EGCM, w_EMH) for w_EMH in experts.up)
    names = ("act_expert", "expert_group", None, "act_expert_mlp")
    h_EGCH = [scope.shard(h, *names) for h in h_EGCH]
    if experts.up_bias:
        h_EGCH = [h + b_EH[:, None, None].astype(h.dtype) for h, b_EH in zip(h_EGCH, experts.up_bias, strict=True)]
    kept = ("gate", "up")[-len(experts.up) :]
    h_EGCH = experts.activation(*(checkpoint_name(h, name) for h, name in zip(h_EGCH, kept, strict=True)))
    h_EGCH = experts.hidden(h_EGCH) if experts.hidden else h_EGCH
    y_EGCM = multiply(h_EGCH * gate_EGC1, experts.down)
    if experts.down_bias is not None:
        y_EGCM = y_EGCM + gate_EGC1 * experts.down_bias[:, None, None].astype(y_EGCM.dtype)
    return y_EGCM


def _multiply(x_EGCI: jax.Array, w_EIO: jax.Array) -> jax.Array:
    return jnp.einsum("EGCI,EIO->EGCO", x_EGCI, w_EIO.astype(x_EGCI.dtype))


def by_einsum(routing: Routing, size: int, experts: int, slots: int) -> Dispatcher:
    """Returns moves that are products with one-hot masks [G, S, E, C]."""

    def mask(weight_GN, dtype):
        if not routing.choices:  # Expert Choice's permutation matrix P (section 3.2)
            token_GNS = jax.nn.one_hot(routing.token_GN, size, dtype=dtype) * weight_GN[..., None].astype(dtype)
            return token_GNS.swapaxes(1, 2).reshape(-1, size, experts, slots)
        expert_GSK, slot_GSK, weight_GSK = (
            x.reshape(-1, size, routing.choices) for x in (routing.expert_GN, routing.slot_GN, weight_GN)
        )
        expert_GSKE = jax.nn.one_hot(expert_GSK, experts, dtype=dtype) * weight_GSK[..., None].astype(dtype)
        return jnp.einsum("GSKE,GSKC->GSEC", expert_GSKE, jax.nn.one_hot(slot_GSK, slots, dtype=dtype))

    def dispatch(x_GSM):
        return jnp.einsum("GSEC,GSM->EGCM", mask(routing.dispatch_mask_GN, x_GSM.dtype), x_GSM)

    def gates(dtype):
        return jnp.einsum("GSEC->EGC", mask(routing.gate_GN * routing.dispatch_mask_GN, dtype))

    def combine(y_EGCM):
        return jnp.einsum("GSEC,EGCM->GSM", mask(routing.dispatch_mask_GN, y_EGCM.dtype), y_EGCM)

    return Dispatcher(dispatch, gates, combine)


def by_sort(routing: Routing, size: int, experts: int, slots: int) -> Dispatcher:
    """Equal to `by_einsum` without its FLOPs: rows are gathered, forward and backward."""
    place_GN = jnp.where(routing.dispatch_mask_GN, routing.expert_GN * slots + routing.slot_GN, experts * slots)
    return rows(routing, place_GN, size, experts, slots)


def rows(routing: Routing, place_GN: jax.Array, tokens: int, experts: int, slots: int) -> Dispatcher:
    """Returns the moves of `by_einsum` for these places in the buffers.

    Args:
      place_GN: int32, e * C + c for the slot of each assignment; E * C for those that have none.
      tokens: T of a group.
    """
    groups = len(place_GN)
    choice_GR = invert(place_GN, experts * slots)

    def of_slots(x_GR: jax.Array) -> jax.Array:
        return x_GR.reshape(groups, experts, slots).swapaxes(0, 1)

    def gates(dtype):
        gate_GN1 = (routing.gate_GN * routing.dispatch_mask_GN)[..., None].astype(dtype)
        return gather(gate_GN1, of_slots(choice_GR), place_GN[..., None])[..., 0]

    if routing.choices:
        # Assignment n is a choice of token n // K, so that a token's slots are known from both sides; an empty slot has token T.
        token_EGC, place_GTK = of_slots(choice_GR // routing.choices), place_GN.reshape(groups, tokens, routing.choices)
        return Dispatcher(
            lambda x_GTM: gather(x_GTM, token_EGC, place_GTK), gates, lambda y_EGCM: gather_back(y_EGCM, token_EGC, place_GTK)
        )

    # Where experts choose, a token may have any number of slots, whose outputs are added in float32 at least.
    token_EGC = of_slots(jnp.take_along_axis(routing.token_GN, choice_GR, axis=1, mode="fill", fill_value=tokens))

    def combine(y_EGCM):
        def add(token_EC, y_ECM):
            return jnp.zeros((tokens, y_ECM.shape[-1]), y_ECM.dtype).at[token_EC].add(y_ECM, mode="drop")

        wide = jnp.promote_types(y_EGCM.dtype, jnp.float32)
        return jax.vmap(add, in_axes=1)(token_EGC, y_EGCM.astype(wide)).astype(y_EGCM.dtype)

    return Dispatcher(lambda x_GTM: _to_slots(x_GTM, token_EGC), gates, combine)


def invert(place_GN: jax.Array, places: int) -> jax.Array:
    """Returns the assignment [G, R] at each place, N where there is none; assignments with places of R or more have none."""
    n = place_GN.shape[1]

    def invert_group(place_N):
        return jnp.full(places, n, jnp.int32).at[place_N].set(jnp.arange(n, dtype=jnp.int32), mode="drop")

    return jax.vmap(invert_group)(place_GN)


# Tokens to the slots of their experts, and sums over a token's slots: each is the other's transpose, hence its gradient, so that
# neither scatters.


@jax.custom_vjp
def gather(x_GTM: jax.Array, token_EGC: jax.Array, place_GTK: jax.Array) -> jax.Array:
    """Returns x_EGCM, what stands in each slot; zero where the token is T (out of range).

    Args:
      place_GTK: the places (e * C + c) of each token; E * C where it has fewer than K.
    """
    return _to_slots(x_GTM, token_EGC)


@jax.custom_vjp
def gather_back(y_EGCM: jax.Array, token_EGC: jax.Array, place_GTK: jax.Array) -> jax.Array:
    """Returns y_GTM, the sum over each token's slots; arguments as those of `gather`."""
    # Choice by choice: one array of all would be written first, and on TPUs added up within tiles.
    wide = jnp.promote_types(y_EGCM.dtype, jnp.float32)
    parts = [_of_slots(y_EGCM, place_GTK[:, :, k : k + 1])[:, :, 0].astype(wide) for k in range(place_GTK.shape[2])]
    return sum(parts[1:], parts[0]).astype(y_EGCM.dtype)


gather.defvjp(
    lambda x_GTM, *places: (gather(x_GTM, *places), places), lambda places, dy_EGCM: (gather_back(dy_EGCM, *places), None, None)
)
gather_back.defvjp(
    lambda y_EGCM, *places: (gather_back(y_EGCM, *places), places), lambda places, dx_GTM: (gather(dx_GTM, *places), None, None)
)


def _to_slots(x_GTM: jax.Array, token_EGC: jax.Array) -> jax.Array:
    # One gather in the order of the result, as `take_along_axis` and a transposition would not be.
    numbers = jax.lax.GatherDimensionNumbers(
        offset_dims=(3,),
        collapsed_slice_dims=(1,),
        start_index_map=(1,),
        operand_batching_dims=(0,),
        start_indices_batching_dims=(1,),
    )
    return jax.lax.gather(x_GTM, token_EGC[..., None], numbers, (1, 1, x_GTM.shape[-1]), mode="fill", fill_value=0)


def _of_slots(y_EGCM: jax.Array, place_GTK: jax.Array) -> jax.Array:
    numbers = jax.lax.GatherDimensionNumbers(
        offset_dims=(3,),
        collapsed_slice_dims=(0, 2),
        start_index_map=(0, 2),
        operand_batching_dims=(1,),
        start_indices_batching_dims=(0,),
    )
    index_GTK2 = jnp.stack(jnp.divmod(place_GTK, y_EGCM.shape[2]), axis=-1)
    return jax.lax.gather(y_EGCM, index_GTK2, numbers, (1, 1, 1, y_EGCM.shape[-1]), mode="fill", fill_value=0)


# --- the exchange between groups and experts ----------------------------------------------------------------------


BY_GROUP = (None, "group", None, "act_embed")
BY_EXPERT = ("act_expert", "expert_group", None, "act_embed")


def by_constraint(buffer: jax.Array, scope: Component, back: bool = False) -> jax.Array:
    """[E, G, C, M] or [E, G, C], cut by group, cut by expert instead, or back: an all-to-all in the compiled program."""
    before, after = _cuts(buffer, back)
    return scope.shard(scope.shard(buffer, *before), *after)


def _cuts(buffer: jax.Array, back: bool) -> tuple[tuple[str | None, ...], tuple[str | None, ...]]:
    """Returns the names of a buffer's axes before and after the exchange."""
    by_group, by_expert = BY_GROUP[: buffer.ndim], BY_EXPERT[: buffer.ndim]
    return (by_expert, by_group) if back else (by_group, by_expert)


def by_all_to_all(buffer: jax.Array, scope: Component, back: bool = False) -> jax.Array:
    """`by_constraint` with the exchange written down. Raises LayoutError: see `expert_axes`."""
    axes = expert_axes(scope)
    if not axes:
        return by_constraint(buffer, scope, back)

    split, join = (1, 0) if back else (0, 1)
    exchange = functools.partial(jax.lax.all_to_all, axis_name=axes, split_axis=split, concat_axis=join, tiled=True)
    before, after = (scope.spec(names, buffer.shape, manual=True) for names in _cuts(buffer, back))
    return jax.shard_map(exchange, mesh=scope.mesh, in_specs=before, out_specs=after)(buffer)


BUFFERED = {"einsum": (by_einsum, by_constraint), "sort": (by_sort, by_constraint), "all_to_all": (by_sort, by_all_to_all)}


def exchangeable(scope: Component) -> bool:
    """Returns whether an all-to-all brings tokens to their experts: not if they lie on the devices of several experts at once."""
    rules = scope.layout.resolve(scope.path)
    group, expert, stay = (rules.get(name, ()) for name in ("group", "act_expert", "expert_group"))
    return not expert or scope.mesh is None or set(group) == {*stay, *expert}


def expert_axes(scope: Component) -> Axes:
    """Returns the mesh axes that tokens cross to reach their experts; none without a mesh, or where experts are whole. Raises
    LayoutError for tokens for which an all-to-all is not the exchange."""
    rules = scope.layout.resolve(scope.path)
    group, expert, stay = (rules.get(name, ()) for name in ("group", "act_expert", "expert_group"))
    if not expert or scope.mesh is None:
        return ()
    if not exchangeable(scope):
        raise LayoutError(
            f"layout {scope.layout.name!r}, component {scope.path!r}: an explicit all-to-all needs 'group' cut by the axes of "
            f"'expert_group' and 'act_expert', {stay + expert}, not {group}; dispatch 'sort' takes any layout"
        )
    return expert


# --- rows without gaps --------------------------------------------------------------------------------------------


def ragged(x_GSM: jax.Array, routing: Routing, slots: int, experts: Experts, scope: Component) -> jax.Array:
    """Computes `mixture` through rows sorted by expert and grouped matrix products; each device sorts all its groups together."""
    if experts.hidden and scope.mesh is not None:
        raise LayoutError("dropout inside experts is drawn by place in their buffers, and dispatch 'ragged' has none; use 'sort'")
    axes = expert_axes(scope)
    sums = scope.layout.resolve(scope.path).get("act_expert_mlp", ()) if scope.mesh else ()
    peers = scope.layout.num_shards(axes)
    activation, hidden = experts.activation, experts.hidden or (lambda h: h)
    local = functools.partial(
        _ragged, activation=lambda *h: hidden(activation(*h)), slots=slots, peers=peers, axes=axes, sums=sums
    )
    args = x_GSM, routing, experts.up, experts.down, experts.up_bias, experts.down_bias
    if scope.mesh is None:
        return local(*args)
    up = scope.spec(("act_expert", None, "act_expert_mlp"), experts.up[0].shape, tensor="an expert's weight")
    down = scope.spec(("act_expert", "act_expert_mlp", None), experts.down.shape, tensor="an expert's weight")
    groups = scope.spec(("group",), x_GSM.shape[:1])
    up_bias = scope.spec(("act_expert", "act_expert_mlp"), experts.up[0].shape[::2], tensor="an expert's bias")
    down_bias = scope.spec(("act_expert", None), experts.down.shape[::2], tensor="an expert's bias")
    specs = groups, groups, up, down, up_bias, down_bias
    # Unchecked: in a pipeline's vmap over stages, what scatters below counts as varying over stages that it never sees.
    return jax.shard_map(local, mesh=scope.mesh, in_specs=specs, out_specs=groups, check_vma=False)(*args)


def _ragged(
    x_GSM, routing: Routing, up, down, up_bias, down_bias, *, activation, slots, peers: int, axes: Axes, sums: Axes
) -> jax.Array:
    """Computes `ragged` on one device, which has groups of its own and down.shape[0] experts of all groups, as each peer."""
    groups, size, model = x_GSM.shape
    mine, n = down.shape[0], routing.token_GN.shape[1]
    # Rows for one peer, at worst: all choices of all tokens, or all slots of its experts.
    places = groups * min(size * (routing.choices or mine), mine * slots)

    # Rows in the order of peer, expert, group, slot; those of a peer begin at a multiple of `places`.
    counts_GE = per_expert(routing, peers * mine)
    counts_PO = counts_GE.T.reshape(peers, mine * groups)
    start_PO = jnp.cumsum(counts_PO, axis=1) - counts_PO + places * jnp.arange(peers)[:, None]
    start_GE = start_PO.reshape(peers * mine, groups).T
    place_GN = jnp.take_along_axis(start_GE, routing.expert_GN, axis=1) + routing.slot_GN
    place_GN = jnp.where(routing.dispatch_mask_GN, place_GN, peers * places).astype(jnp.int32)

    # The device's groups are one to `rows`.
    token_GN = routing.token_GN + size * jnp.arange(groups, dtype=jnp.int32)[:, None]
    together = jax.tree.map(lambda a: a.reshape(1, groups * n), dataclasses.replace(routing, token_GN=token_GN))
    dispatch, gates, combine = rows(together, place_GN.reshape(1, groups * n), groups * size, 1, peers * places)
    x_RM, gate_R1 = dispatch(x_GSM.reshape(1, groups * size, model))[0, 0], gates(x_GSM.dtype)[0, 0, :, None]
    sizes_PE = jnp.sum(counts_PO.reshape(peers, mine, groups), axis=-1)
    back = None
    if axes:
        x_RM, gate_R1, sizes_PE = (
            jax.lax.all_to_all(a, axes, split_axis=0, concat_axis=0, tiled=True) for a in (x_RM, gate_R1, sizes_PE)
        )
        merge, back = merging(sizes_PE, len(x_RM) // peers)
        x_RM, gate_R1 = merge(x_RM), merge(gate_R1)

    sizes_E = jnp.sum(sizes_PE, axis=0)
    product = functools.partial(jax.lax.ragged_dot, group_sizes=sizes_E)

    def bias_of_rows(bias_EN: jax.Array) -> jax.Array:
        return jnp.repeat(bias_EN, sizes_E, axis=0, total_repeat_length=len(x_RM)).astype(x_RM.dtype)

    h = [product(x_RM, w_EMH.astype(x_RM.dtype)) for w_EMH in up]
    h = [h_RH + bias_of_rows(bias_EH) for h_RH, bias_EH in zip(h, up_bias, strict=True)] if up_bias else h
    y_RM = product(activation(*h) * gate_R1, down.astype(x_RM.dtype))
    y_RM = jax.lax.psum(y_RM, sums) if sums else y_RM
    y_RM = y_RM if down_bias is None else y_RM + gate_R1 * bias_of_rows(down_bias)
    if back:
        y_RM = jax.lax.all_to_all(back(y_RM), axes, split_axis=0, concat_axis=0, tiled=True)
    return combine(y_RM[None, None]).reshape(x_GSM.shape)


def merging(sizes_PE: jax.Array, places: int) -> tuple[Move, Move]:
    """Returns x_RM -> x_RM, which sorts rows from P peers, `places` of each sorted by expert and then empty, together, and the
    inverse.

    Args:
      sizes_PE: how many rows each peer sent to each expert.
    """
    peers, mine = sizes_PE.shape

    def kinds(sizes_E):  # the expert of each row of a peer, E where it is empty
        sizes = jnp.append(sizes_E, places - jnp.sum(sizes_E))
        return jnp.repeat(jnp.arange(mine + 1), sizes, total_repeat_length=places)

    order_1R = jnp.argsort(jax.vmap(kinds)(sizes_PE).reshape(1, -1), axis=1, stable=True)
    place_1R = invert(order_1R, peers * places)

    def merge(x_RM: jax.Array) -> jax.Array:
        return gather(x_RM[None], order_1R[None], place_1R[..., None])[0, 0]

    def back(y_RM: jax.Array) -> jax.Array:
        return gather_back(y_RM[None, None], order_1R[None], place_1R[..., None])[0]

    return merge, back
