"""A quick estimate of a plan's memory and step time, without compiling it: what a search is pruned by.

State is exact; activations are those of the traced model, cut as the layout says. The rest are formulas with a few constants,
fitted to steps that the TPU compiler compiled for v4: modelled, give or take 30 %.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from configs.experiment import Experiment
from models.sharding import torus
from models.sharding.params import ParamInfo
from models.sharding.pipelines.gpipe import schedules
from trainers import state
from trainers.pods import activations
from trainers.pods.activations import Activation
from trainers.pods.chips import Slice
from trainers.programs.tables import optimizer_bytes

EFFICIENCY = 0.87  # of matrix products, as a share of the peak
SCORE_TRAFFIC = 40  # bytes through HBM for each attention logit, forward and backward
EXPOSED = 0.65  # share of communication that the products beside it do not hide
EXPOSED_ALL_TO_ALL = 0.5  # the same where tokens travel to their experts and back
# Copies of what a layer's backward pass works on: an activation and its gradient; weights, and some of the next layer's.
ACTIVATION_COPIES, SCORE_COPIES, WEIGHT_COPIES = 2, 2.5, 1.25
LOGIT_BYTES = 6  # of each output logit, its gradient included

# Which activation's axis lets a weight stay cut while it is used; what is cut otherwise is gathered first.
IN_PLACE = {
    "mlp": "act_mlp",
    "heads": "act_heads",
    "kv_heads": "act_kv_heads",
    "vocab": "act_vocab",
    "expert": "act_expert",
}
# Sub-layers by what they return, and the axis over whose pieces that is summed.
SUMMED = {"attention_out": "act_heads", "ffn_out": "act_mlp", "returned": "act_expert_mlp"}
POSITIONS = ("res_length", "act_embed")  # the axes of the residual stream that are gathered before a sub-layer


@dataclasses.dataclass(frozen=True)
class Bound:
    """What a step needs of each chip: bytes of memory at its peak, and seconds."""

    memory_bytes: float
    step_s: float


def bound(e: Experiment, where: Slice) -> Bound:
    """An estimate of an experiment's step on a slice; raises LayoutError for a layout that does not fit model or slice."""
    work = Work(e)
    return Bound(work.memory_bytes(), work.step_s(where))


class Work:
    """What a layout leaves to each device; raises LayoutError where it does not fit the experiment."""

    def __init__(self, e: Experiment):
        self.e, self.layout, self.remat = e, e.layout, e.model.remat
        self.plan, self.optimizer_bytes = _plan(_key(e))
        self.path = self.plan.model.stack  # whose rules stand for those of all stacks
        self.rules = self.layout.resolve(self.path)
        self.itemsize = jnp.dtype(e.model.dtype).itemsize
        self.pieces = [(a, self._piece(a)) for a in activations.activations(e)]
        settings = self.layout.pipeline(self.path)
        self.schedule = schedules(self.plan.model.where, self.plan.parameters).get(self.path)
        self.is_1f1b = settings is not None and settings.schedule == "1f1b"

    def _piece(self, a: Activation, gathered: Sequence[str] = ()) -> float:
        """Bytes of one layer's activation on a device, for one of the parts whose gradients are accumulated."""
        cuts = self.layout.cut(a.axes, a.shape, component=self.path, tensor=f"activation {a.name!r}")
        cut = tuple(axis for name, axes in zip(a.axes, cuts, strict=True) if name not in gathered for axis in axes)
        return a.itemsize * math.prod(a.shape) / self.layout.ways(cut) / self.e.train.microbatches

    # --- memory ---

    def memory_bytes(self) -> float:
        """At the peak of a step: in the last layer's backward pass, at the loss, or where tokens are looked up."""
        parameters = sum(info.bytes_per_device for info in self.plan.parameters)
        at_loss, at_lookup = self._at_ends()
        working = max(self._kept() + max(self._at_layer(), at_loss), at_lookup)
        return parameters + self.optimizer_bytes + working

    def _kept(self) -> float:
        """What is kept for the backward pass."""
        total = sum(a.kept(self.remat) * a.times * piece for a, piece in self.pieces)
        if (s := self.schedule) is None:
            return total
        of_chunk = total / (s.stages * s.chunks * s.microbatches)
        if not self.is_1f1b:
            return (s.microbatches + s.stages - 1) * s.chunks * of_chunk  # idle ticks keep something, too
        return s.ring * sum(piece for a, piece in self.pieces if a.name == "carry") / s.microbatches + of_chunk

    def _at_layer(self) -> float:
        """Gradients, and what one layer's backward pass works on."""
        trained = [info for info in self.plan.parameters if info.name in self.plan.trained]
        gradients = sum(info.bytes_per_device for info in trained)
        gradients *= min(self.e.train.microbatches, 2)  # accumulated: those of a part, and their sum
        if self.itemsize < 4:  # whole stacks of weights as they are used, and of their gradients, are made at once
            gradients += 2 * self.itemsize * sum(info.piece for info in trained)
        by_stack: dict[int, float] = {}
        for a, piece in self.pieces:
            size = piece * (SCORE_COPIES if a.name == "scores" else ACTIVATION_COPIES)
            if a.name == "up":
                size *= 2  # and what comes of it
            if a.name == "carry":
                size += ACTIVATION_COPIES * self._piece(a, POSITIONS)
            by_stack[a.stack] = by_stack.get(a.stack, 0) + size
        parts = self.schedule.microbatches if self.schedule else 1
        stacks = {info.name.split(".")[0] for info in self.plan.parameters}
        weights = max(self._layer_weights(f"{stack}.") for stack in stacks)
        return gradients + max(by_stack.values(), default=0) / parts + WEIGHT_COPIES * weights

    def _layer_weights(self, stack: str) -> float:
        """Bytes of one layer's weights on a device once what must be gathered is gathered."""
        own = [info for info in self.plan.parameters if info.name.startswith(stack) and info.axes[0] == "layers"]
        return sum(self._used(i) * self.layout.ways(self._cuts(i)[0]) / i.shape[0] for i in own)

    def _at_ends(self) -> tuple[float, float]:
        """(output logits and the matrix that they come from, the table of embeddings with whole vectors), with gradients."""
        model: Any = self.e.model
        parts = self.e.train.microbatches * (self.schedule.microbatches if self.schedule else 1)
        vocab = getattr(model, "vocab", 0) or model.target_vocab
        table = 2 * self.itemsize * vocab * model.model_dim

        def ways(component: str, *names: str) -> int:
            rules = self.layout.resolve(component)
            return math.prod(self.layout.ways(rules.get(name, ())) for name in names)

        head = "embedding" if getattr(model, "tied", False) else "softmax"
        logits = LOGIT_BYTES * activations.logits(self.e) / ways(head, "batch", "length", "act_vocab") / parts
        return logits + table / ways(head, "act_vocab", "act_embed"), table / ways("embedding", "act_vocab")

    # --- weights ---

    def _cuts(self, info: ParamInfo) -> tuple[tuple[str, ...], ...]:
        return self.layout.cut(info.axes, info.shape, component=info.where.path, tensor=info.name)

    def _in_place(self, info: ParamInfo) -> tuple[str, ...]:
        """The mesh axes that cut a weight while it is used."""
        rules = self.layout.resolve(info.where.path)
        found = []
        for name, axes in zip(info.axes, self._cuts(info), strict=True):
            user = "act_expert_mlp" if name == "mlp" and "expert" in info.axes else IN_PLACE.get(name, "")
            found += [axis for axis in axes if name == "layers" or axis in rules.get(user, ())]
        return tuple(found)

    def _used(self, info: ParamInfo) -> float:
        """Bytes of a weight on a device once what must be gathered is gathered."""
        return info.size * self.itemsize / self.layout.ways(self._in_place(info))

    # --- time ---

    def step_s(self, where: Slice) -> float:
        """Products, a pipeline's bubble, attention's traffic, and communication that is not hidden; raises LayoutError."""
        links, s, rounds = Links(self.e, where), self.schedule, self.e.train.microbatches
        needed = activations.program_flops(self.e, "none")
        done = activations.program_flops(self.e, self.remat)
        done += needed / 3 if self.is_1f1b else 0  # it runs each chunk forward a second time, whatever is kept inside
        bubble = s.idle() if s and self.is_1f1b else s.bubble if s else 0
        products = done / (where.chips * where.chip.peak * EFFICIENCY) * (1 + bubble)
        stages = s.stages if s else 1
        scores = sum(a.times * piece / a.itemsize for a, piece in self.pieces if a.name == "scores")
        again = 3 * (done / needed - 1)  # the share of the forward pass that is computed a second time
        summed = sum(a.times * self._sum_s(a, again, links) for a, _ in self.pieces if a.name in SUMMED)
        sent = sum(self._weight_s(info, links) for info in self.plan.parameters if info.is_matrix) + summed / stages
        tokens = [(a, piece) for a, piece in self.pieces if a.name in ("dispatched", "returned")]
        exchanged = sum(a.times * self._exchange_s(a, piece, links) for a, piece in tokens) / stages
        traffic = SCORE_TRAFFIC * scores / stages / where.chip.bandwidth
        return products + rounds * (traffic + EXPOSED * sent + EXPOSED_ALL_TO_ALL * exchanged)

    def _weight_s(self, info: ParamInfo, links: "Links") -> float:
        """A weight gathered forward and backward, its gradient scattered, and added up over the weight's copies."""
        cut, used = {axis for axes in self._cuts(info) for axis in axes}, self._in_place(info)
        gathered = tuple(cut.difference(used))
        rules = self.layout.resolve(info.where.path)
        rows = {axis for name in ("batch", "length", "res_length") for axis in rules.get(name, ())}
        size, is_trained = self._used(info), info.name in self.plan.trained
        copies = links.seconds(size / self.layout.ways(gathered), tuple(rows - cut))
        return links.seconds(size, gathered) * (2 + is_trained) + 2 * is_trained * copies

    def _sum_s(self, a: Activation, again: float, links: "Links") -> float:
        """What a tensor-parallel sub-layer reads gathered, and what it returns added up, in all passes."""
        axes = self.rules.get(SUMMED[a.name], ())
        is_cut = any(axis in self.rules.get(name, ()) for name in POSITIONS for axis in axes)
        passes = 4 + is_cut + 2 * again  # what lies cut is gathered for the gradient of the weights, too
        return passes * links.seconds(self._piece(a, POSITIONS), axes)

    def _exchange_s(self, a: Activation, size: float, links: "Links") -> float:
        """Tokens between the devices of their groups and of their experts, in all passes."""
        axes = tuple(axis for axis in self.rules.get("act_expert", ()) if axis in self.rules.get("group", ()))
        return (2 if a.kept(self.remat) else 3) * links.exchange_s(size, axes)


def _key(e: Experiment) -> Experiment:
    """The same for all policies and torus assignments, which change no plan."""
    model = dataclasses.replace(e.model, remat="none")
    return dataclasses.replace(e, model=model, layout=dataclasses.replace(e.layout, torus=()))


@functools.lru_cache(maxsize=1024)
def _plan(e: Experiment) -> tuple[state.Plan, int]:
    """(an abstract plan, bytes of its optimizer's state on a device)."""
    p = state.plan(e, abstract=True)
    return p, optimizer_bytes(p)


class Links:
    """How long collectives over axes of the mesh take on the links of a slice; raises LayoutError if it does not lie there."""

    def __init__(self, e: Experiment, where: Slice):
        self.layout, self.link = e.layout, where.chip.link
        self.found = torus.assignment(e.layout.mesh, where.dims, e.layout.torus)
        self.rings = {
            letter: n for letter, n, wraps in zip(torus.LETTERS, where.dims, where.wrap, strict=False) if wraps
        }

    def _along(self, axes: Iterable[str]) -> dict[str, int]:
        """Chips along each torus axis."""
        along: dict[str, int] = {}
        for letter, n in (part for axis in axes for part in self.found[axis]):
            along[letter] = along.get(letter, 1) * n
        return along

    def seconds(self, size: float, axes: tuple[str, ...]) -> float:
        """Of gathering or scattering `size` bytes: whole rings send both ways, all at once; parts of rings one way."""
        n, along = self.layout.ways(axes), self._along(axes)
        if n == 1:
            return 0.0
        rings = sum(2 for letter, chips in along.items() if chips == self.rings.get(letter))
        return size * (n - 1) / n / (self.link * (rings or len(along)))

    def exchange_s(self, size: float, axes: tuple[str, ...]) -> float:
        """Of an all-to-all of `size` bytes a chip: along its longest axis bytes go a quarter of the ring, or half the line."""
        hops = (n / (8 if n == self.rings.get(letter) else 4) for letter, n in self._along(axes).items())
        return size * max(hops, default=0.0) / self.link
