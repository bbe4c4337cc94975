"""A quick estimate of a plan's memory and step time, without compiling it, by which a search is pruned.

The size of the state is exact, and activations are those of the traced model, cut by the layout. Everything else is a formula
with a few constants, fitted to steps that the TPU compiler compiled for v4. Beside the compiled plans of BENCHMARKS.md these
figures, modelled too, are .92 to 1.30 of the step for dense decoders and encoders without pipelines, and .4 to .8 for most other
models, which is why a search compares plans of one model alone.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from configs.experiment import Experiment
from models.protocol import Staged
from models.sharding import torus
from models.sharding.layout import SLICE, Layout
from models.sharding.params import ParamInfo
from models.sharding.pipelines.gpipe import schedules
from trainers.hlo import activations, variants
from trainers.hlo.activations import CARRY, Traced
from trainers.hlo.tables import optimizer_bytes
from trainers.plan import Plan, make_plan
from trainers.pods.links import Torus
from trainers.runtime.chips import Slice

EFFICIENCY = 0.87  # of matrix products, as a share of the peak
SCORE_TRAFFIC = 40  # bytes through HBM for each attention logit, forward and backward
EXPOSED = 0.65  # share of communication that concurrent products do not hide
FORWARD = 1 / 3  # share of a step's products that copies of activations to the host can hide behind
EXPOSED_ALL_TO_ALL = 0.5  # the same for the all-to-alls of tokens to their experts and back
# Copies held during a layer's backward pass: of gathered activations, with their gradients; of its weights, and some of the next
# layer's.
GATHERED_COPIES, WEIGHT_COPIES = 2, 1.25
LOGIT_BYTES = 6  # for each output logit, its gradient included

POSITIONS = ("res_length", "act_embed")  # the axes of the residual stream that are gathered before a sub-layer
ROWS = ("batch", "length", "res_length", "height", "width")  # axes that divide the rows over the copies of a weight


@dataclasses.dataclass(frozen=True)
class Bound:
    """Estimated peak memory of a step in bytes on each chip, and its time in seconds."""

    memory_bytes: float
    step_s: float


def bound(e: Experiment, pod: Slice) -> Bound:
    """Estimates an experiment's step on a slice; raises LayoutError for a layout that does not fit the model or the slice."""
    work = Work(e)
    return Bound(work.memory_bytes(), work.step_s(pod))


class Work:
    """The work of each device under a layout; raises LayoutError if the layout does not fit the experiment."""

    def __init__(self, e: Experiment):
        self.e, self.layout = e, e.layout
        self.plan, self.optimizer_bytes = _plan(_key(e))
        self.optimizer_on_host = self.optimizer_bytes if e.execution.offloads_optimizer else 0
        model = self.plan.model
        self.path = model.stack_name if isinstance(model, Staged) else ""  # its rules are taken for all layers
        self.rules = self.layout.resolve(self.path)
        self.itemsize = jnp.dtype(e.execution.dtype).itemsize
        self.shards = [(a, self._shard_bytes(a)) for a in activations.activations(e)]
        settings = self.layout.pipeline(self.path)
        self.schedule = schedules(self.plan.model.scope, self.plan.parameters).get(self.path)
        self.is_1f1b = settings is not None and settings.schedule == "1f1b"

    def _shard_bytes(self, a: Traced, gathered: Sequence[str] = ()) -> float:
        """Returns the bytes of one layer's activation on a device, for one microbatch of gradient accumulation."""
        cuts = self.layout.cut(a.axes, a.shape, component=self.path, tensor=f"activation {a.name!r}")
        cuts = [() if name in gathered else axes for name, axes in zip(a.axes, cuts, strict=True)]
        return a.itemsize * self.layout.shard_size(a.shape, cuts) / self.e.train.microbatches

    # --- memory ---

    def memory_bytes(self) -> float:
        """Returns the peak memory of a step: in the last layer's backward pass, at the loss, or at the embedding lookup."""
        parameters = sum(info.bytes_per_device for info in self.plan.parameters)
        at_loss, at_lookup = self._at_ends()
        working = max(self._kept() + max(self._at_layer(), at_loss), at_lookup)
        return parameters + self.optimizer_bytes - self.optimizer_on_host + working

    def _kept(self) -> float:
        """Returns the bytes of activations that are kept for the backward pass."""
        total = sum(a.kept(self.e.execution) * a.times * shard for a, shard in self.shards)
        if (s := self.schedule) is None:
            return total
        of_chunk = total / (s.stages * s.chunks * s.microbatches)
        if not self.is_1f1b:
            return (s.microbatches + s.stages - 1) * s.chunks * of_chunk  # idle ticks save activations, too
        return s.ring * sum(shard for a, shard in self.shards if a.name == CARRY) / s.microbatches + of_chunk

    def _at_layer(self) -> float:
        """Returns the bytes of gradients and of the working memory of one layer's backward pass."""
        trained = [info for info in self.plan.parameters if info.name in self.plan.trained]
        gradients = sum(info.bytes_per_device for info in trained)
        gradients *= min(self.e.train.microbatches, 2)  # accumulated: those of a microbatch, and their sum
        if self.itemsize < 4:  # weights and gradients of whole stacks are cast at once
            gradients += 2 * self.itemsize * sum(info.shard_size for info in trained)
        by_stack: dict[int, float] = {}
        for a, shard in self.shards:
            size = shard * a.kind.working
            if a.name == CARRY:
                size += GATHERED_COPIES * self._shard_bytes(a, POSITIONS)
            by_stack[a.stack] = by_stack.get(a.stack, 0) + size
        parts = self.schedule.microbatches if self.schedule else 1
        stacks = {info.name.split(".")[0] for info in self.plan.parameters}
        weights = max(self._layer_weights(f"{stack}.") for stack in stacks)
        weights = weights or max(map(self._used, self.plan.parameters))  # without stacks, a layer is about one weight
        return gradients + max(by_stack.values(), default=0) / parts + WEIGHT_COPIES * weights

    def _layer_weights(self, stack: str) -> float:
        """Returns the bytes of one layer's weights on a device, gathered for use."""
        own = [info for info in self.plan.parameters if info.name.startswith(stack) and info.axes[:1] == ("layers",)]
        return sum(self._used(i) * self.layout.num_shards(self._cuts(i)[0]) / i.shape[0] for i in own)

    def _at_ends(self) -> tuple[float, float]:
        """Returns (bytes of output logits and the output matrix, bytes of the largest embedding table with whole vectors), both
        with gradients; 0 for a model without a vocabulary."""
        tables = [info for info in self.plan.parameters if info.axes == ("vocab", "embed")]
        heads = [info for info in self.plan.parameters if info.axes == ("embed", "vocab")] or tables  # else it is tied
        parts = self.e.train.microbatches * (self.schedule.microbatches if self.schedule else 1)

        def shard(size: float, info: ParamInfo, *names: str) -> float:
            rules = self.layout.resolve(info.scope.path)
            return size / math.prod(self.layout.num_shards(rules.get(name, ())) for name in names)

        def weight(info: ParamInfo, *names: str) -> float:
            return shard(2 * self.itemsize * info.size, info, *names)

        size = LOGIT_BYTES * activations.logits(self.e) / parts
        loss = (shard(size, i, "batch", "length", "act_vocab") + weight(i, "act_vocab", "act_embed") for i in heads)
        return max(loss, default=0.0), max((weight(i, "act_vocab") for i in tables), default=0.0)

    # --- weights ---

    def _cuts(self, info: ParamInfo) -> tuple[tuple[str, ...], ...]:
        return self.layout.cut(info.axes, info.shape, component=info.scope.path, tensor=info.name)

    def _in_place(self, info: ParamInfo) -> tuple[str, ...]:
        """Returns the mesh axes that cut a weight while it is used: those that cut the same dimension of activations ("act_mlp"
        for "mlp"). Along all other axes the weight is gathered first."""
        rules = self.layout.resolve(info.scope.path)
        cut = []
        for name, axes in zip(info.axes, self._cuts(info), strict=True):
            user = "act_expert_mlp" if name == "mlp" and "expert" in info.axes else f"act_{name}"
            cut += [axis for axis in axes if name == "layers" or axis in rules.get(user, ())]
        return tuple(cut)

    def _used(self, info: ParamInfo) -> float:
        """Returns the bytes of a weight on a device, gathered for use."""
        return info.size * self.itemsize / self.layout.num_shards(self._in_place(info))

    # --- time ---

    def step_s(self, pod: Slice) -> float:
        """Returns the time of products, bubble, attention's memory traffic, exposed communication and exposed copies to the host;
        raises LayoutError."""
        links, s, rounds = Links(self.e, pod), self.schedule, self.e.train.microbatches
        needed = activations.program_flops(variants.with_remat(self.e, "none"))
        done = activations.program_flops(self.e)
        done += needed / 3 if self.is_1f1b else 0  # it recomputes each chunk's forward pass under any policy
        bubble = s.idle() if s and self.is_1f1b else s.bubble if s else 0
        products = done / (pod.devices * pod.chip.peak * EFFICIENCY) * (1 + bubble)
        stages = s.stages if s else 1
        scores = sum(a.times * shard / a.itemsize for a, shard in self.shards if a.kind.quadratic)
        again = 3 * (done / needed - 1)  # the share of the forward pass that is computed a second time
        sent, exchanged = self.communication(links, again)
        traffic = SCORE_TRAFFIC * scores / stages / pod.chip.bandwidth
        copied = rounds * sum(a.times * shard for a, shard in self.shards if a.waits_on_host(self.e.execution)) / stages
        host = max(0.0, copied / pod.chip.host_link - FORWARD * products) + self.optimizer_on_host / pod.chip.host_link
        return products + host + rounds * (traffic + EXPOSED * sent + EXPOSED_ALL_TO_ALL * exchanged)

    def communication(self, links: "Links | Bytes", again: float = 0.0) -> tuple[float, float]:
        """Returns what weights, gradients and sums of tensor-parallel sub-layers cost, and what exchanges of tokens do.

        Args:
          again: the share of the forward pass that is computed a second time.
        """
        stages = self.schedule.stages if self.schedule else 1
        summed = sum(a.times * self._sums(a, again, links) for a, _ in self.shards if a.kind.summed)
        weights = sum(self._weight(info, links) for info in self.plan.parameters if info.is_matrix)
        exchanged = sum(a.times * self._exchanges(a, shard, links) for a, shard in self.shards if a.kind.exchanged)
        return weights + summed / stages, exchanged / stages

    def _weight(self, info: ParamInfo, links: "Links | Bytes") -> float:
        """Returns what it costs to gather a weight forward and backward, scatter its gradient, and sum it over its copies."""
        cut, used = {axis for axes in self._cuts(info) for axis in axes}, self._in_place(info)
        gathered = tuple(cut.difference(used))
        rules = self.layout.resolve(info.scope.path)
        rows = {axis for name in ROWS for axis in rules.get(name, ())}
        size, is_trained = self._used(info), info.name in self.plan.trained
        copies = links.gather(size / self.layout.num_shards(gathered), tuple(rows - cut))
        return links.gather(size, gathered) * (2 + is_trained) + 2 * is_trained * copies

    def _sums(self, a: Traced, again: float, links: "Links | Bytes") -> float:
        """Returns what it costs to gather the input of a tensor-parallel sub-layer and to sum its output, in all passes."""
        axes = self.rules.get(a.kind.summed, ())
        is_cut = any(axis in self.rules.get(name, ()) for name in POSITIONS for axis in axes)
        passes = 4 + is_cut + 2 * again  # a cut input is gathered for the weights' gradient, too
        return passes * links.gather(self._shard_bytes(a, POSITIONS), axes)

    def _exchanges(self, a: Traced, size: float, links: "Links | Bytes") -> float:
        """Returns the cost of the all-to-alls between groups and experts, in all passes."""
        axes = tuple(axis for axis in self.rules.get("act_expert", ()) if axis in self.rules.get("group", ()))
        how = self.e.execution
        again = a.kind.copies and not a.kept(how) and not a.waits_on_host(how)
        return (3 if again else 2) * links.exchange(size, axes)


def _key(e: Experiment) -> Experiment:
    """Returns the experiment without policy and torus assignment, which do not change its plan."""
    return dataclasses.replace(variants.with_remat(e, "none"), layout=dataclasses.replace(e.layout, torus=()))


@functools.lru_cache(maxsize=1024)
def _plan(e: Experiment) -> tuple[Plan, int]:
    """Returns (an abstract plan, bytes of its optimizer's state on a device)."""
    p = make_plan(e, abstract=True)
    return p, optimizer_bytes(p)


class Links:
    """Times of collectives over mesh axes on the links of a slice, without latencies; raises LayoutError if the mesh does not fit
    its torus."""

    def __init__(self, e: Experiment, pod: Slice):
        self.layout, self.network = e.layout, pod.chip.network
        mesh = e.layout.mesh_of_slice
        order = torus.positions(mesh, pod.places, torus.assignment(mesh, pod.places, e.layout.torus))
        places = np.stack(np.unravel_index(order.ravel(), pod.places), axis=-1)
        self.torus = Torus(pod.dims, pod.wrap, pod.chip.link, places.tolist(), hop=0.0)
        self.devices = np.arange(order.size).reshape(order.shape)
        self.seconds = functools.cache(self._seconds)

    def _seconds(self, axes: tuple[str, ...]) -> tuple[float, float]:
        """Returns the seconds of a gather and of an all-to-all of a byte over mesh axes of a slice."""
        names = [name for name, _ in self.layout.mesh_of_slice]
        group = self.devices[tuple(slice(None) if name in axes else 0 for name in names)].ravel().tolist()
        return self.torus.gather(group, 1).seconds, self.torus.all_to_all(group, 1).seconds

    def gather(self, size: float, axes: tuple[str, ...]) -> float:
        """Returns the time to gather or scatter `size` bytes; between slices, of what is left of them, over the network."""
        inside = tuple(axis for axis in axes if axis != SLICE)
        if SLICE in axes:
            left = size / self.layout.num_shards(inside)
            return self.gather(size, inside) + left * (1 - 1 / self.layout.slices) / self.network
        return size * self.seconds(inside)[0]

    def exchange(self, size: float, axes: tuple[str, ...]) -> float:
        """Returns the time of an all-to-all of `size` bytes a device."""
        return size * self.seconds(axes)[1]


class Bytes:
    """Bytes that a device sends in collectives over mesh axes, whatever the links; it has the methods of `Links`."""

    def __init__(self, layout: Layout):
        self.layout = layout

    def gather(self, size: float, axes: tuple[str, ...]) -> float:
        """Returns the bytes sent to gather or scatter `size` bytes, or to exchange so many of each device."""
        return size * (1 - 1 / self.layout.num_shards(axes))

    exchange = gather
