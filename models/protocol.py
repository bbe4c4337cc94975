"""The contract of a model: what the training step asks of every family, and what a family may offer besides.

A family is a folder of models/ whose family.py describes it (models/families.py). The trainer, the planner and the commands
know models by the protocols of this file alone.
"""

import abc
import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx

from models.execution import Execution
from models.parts.losses import Loss, Totals
from models.sharding.component import Component
from models.sharding.layouts import Recipe
from models.sharding.remat import Activation

Batch = dict[str, jax.Array]  # arrays by name, with examples (or packed rows of them) in front
Activations = Any  # a pytree of arrays [rows, positions, dimensions]: what passes from layer to layer


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
    """The circumstances under which a model computes a batch.

    Attributes:
      key: draws whatever is random (dropout, routing, masks inside the model); None draws nothing. Within a stack of layers,
        a key for each layer: [layers].
      step: int32 scalar, the optimizer step under way, for schedules inside a loss (a temperature, a ramp of a weight).
      training: whether the pass trains; a model may add metrics, or serve more tokens, when it does not.
      layers: int32 [layers], within a stack the number of each of its layers; None outside.
    """

    key: jax.Array | None
    step: jax.Array
    training: bool = dataclasses.field(metadata={"static": True})
    layers: jax.Array | None = None

    @classmethod
    def evaluation(cls) -> "Context":
        """The context of a pass that scores a model: nothing is random."""
        return cls(None, jnp.zeros((), jnp.int32), training=False)  # pyright: ignore[reportUnknownMemberType]

    def split(self, n: int) -> list["Context"]:
        """Returns n contexts with keys of their own."""
        keys = [None] * n if self.key is None else list(jax.random.split(self.key, n))
        return [dataclasses.replace(self, key=key) for key in keys]

    def keys(self, n: int) -> jax.Array:
        """Returns n keys as one array [n]; the context must have a key."""
        assert self.key is not None, "an evaluation draws nothing"
        return jax.random.split(self.key, n)

    @property
    def numbers(self) -> jax.Array:
        """The number of each layer of a stack, int32 [layers]; the context must be within one."""
        assert self.layers is not None, "no stack of layers"
        return self.layers

    def for_layers(self, layers: int) -> "Context":
        """Returns the context of a stack, with a key and a number for each of its layers."""
        keys = None if self.key is None else self.keys(layers)
        numbers = jnp.arange(layers, dtype=jnp.int32)  # pyright: ignore[reportUnknownMemberType]
        return dataclasses.replace(self, key=keys, layers=numbers)


@runtime_checkable
class Model(Protocol):
    """What the training step asks of a model: a pytree of parameters (an `nnx.Module`) with pure methods.

    Attributes:
      c: its configuration.
      scope: the root component, with the layout and the mesh.
    """

    c: Any  # a ModelConfig; each family's model declares its own
    scope: Component

    @property
    def coupled(self) -> tuple[str, ...]:
        """Returns the components, by path, that compare examples of a batch with each other: the loss is then no sum over them.

        Parts of a batch would be compared by themselves: gradient accumulation and 1F1B are refused whatever the component, GPipe
        where the component is in the pipelined stack, such as layers with a batch norm. "" is the model itself: it compares what
        its layers return of the whole batch.
        """
        ...

    def totals(self, batch: Batch) -> Totals:
        """Returns the counts of a whole batch that its losses are divided by, however the batch is split."""
        ...

    def units(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns how much work the batch is, by unit ("tokens", "images", "frames"), padding left out.

        The first unit is the one that throughput is told in.
        """
        ...

    def loss(self, batch: Batch, context: Context, totals: Totals | None = None) -> Loss:
        """Returns the loss of some examples as a part of the batch's.

        Args:
          batch: the examples, as the task's features describe them.
          context: what is random, the step, and whether the pass trains.
          totals: of the batch that these examples are a part of; by default they are the whole.
        """
        ...


@runtime_checkable
class HasPrologue(Protocol):
    """A staged model with a part that must be computed for the whole batch before its last stack: an encoder, say."""

    def before(self, batch: Batch, context: Context, totals: Totals) -> tuple[Batch, Loss]:
        """Returns arrays with rows in front that `embed` reads as if they were inputs, and the losses added so far."""
        ...


@runtime_checkable
class ChecksRows(Model, Protocol):
    """A model that cannot take every way of dealing rows out to microbatches: one whose routing groups may span rows."""

    def check_rows(self, lengths: Mapping[str, int], microbatches: int) -> None:
        """Raises LayoutError where the model would compute something else in microbatches than in a whole batch.

        Args:
          lengths: positions of a row, by the name of the input.
          microbatches: of the step; a pipeline's come on top.
        """
        ...


class Staged(nnx.Module, abc.ABC):
    """A model whose loss ends in one stack of equal layers, which may run in pipeline stages (models/sharding/pipelines/).

    Its loss is composed here, once: `before` where there is one (HasPrologue), `embed`, `apply_layers` over the stack, and
    `head_loss`. So is the splitting of keys, which pipelines share: `prologue_contexts` and `part_contexts`.

    Attributes:
      stack: the name of the attribute, and component, that holds the last stack of layers.
    """

    stack_name: ClassVar[str]
    c: Any  # a ModelConfig; each family's model declares its own
    scope: Component

    @property
    def coupled(self) -> tuple[str, ...]:
        """Returns the components that compare examples of a batch with each other, by default none; see `Model`."""
        return ()

    @abc.abstractmethod
    def totals(self, batch: Batch) -> Totals:
        """Returns the counts that losses are divided by; see `Model`."""

    @abc.abstractmethod
    def embed(self, batch: Batch, context: Context) -> Activations:
        """Returns the first layer's input."""

    @abc.abstractmethod
    def apply_layers(
        self, blocks: Any, x: Activations, batch: Batch, context: Context, totals: Totals
    ) -> tuple[Activations, Loss]:
        """Runs some of the layers.

        Args:
          blocks: consecutive layers of the stack, parameters with a leading axis.
          x: their input.
          context: with a key and the number of each of these layers.

        Returns:
          (the last layer's output, of the same structure as x; the losses that the layers add).
        """

    @abc.abstractmethod
    def head_loss(self, x: Activations, batch: Batch, context: Context, totals: Totals) -> Loss:
        """Returns the loss of the last layer's output; draws nothing."""

    def loss(self, batch: Batch, context: Context, totals: Totals | None = None) -> Loss:
        """Returns the loss of some examples as a part of the batch's; see `Model`."""
        totals = self.totals(batch) if totals is None else totals
        first: list[Loss] = []
        if isinstance(self, HasPrologue):
            prologue, context = prologue_contexts(context)
            arrays, loss = self.before(batch, prologue, totals)
            batch, first = batch | arrays, [loss]
        embedding, layers = part_contexts(context)
        blocks = getattr(self, self.stack_name)
        depth = jax.tree.leaves(blocks)[0].shape[0]
        x, middle = self.apply_layers(blocks, self.embed(batch, embedding), batch, layers.for_layers(depth), totals)
        return functools.reduce(operator.add, [*first, middle, self.head_loss(x, batch, context, totals)])


def prologue_contexts(context: Context) -> tuple[Context, Context]:
    """Returns the contexts of (`HasPrologue.before`, all that follows it), of a model that has a prologue."""
    prologue, rest = context.split(2)
    return prologue, rest


def part_contexts(context: Context) -> tuple[Context, Context]:
    """Returns the contexts of (`Staged.embed`, the stack of layers), of what `prologue_contexts` leaves."""
    embedding, layers = context.split(2)
    return embedding, layers


@runtime_checkable
class HasOutputs(Protocol):
    """A model whose outputs for a batch can be asked for, beside its loss: logits of classes or places, vectors."""

    def __call__(self, batch: Batch) -> jax.Array:
        """Returns the outputs [B, ...] outside training."""
        ...


@runtime_checkable
class Classifies(HasOutputs, Protocol):
    """A model that may name the class of a whole example; its outputs are then logits [B, C], or [B, P, C] for
    each slot of a packed row."""

    @property
    def classes(self) -> int:
        """How many classes there are; 0 where the model names none of a whole example."""
        ...


@runtime_checkable
class ShowsAttention(Protocol):
    """A model of pictures that can show where it looks."""

    def attention_maps(self, batch: Batch) -> jax.Array:
        """Returns how much each part of a picture is attended to, by layer: [layers, B, rows, columns], outside training."""
        ...


class MakeModel(Protocol):
    """Makes a model, parameters and all, from its configuration: the model's class."""

    def __call__(self, c: Any, key: jax.Array, scope: Component) -> Model: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """The behaviour of a family of models (models/families.py).

    Attributes:
      model: the model's class.
      layouts: the named layouts that suit it.
      like: names an experiment of the family whose data and evaluation go with a model that comes without any, by its
        configuration.
      reads: changes that experiment's data so that the model can read them.
      resized: makes, of parameters whose shapes depend on the size of what is read, those of another configuration: by name, the
        function that does so. By default there are none, and weights must have the model's shapes.
      convention: says what published numbers of parameters count of such a model, for families where they differ.
      comparable: changes a configuration so that every layout computes the same: nothing random, and stacks deep enough for two
        pipeline stages of two chunks. It is also given the lengths of a batch's rows, for routing groups within them. By
        default it changes nothing.
      activations: the tensors inside its layers that it marks by name, for rematerialisation, the planner and the drawings. A
        family without any is planned by what its backward pass keeps, cut as the batch is.
      policies: what a search of plans lets the backward pass keep (models/sharding/remat.py); by default the experiment's choice.
      searched: the layouts that a search of plans tries for a configuration; by default all of `layouts` that it may vary.
      hyperparameters: makes the settings of a configuration that a log of a run names beside those of optimizer and data
        (trainers/measure/mlperf_rules.py).
      notes: makes the lines about a configuration and its execution that a run prints when it starts.
      meaning: fields of the configuration, by dotted paths, that change what a model computes, but none of its shapes: weights
        of a model that differs in one of them are refused.
      same_outputs: whether two configurations mean the same by the outputs of the components that may start fresh, its heads;
        else a head is not taken from the other's weights.
      shared: parameters, by name, that mean the same in every head.
    """

    model: MakeModel
    layouts: Mapping[str, Recipe]
    like: Callable[[Any], str]
    reads: Callable[[Any, Any], Any] = lambda config, data: data
    resized: Callable[[Any, Any], Mapping[str, Callable[[Any], Any]]] = lambda ours, theirs: {}
    convention: Callable[[Any], str] = lambda config: ""
    comparable: Callable[[Any, Sequence[int]], Any] = lambda config, lengths: config
    activations: Mapping[str, Activation] = dataclasses.field(default_factory=dict[str, Activation])
    policies: Sequence[str] = ()
    searched: Callable[[Any], Mapping[str, Recipe]] | None = None
    hyperparameters: Callable[[Any], dict[str, Any]] = lambda config: {}
    notes: Callable[[Any, Execution], list[str]] = lambda config, execution: []
    meaning: tuple[str, ...] = ()
    same_outputs: Callable[[Any, Any], bool] = lambda ours, theirs: True
    shared: frozenset[str] = frozenset()


class Searchable(Protocol):
    """A way to continue sequences a position at a time, for beam search and sampling; its state is any pytree."""

    def step(self, state: Any, ids_BK: jax.Array, at: jax.Array) -> tuple[jax.Array, Any]:
        """Returns logits [B, K, V] of the token after `ids` at position `at`, and the next state."""
        ...

    def reorder(self, state: Any, parent_BK: jax.Array) -> Any:
        """Returns the state in which hypothesis k continues what hypothesis parent[b, k] was."""
        ...


@runtime_checkable
class Decodes(Searchable, Protocol):
    """A model that continues sequences (models/parts/decoding.py)."""

    def start(self, *args: Any) -> Any:
        """Reads what is attended to (a prompt, a source text, sound, a picture) and returns the state before the first token."""
        ...


@runtime_checkable
class ContinuesText(Decodes, Protocol):
    """A model that reads text from left to right and continues it: `start(ids [B, S], lengths [B], hypotheses, steps)`."""

    @property
    def vocab(self) -> int:
        """How many tokens the model knows."""
        ...

    @property
    def longest(self) -> int | None:
        """The most positions that a text may have; None where nothing bounds it."""
        ...


@runtime_checkable
class Writes(Protocol):
    """A model that turns a source into a text in a way of its own, not token by token (CTC, a transducer)."""

    @property
    def target_vocab(self) -> int:
        """How many tokens the model can produce."""
        ...

    def write(self, batch: Batch, beams: int, steps: int) -> jax.Array:
        """Returns the likeliest text of each row, int32 [B, steps] with 0 behind it, by so many hypotheses."""
        ...


@runtime_checkable
class Represents(Protocol):
    """A model that gives a vector of what a row has, such as a picture: those of things that look alike to it are alike."""

    def vectors(self, batch: Batch) -> jax.Array:
        """Returns a vector of each row [B, M], outside training; the batch has the arrays of `Decoding.compared`."""
        ...


@runtime_checkable
class SequenceToSequence(Decodes, Protocol):
    """A model that turns a source (a text, sound, a picture) into a text: `start(batch, hypotheses, steps)`.

    The batch has the source's arrays by name, with rows in front (data.decoding.Decoding.source).
    """

    @property
    def target_vocab(self) -> int:
        """How many tokens the model can produce."""
        ...
