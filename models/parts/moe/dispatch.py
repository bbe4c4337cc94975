"""Carrying out a routing (models/parts/moe/routing.py): tokens to their experts, through them, and back.

Four ways, equal value for value and gradient for gradient.

G groups, S tokens of a group, E experts, C slots, M model, H hidden, N assignments; R rows of the experts' input, T tokens
that rows are taken from, J readers of a row.

| dispatch | tokens move by | between devices by | cost beside the experts' |
| --- | --- | --- | --- |
| "einsum" | products with one-hot masks (GShard, Algorithm 2) | constraints: the compiler's all-to-all | S / H of their FLOPs |
| "sort" | gathers, forward and backward, into the same buffers | the same | moves |
| "all_to_all" | as "sort" | an all_to_all of the buffers, written down | moves |
| "ragged" | gathers into rows without gaps (MegaBlocks, 2211.15841) | an all_to_all of the rows, padded | moves |

The first three multiply E * C slots of a group, filled or empty: with capacity factor 0 (C = S) that is E / K times the work
that is wanted. "ragged" multiplies the rows there are, whatever the capacity. What it exchanges must have a size that is
known beforehand: where experts are cut, the worst case of min(S K, C times its experts) rows of a group for each peer, which
dropless are mostly empty. `jax.lax.ragged_dot` has a kernel on TPUs; on CPUs it multiplies every row with every expert of the
device.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from models.parts.moe.routing import Routing, per_expert
from models.sharding.component import Component
from models.sharding.layout import Axes, LayoutError


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
    activation: Callable[..., jax.Array]
    up_bias: tuple[jax.Array, ...] = ()
    down_bias: jax.Array | None = None
    hidden: Callable[[jax.Array], jax.Array] | None = None


def mixture(x_GSM: jax.Array, routing: Routing, slots: int, experts: Experts, where: Component, how: str) -> jax.Array:
    """Returns y_GSM, the gated sum of what each token's experts returned; zero for tokens without one.

    Args:
      slots: C, which the routing was made with.
      where: the component; its layout says which mesh axes cut "group", "act_expert", "expert_group", "act_expert_mlp".
      how: a dispatch, see the head of this file.

    Raises:
      LayoutError: experts that the mesh axes do not divide, or, for the explicit exchanges, groups that are not cut by the
        axes that cut experts.
    """
    x_GSM = where.shard(x_GSM, "group", None, "act_embed")
    run = ragged if how == "ragged" else functools.partial(buffered, how=how)
    return where.shard(run(x_GSM, routing, slots, experts, where), "group", None, "act_embed")


# --- buffers of C slots -------------------------------------------------------------------------------------------

Move = Callable[[jax.Array], jax.Array]


def buffered(x_GSM: jax.Array, routing: Routing, slots: int, experts: Experts, where: Component, how: str) -> jax.Array:
    """Computes `mixture` through buffers [G, E, C, M]."""
    moves, exchange = BUFFERED[how]
    dispatch, combine = moves(routing, x_GSM.shape[1], experts.down.shape[0], slots)
    x_EGCM = checkpoint_name(exchange(dispatch(x_GSM), where), "dispatched")
    h_EGCH = (jnp.einsum("EGCM,EMH->EGCH", x_EGCM, w_EMH.astype(x_EGCM.dtype)) for w_EMH in experts.up)
    names = ("act_expert", "expert_group", None, "act_expert_mlp")
    h_EGCH = [where.shard(h, *names) for h in h_EGCH]
    if experts.up_bias:
        h_EGCH = [h + b_EH[:, None, None].astype(h.dtype) for h, b_EH in zip(h_EGCH, experts.up_bias, strict=True)]
    kept = ("gate", "up")[-len(experts.up) :]
    h_EGCH = experts.activation(*(checkpoint_name(h, name) for h, name in zip(h_EGCH, kept, strict=True)))
    h_EGCH = experts.hidden(h_EGCH) if experts.hidden else h_EGCH
    y_EGCM = jnp.einsum("EGCH,EHM->EGCM", h_EGCH, experts.down.astype(x_EGCM.dtype))
    if experts.down_bias is not None:
        y_EGCM = y_EGCM + experts.down_bias[:, None, None].astype(y_EGCM.dtype)
    return combine(checkpoint_name(exchange(y_EGCM, where, back=True), "returned"))


def by_einsum(routing: Routing, size: int, experts: int, slots: int) -> tuple[Move, Move]:
    """Returns x_GSM -> x_GECM, empty slots zero, and y_GECM -> y_GSM, gated sums, as products with one-hot masks [G, S, E, C]."""

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
        return jnp.einsum("GSEC,GSM->GECM", mask(routing.kept_GN, x_GSM.dtype), x_GSM)

    def combine(y_GECM):
        return jnp.einsum("GSEC,GECM->GSM", mask(routing.gate_GN * routing.kept_GN, y_GECM.dtype), y_GECM)

    return dispatch, combine


def by_sort(routing: Routing, size: int, experts: int, slots: int) -> tuple[Move, Move]:
    """Equal to `by_einsum` without its FLOPs: rows are gathered, forward and backward."""
    groups = routing.token_GN.shape[0]
    place_GN = jnp.where(routing.kept_GN, routing.expert_GN * slots + routing.slot_GN, experts * slots)
    to_rows, from_rows = rows(routing, place_GN, size, experts * slots)

    def dispatch(x_GSM):
        return to_rows(x_GSM).reshape(groups, experts, slots, -1)

    def combine(y_GECM):
        return from_rows(y_GECM.reshape(groups, experts * slots, -1))

    return dispatch, combine


def rows(routing: Routing, place_GN: jax.Array, tokens: int, places: int) -> tuple[Move, Move]:
    """Returns dispatch, x_GTM -> x_GRM with empty rows zero, and combine, y_GRM -> y_GTM, gated sums over a token's rows.

    Args:
      place_GN: int32, each assignment's row; R for those that are not kept.
      tokens, places: T and R.
    """
    gate_GN = routing.gate_GN * routing.kept_GN
    choice_GR = invert(place_GN, places)
    moves = _rows_of_choices if routing.choices else _rows_of_experts
    return moves(routing, gate_GN, place_GN, choice_GR, tokens)


def _rows_of_choices(routing: Routing, gate_GN, place_GN, choice_GR, tokens: int) -> tuple[Move, Move]:
    """Returns `rows` where tokens choose: a token's rows are known from both sides, so that neither move scatters."""
    groups, k = place_GN.shape[0], routing.choices

    def dispatch(x_GTM):
        # choice // K is the token; an empty row gives T, out of range, hence zeros.
        return gather_rows(x_GTM, choice_GR // k, place_GN.reshape(groups, tokens, k))

    def combine(y_GRM):
        y_GTKM = gather_rows(y_GRM, place_GN, choice_GR[..., None]).reshape(groups, tokens, k, -1)
        return jnp.einsum("GTKM,GTK->GTM", y_GTKM, gate_GN.reshape(groups, tokens, k).astype(y_GRM.dtype))

    return dispatch, combine


def _rows_of_experts(routing: Routing, gate_GN, place_GN, choice_GR, tokens: int) -> tuple[Move, Move]:
    """Returns `rows` where experts choose: a token may have any number of rows, whose outputs are added in float32 at least."""
    del place_GN
    token_GR = jnp.take_along_axis(routing.token_GN, choice_GR, axis=1, mode="fill", fill_value=tokens)
    gate_GR1 = jnp.take_along_axis(gate_GN, choice_GR, axis=1, mode="fill", fill_value=0)[..., None]

    def dispatch(x_GTM):
        return jnp.take_along_axis(x_GTM, token_GR[..., None], axis=1, mode="fill", fill_value=0)

    def combine(y_GRM):
        def add(token_R, y_RM):
            return jnp.zeros((tokens, y_RM.shape[-1]), y_RM.dtype).at[token_R].add(y_RM, mode="drop")

        wide = jnp.promote_types(y_GRM.dtype, jnp.float32)
        return jax.vmap(add)(token_GR, y_GRM.astype(wide) * gate_GR1.astype(wide)).astype(y_GRM.dtype)

    return dispatch, combine


def invert(place_GN: jax.Array, places: int) -> jax.Array:
    """Returns the assignment [G, R] at each place, N where there is none; assignments with places of R or more have none."""
    n = place_GN.shape[1]

    def invert_group(place_N):
        return jnp.full(places, n, jnp.int32).at[place_N].set(jnp.arange(n, dtype=jnp.int32), mode="drop")

    return jax.vmap(invert_group)(place_GN)


@jax.custom_vjp
def gather_rows(x_GRM: jax.Array, index_GO: jax.Array, readers_GRJ: jax.Array) -> jax.Array:
    """Returns the rows x[index] of each group, zero where the index is R (out of range).

    Its gradient is a gather too, not a scatter-add: readers_GRJ lists the at most J outputs that read each row of x
    (O, out of range, where there are fewer).
    """
    del readers_GRJ
    return jnp.take_along_axis(x_GRM, index_GO[..., None], axis=1, mode="fill", fill_value=0)


def _gather_rows_fwd(x_GRM, index_GO, readers_GRJ):
    return gather_rows(x_GRM, index_GO, readers_GRJ), readers_GRJ


def _gather_rows_bwd(readers_GRJ, dy_GOM):
    groups, rows, j = readers_GRJ.shape
    flat = readers_GRJ.reshape(groups, rows * j, 1)
    dy_GRJM = jnp.take_along_axis(dy_GOM, flat, axis=1, mode="fill", fill_value=0).reshape(groups, rows, j, -1)
    return jnp.sum(dy_GRJM, axis=2), None, None


gather_rows.defvjp(_gather_rows_fwd, _gather_rows_bwd)


# --- the exchange between groups and experts ----------------------------------------------------------------------


BY_GROUP = ("group", None, None, "act_embed")
BY_EXPERT = ("act_expert", "expert_group", None, "act_embed")


def by_constraint(buffer: jax.Array, where: Component, back: bool = False) -> jax.Array:
    """[G, E, C, M] cut by group -> [E, G, C, M] cut by expert, or back: an all-to-all in the compiled program."""
    before, after = (BY_EXPERT, BY_GROUP) if back else (BY_GROUP, BY_EXPERT)
    return where.shard(where.shard(buffer, *before).swapaxes(0, 1), *after)


def by_all_to_all(buffer: jax.Array, where: Component, back: bool = False) -> jax.Array:
    """`by_constraint` with the exchange written down. Raises LayoutError: see `expert_axes`."""
    axes = expert_axes(where)
    if not axes:
        return by_constraint(buffer, where, back)

    def exchange(buffer):
        return jax.lax.all_to_all(buffer, axes, split_axis=1, concat_axis=0, tiled=True).swapaxes(0, 1)

    before, after = (BY_EXPERT, BY_GROUP) if back else (BY_GROUP, BY_EXPERT)
    before, after = where.spec(before, buffer.shape), where.spec(after, buffer.swapaxes(0, 1).shape)
    return jax.shard_map(exchange, mesh=where.mesh, in_specs=before, out_specs=after)(buffer)


BUFFERED = {
    "einsum": (by_einsum, by_constraint),
    "sort": (by_sort, by_constraint),
    "all_to_all": (by_sort, by_all_to_all),
}


def exchangeable(where: Component) -> bool:
    """Returns whether an all-to-all brings tokens to their experts: not if they lie on the devices of several experts at once."""
    rules = where.layout.resolve(where.path)
    group, expert, stay = (rules.get(name, ()) for name in ("group", "act_expert", "expert_group"))
    return not expert or where.mesh is None or set(group) == {*stay, *expert}


def expert_axes(where: Component) -> Axes:
    """Returns the mesh axes that tokens cross to reach their experts; none without a mesh, or where experts are whole.

    Raises:
      LayoutError: tokens for which an all-to-all is not the exchange.
    """
    rules = where.layout.resolve(where.path)
    group, expert, stay = (rules.get(name, ()) for name in ("group", "act_expert", "expert_group"))
    if not expert or where.mesh is None:
        return ()
    if not exchangeable(where):
        raise LayoutError(
            f"layout {where.layout.name!r}, component {where.path!r}: an explicit all-to-all needs 'group' cut by the axes of "
            f"'expert_group' and 'act_expert', {stay + expert}, not {group}; dispatch 'sort' takes any layout"
        )
    return expert


# --- rows without gaps --------------------------------------------------------------------------------------------


def ragged(x_GSM: jax.Array, routing: Routing, slots: int, experts: Experts, where: Component) -> jax.Array:
    """Computes `mixture` through rows sorted by expert and grouped matrix products; each device sorts all its groups together."""
    if experts.hidden:
        raise LayoutError(
            "dropout inside experts is drawn by place in their buffers, which dispatch 'ragged' has none of; use 'sort'"
        )
    axes = expert_axes(where)
    sums = where.layout.resolve(where.path).get("act_expert_mlp", ()) if where.mesh else ()
    peers = where.layout.num_shards(axes)
    local = functools.partial(_ragged, activation=experts.activation, slots=slots, peers=peers, axes=axes, sums=sums)
    args = x_GSM, routing, experts.up, experts.down, experts.up_bias, experts.down_bias
    if where.mesh is None:
        return local(*args)
    up = where.spec(("act_expert", None, "act_expert_mlp"), experts.up[0].shape, tensor="an expert's weight")
    down = where.spec(("act_expert", "act_expert_mlp", None), experts.down.shape, tensor="an expert's weight")
    groups = where.spec(("group",), x_GSM.shape[:1])
    up_bias = where.spec(("act_expert", "act_expert_mlp"), experts.up[0].shape[::2], tensor="an expert's bias")
    down_bias = where.spec(("act_expert", None), experts.down.shape[::2], tensor="an expert's bias")
    specs = groups, groups, up, down, up_bias, down_bias
    # Unchecked: in a pipeline's vmap over stages, what scatters below counts as varying over stages that it never sees.
    return jax.shard_map(local, mesh=where.mesh, in_specs=specs, out_specs=groups, check_vma=False)(*args)


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
    place_GN = jnp.where(routing.kept_GN, place_GN, peers * places).astype(jnp.int32)

    # The device's groups are one to `rows`.
    token_GN = routing.token_GN + size * jnp.arange(groups, dtype=jnp.int32)[:, None]
    together = jax.tree.map(lambda a: a.reshape(1, groups * n), dataclasses.replace(routing, token_GN=token_GN))
    dispatch, combine = rows(together, place_GN.reshape(1, groups * n), groups * size, peers * places)
    x_RM = dispatch(x_GSM.reshape(1, groups * size, model))[0]
    sizes_PE = jnp.sum(counts_PO.reshape(peers, mine, groups), axis=-1)
    back = None
    if axes:
        x_RM, sizes_PE = (
            jax.lax.all_to_all(a, axes, split_axis=0, concat_axis=0, tiled=True) for a in (x_RM, sizes_PE)
        )
        x_RM, back = merge(x_RM, sizes_PE)

    sizes_E = jnp.sum(sizes_PE, axis=0)
    product = functools.partial(jax.lax.ragged_dot, group_sizes=sizes_E)

    def add_bias(y_RN: jax.Array, bias_EN: jax.Array) -> jax.Array:
        return y_RN + jnp.repeat(bias_EN, sizes_E, axis=0, total_repeat_length=len(y_RN)).astype(y_RN.dtype)

    h = [product(x_RM, w_EMH.astype(x_RM.dtype)) for w_EMH in up]
    h = [add_bias(h_RH, bias_EH) for h_RH, bias_EH in zip(h, up_bias, strict=True)] if up_bias else h
    y_RM = product(activation(*h), down.astype(x_RM.dtype))
    y_RM = jax.lax.psum(y_RM, sums) if sums else y_RM
    y_RM = y_RM if down_bias is None else add_bias(y_RM, down_bias)
    if back:
        y_RM = jax.lax.all_to_all(back(y_RM), axes, split_axis=0, concat_axis=0, tiled=True)
    return combine(y_RM[None]).reshape(x_GSM.shape)


def merge(x_RM: jax.Array, sizes_PE: jax.Array) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """Returns rows from P peers, R / P of each sorted by expert and then empty, sorted so together, and the inverse.

    Args:
      sizes_PE: how many rows each peer sent to each expert.
    """
    peers, mine = sizes_PE.shape
    places = x_RM.shape[0] // peers

    def kinds(sizes_E):  # the expert of each row of a peer, E where it is empty
        sizes = jnp.append(sizes_E, places - jnp.sum(sizes_E))
        return jnp.repeat(jnp.arange(mine + 1), sizes, total_repeat_length=places)

    order_1R = jnp.argsort(jax.vmap(kinds)(sizes_PE).reshape(1, -1), axis=1, stable=True)
    place_1R = invert(order_1R, peers * places)
    return gather_rows(x_RM[None], order_1R, place_1R[..., None])[0], lambda y_RM: gather_rows(
        y_RM[None], place_1R, order_1R[..., None]
    )[0]
