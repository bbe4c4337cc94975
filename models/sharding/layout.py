"""Layouts: which mesh axes cut which logical axes, per component. Plain data, no JAX.

A model names the axes of its tensors ("embed", "mlp", "expert", ...); a `Layout` says, for each component of the model,
which axes of the device mesh cut them. Changing parallelism is changing this object, never the model (GSPMD,
arXiv 2105.04663, section 3: annotate a few tensors and let the compiler partition the rest).
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from models.errors import UserError, nearest, shortened

# The logical axes. Weights and activations have different names wherever a layout may cut them differently.
AXES = {
    # weights
    "embed": "the model dimension of a weight (M in GShard)",
    "mlp": "the hidden dimension of a feed-forward weight (H)",
    "heads": "attention heads of a weight (N)",
    "kv_heads": "heads of keys and values of a weight, where they are fewer than those of queries (G)",
    "kv": "the size of one head's query, key or value (D)",
    "positions": "the rows of a learned table of positions or token types",
    "bins": "blocks of embedding tables, each table whole in one of them",
    "buckets": "the buckets of relative positions",
    "labels": "the classes of a head",
    "vocab": "the vocabulary dimension of an embedding or softmax weight (V)",
    "expert": "the experts of a weight, one matrix each (E)",
    "gate": "the experts as outputs of a router",
    "gates": "the four gates of a recurrent layer, never cut",
    "code_groups": "the codebooks of a quantizer, never cut",
    "codes": "the entries of a codebook",
    "code": "the size of vectors that are compared with each other, or joined",
    "rank": "the columns of a low-rank update, or of a matrix into a latent",
    "latent": "the rows of a matrix that makes heads of a latent",
    "pixels": "the pixels of a patch in the weight that projects it, never cut",
    "filter_height": "the rows of a convolution's filter, never cut",
    "filter_width": "the columns of a convolution's filter, never cut",
    "frame_channels": "the channels that a recurrent convolution reads, a frame's and its own state's, never cut",
    "in_channels": "the input channels of a convolution's weight",
    "channels": "the output channels of a convolution's weight",
    "layers": "a stack of equal layers, run by a scan; cut over the stages of a pipeline",
    # activations
    "batch": "examples or packed rows (B)",
    "length": "positions in a sequence (L), those of queries where keys have their own",
    "res_length": "positions in the residual stream, between sub-layers",
    "keys": "positions of keys and values (S): whole, or cut as 'length' is, and then they go round (ring attention)",
    "act_embed": "the model dimension of an activation",
    "act_mlp": "the hidden dimension of a feed-forward activation",
    "act_heads": "attention heads of an activation",
    "act_kv_heads": "heads of keys and values of an activation, where they are fewer than those of queries",
    "act_vocab": "the vocabulary dimension of logits",
    "act_bins": "blocks of embedding tables as they are looked up",
    "act_table": "the model dimension of an embedding table as it is looked up",
    "height": "the rows of an image or grid; cut, convolutions exchange halos",
    "width": "the columns of an image or grid",
    "act_channels": "the channels of an image's activations",
    "group": "routing groups of tokens, before dispatch and after combination (G)",
    "expert_group": "routing groups in tensors that are cut by expert",
    "act_expert": "the experts in tensors of dispatched tokens (E)",
    "act_expert_mlp": "the hidden dimension inside an expert",
}

SLICE = "slice"
"""The mesh axis along the slices of TPU pods. Between slices is the data-centre network alone, and so this axis is the first of a
mesh, and cuts rows and nothing else: gradients are summed over it, and no weight and no activation crosses it."""
ROWS = ("batch", "group", "expert_group")  # the logical names of rows, which it may cut

# Dimensions that a layout may pad. All others are cut into equal blocks by the code that computes with them.
PADDABLE = (
    *("embed", "mlp", "heads", "kv_heads", "labels", "vocab"),
    *("act_embed", "act_mlp", "act_heads", "act_kv_heads", "act_vocab", "act_table"),
)

Axes = tuple[str, ...]  # mesh axes that cut one dimension together, major first; () leaves it whole
Rules = tuple[tuple[str, Axes], ...]  # logical name -> mesh axes, sorted by name


def split_slices(text: str) -> tuple[int, str]:
    """Returns the number of slices in front of a name, and the name: (2, "two_d") of "2xtwo_d", (1, "two_d") of "two_d"."""
    match = re.fullmatch(r"([1-9]\d*)x(.*)", text)
    return (int(match[1]), match[2]) if match else (1, text)


class LayoutError(UserError):
    """A layout that cannot be applied; the message names the tensor, the rule and the nearest valid choice."""


def rules(**axes: str | Sequence[str] | None) -> Rules:
    """Writes rules as keywords: `rules(batch=("data", "expert"), expert="expert", mlp=None)`."""
    as_tuple = {k: (v,) if isinstance(v, str) else tuple(v or ()) for k, v in axes.items()}
    return tuple(sorted(as_tuple.items()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The pipeline of a component's stack of layers. The mesh axes of its rule for "layers" cut the stack into stages.

    Attributes:
      schedule: "1f1b" (with chunks > 1 interleaved), for the component that ends in the loss: a stage keeps at most
        2 * chunks * stages - 1 inputs, for any number of microbatches; or "gpipe", for any component: the forward
        passes of all microbatches, then, by differentiation, their backward passes.
      microbatches: the number of parts into which the rows of a batch are split.
      chunks: v, the chunks of layers in a stage; more of them make the bubble smaller.
    """

    microbatches: int
    chunks: int = 1
    schedule: Literal["1f1b", "gpipe"] = "1f1b"

    def __post_init__(self) -> None:
        for name in ("microbatches", "chunks"):
            if getattr(self, name) < 1:
                raise LayoutError(f"pipeline: {name}={getattr(self, name)}: must be at least 1")
        if self.schedule not in ("1f1b", "gpipe"):
            raise LayoutError(f"pipeline: no schedule {self.schedule!r}{nearest(self.schedule, ('1f1b', 'gpipe'))}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The mesh and the rules that cut a model over devices.

    Attributes:
      name: its name on the command line and in tables.
      mesh: (axis name, size) pairs, slowest-varying first; their product is the number of devices. An axis SLICE is the first.
      rules: logical name -> mesh axes, for every component; a name without a rule is left whole.
      components: (component path, rules) pairs that override `rules` for that component and those below it, for
        example ("decoder.moe", rules(expert="data")); a longer path wins over a shorter one.
      optimizer: mesh axes that cut optimizer state further than its parameter (ZeRO-1), by logical name; an axis that
        cuts the tensor already is not used twice.
      pipelines: (component path, Pipeline) of the components whose stack of layers runs in stages.
      balanced: rows of causal models are in zigzag order over the shards of "length" (models/parts/attention/mask.py), so that
        attention costs every device the same.
      pad: logical names whose dimensions may be cut in unequal parts, of PADDABLE: the last device has fewer elements, or some
        have none (models/sharding/padding.py).
      torus: (mesh axis, torus axes) pairs that place the mesh on a pod, as ("data", "yz"); see models/sharding/torus.py.
    """

    name: str
    mesh: tuple[tuple[str, int], ...]
    rules: Rules = ()
    components: tuple[tuple[str, Rules], ...] = ()
    optimizer: Rules = ()
    pipelines: tuple[tuple[str, Pipeline], ...] = ()
    balanced: bool = False
    pad: tuple[str, ...] = ()
    torus: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        names = [axis for axis, _ in self.mesh]
        if len(set(names)) < len(names):
            raise LayoutError(f"layout {self.name!r}: mesh axes {names} are not distinct")
        for axis, size in self.mesh:
            if size < 1:
                raise LayoutError(f"layout {self.name!r}: mesh axis {axis!r} has size {size}, must be at least 1")
        if SLICE in names[1:]:
            raise LayoutError(f"layout {self.name!r}: mesh axis {SLICE!r} must be the first of {names}: a slice has the others")
        tables = [("rules", self.rules), ("optimizer", self.optimizer), *self.components]
        for scope, table in tables:
            for name, axes in table:
                self._check_rule(scope, name, axes)
        for name in self.pad:
            if name not in AXES:
                raise LayoutError(f"layout {self.name!r}, pad: no such logical name '{shortened(name)}'{nearest(name, PADDABLE)}")
            if name not in PADDABLE:
                raise LayoutError(
                    f"layout {self.name!r}, pad: {name!r} cannot be padded; choose from {', '.join(sorted(PADDABLE))}"
                )
        for path, _ in self.pipelines:
            if not self.resolve(path).get("layers"):
                raise LayoutError(f"layout {self.name!r}: the pipeline of {path!r} needs a rule 'layers' -> its stages")

    def _check_rule(self, scope: str, name: str, axes: Axes) -> None:
        rule = f"layout {self.name!r}, {shortened(scope)}: rule '{shortened(name)}' -> {shortened(str(axes), 200)}"
        if name not in AXES:
            raise LayoutError(f"{rule}: no such logical name{nearest(name, AXES)}")
        for axis in axes:
            if axis not in dict(self.mesh):
                raise LayoutError(f"{rule}: no mesh axis '{shortened(axis)}'{nearest(axis, dict(self.mesh))}")
        if len(set(axes)) < len(axes):
            raise LayoutError(f"{rule}: a mesh axis is named twice")
        if SLICE in axes and name not in ROWS:
            raise LayoutError(f"{rule}: between slices is a slow network, and only rows are cut over it: {', '.join(ROWS)}")

    @property
    def devices(self) -> int:
        return math.prod(size for _, size in self.mesh)

    @property
    def slices(self) -> int:
        """Returns the number of slices; 1 without an axis SLICE."""
        return dict(self.mesh).get(SLICE, 1)

    @property
    def mesh_of_slice(self) -> tuple[tuple[str, int], ...]:
        """Returns the mesh of one slice: all axes but SLICE."""
        return tuple((axis, size) for axis, size in self.mesh if axis != SLICE)

    def num_shards(self, axes: Axes) -> int:
        """Returns the number of shards into which these mesh axes cut a dimension."""
        sizes = dict(self.mesh)
        return math.prod(sizes[axis] for axis in axes)

    @functools.cache  # noqa: B019 - layouts are few and live as long as the process
    def resolve(self, component: str) -> dict[str, Axes]:
        """Returns the rules in force for a component, overrides applied from the root downwards."""
        table = dict(self.rules)
        for path, override in sorted(self.components, key=lambda item: item[0].count(".")):
            if component == path or component.startswith(path + "."):
                table |= dict(override)
        return table

    def cut(
        self,
        names: Sequence[str | None],
        shape: Sequence[int] | None = None,
        *,
        component: str = "",
        tensor: str = "an activation",
        extra: Rules = (),
        manual: bool = False,
    ) -> tuple[Axes, ...]:
        """Returns the mesh axes that cut each dimension of a tensor.

        Args:
          names: a logical name per dimension; None leaves that dimension whole.
          shape: sizes, to check that each is divisible; None skips that check.
          component: the path of the component that owns the tensor.
          tensor: the tensor's name in errors.
          extra: axes to add to the component's rules (the optimizer's), where they are still free.
          manual: whether the tensor goes into a shard_map, whose parts are equal, whatever the layout pads.

        Raises:
          LayoutError: an unknown name, two dimensions on one mesh axis, or an indivisible dimension that is not padded.
        """
        table = self.resolve(component)
        scope = f"{tensor} {tuple(names)} of component {component or '(root)'!r}, layout {self.name!r}"
        cuts: list[Axes] = []
        for name in names:
            if name is not None and name not in AXES:
                raise LayoutError(f"{scope}: no such logical name {name!r}{nearest(name, AXES)}")
            cuts.append(table.get(name, ()) if name else ())
        for i, name in enumerate(names):
            taken = {axis for axes in cuts for axis in axes}
            cuts[i] += tuple(axis for axis in dict(extra).get(name or "", ()) if axis not in taken)
        owner: dict[str, str | None] = {}
        for name, axes in zip(names, cuts, strict=True):
            for axis in axes:
                if axis in owner:
                    raise LayoutError(
                        f"{scope}: rules put both {owner[axis]!r} and {name!r} on mesh axis {axis!r}; "
                        f"map one of them to another axis of {dict(self.mesh)} or to none"
                    )
                owner[axis] = name
        for name, axes, size in zip(names, cuts, shape or (), strict=shape is not None):
            if manual or name not in self.pad:
                self._check_size(scope, name, axes, size, may_pad=not manual)
        return tuple(cuts)

    def _check_size(self, scope: str, name: str | None, axes: Axes, size: int, *, may_pad: bool) -> None:
        """Raises LayoutError for a dimension that its mesh axes do not divide."""
        if size % (shards := self.num_shards(axes)):
            below = max(d for d in range(1, size + 1) if size % d == 0 and d <= shards)
            raise LayoutError(
                f"{scope}: {name!r} of size {size} is not divisible by the {shards} shards of rule "
                f"{name!r} -> {axes}; the nearest that fits is {below}"
                + (f", or {name!r} in the layout's pad" if name in PADDABLE and may_pad else "")
            )

    def shard_size(self, shape: Sequence[int], cuts: Sequence[Axes]) -> int:
        """Returns the elements of a tensor on one device, the padding of its dimensions included."""
        return math.prod(-(-size // self.num_shards(axes)) for size, axes in zip(shape, cuts, strict=True))

    def pipeline(self, component: str) -> Pipeline | None:
        """Returns the pipeline of exactly this component, or None."""
        return dict(self.pipelines).get(component)

    def check_components(self, known: Iterable[str]) -> None:
        """Raises LayoutError for a rule or a pipeline of a component that the model does not have."""
        known = set(known)
        for path, _ in (*self.components, *self.pipelines):
            if path not in known:
                raise LayoutError(f"layout {self.name!r}: no component {path!r}{nearest(path, known)}")
