"""The contract of a model: what the training step asks of every family, and what a model may offer besides.

The trainer, the planner and the commands know models by this file alone. A model that offers more than a loss inherits the
classes that say so (`HasOutputs` and those below it): a capability is declared, and is never guessed from a method's name.
"""

import abc
import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from models.parts.losses import Loss, Totals
from models.sharding.component import Component

Batch = dict[str, jax.Array]  # arrays by name, with examples (or packed rows of them) in front
SOFT_TARGETS = "soft_targets"  # the input of `Distils`
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


class Model(Protocol):
    """A model as the training step knows it: a pytree of parameters (an `nnx.Module`) with pure methods.

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


class HasPrologue(abc.ABC):
    """A staged model with a part that must be computed for the whole batch before its last stack: an encoder, say."""

    @abc.abstractmethod
    def before(self, batch: Batch, context: Context, totals: Totals) -> tuple[Batch, Loss]:
        """Returns arrays with rows in front that `embed` reads as if they were inputs, and the losses added so far."""


class ChecksRows(abc.ABC):
    """A model that cannot take every batch, nor every way of dealing rows out to microbatches: one with routing groups."""

    @abc.abstractmethod
    def check_rows(self, lengths: Mapping[str, int], microbatches: int, rows: int | None) -> None:
        """Raises LayoutError where the model cannot train on such batches, or would compute something else in microbatches than
        in a whole batch.

        Args:
          lengths: positions of a row, by the name of the input.
          microbatches: of the step; a pipeline's come on top.
          rows: of a batch that trains; None where the model is only evaluated, which takes any number.
        """


class Staged(nnx.Module, abc.ABC):
    """A model whose loss ends in one stack of equal layers, which may run in pipeline stages (models/sharding/pipelines/).

    Its loss is composed here, once: `before` where there is one (HasPrologue), `embed`, `apply_layers` over the stack, and
    `head_loss`. The context is split in two for `before` and all that follows it, then in two for `embed` and the stack, in
    pipelines too.

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
            prologue, context = context.split(2)
            arrays, loss = self.before(batch, prologue, totals)
            batch, first = batch | arrays, [loss]
        embedding, layers = context.split(2)
        blocks = getattr(self, self.stack_name)
        depth = jax.tree.leaves(blocks)[0].shape[0]
        x, middle = self.apply_layers(blocks, self.embed(batch, embedding), batch, layers.for_layers(depth), totals)
        return functools.reduce(operator.add, [*first, middle, self.head_loss(x, batch, context, totals)])


class MakeModel(Protocol):
    """Makes a model, parameters and all, from its configuration: the model's class."""

    def __call__(self, c: Any, key: jax.Array, scope: Component) -> Model: ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a parameter that a batch reads. A row is a vector along the parameter's last dimension.

    Attributes:
      numbers: int32 [U], the rows, in ascending order, each once; numbers that are no row's fill the array up.
      values: [U, M], the rows themselves.
      index: int32 [B, S], which of `values` each id of the batch reads.
    """

    numbers: jax.Array
    values: jax.Array
    index: jax.Array


class RowReader(abc.ABC):
    """Reads the rows of a parameter that a batch needs, and changes these alone; static, for use in a jitted step."""

    @property
    @abc.abstractmethod
    def reads(self) -> int:
        """The most rows that an example reads."""

    @abc.abstractmethod
    def read(self, param: jax.Array, batch: Batch) -> Rows:
        """Returns the rows that a batch reads."""

    @abc.abstractmethod
    def summed(self, rows: Rows, gradient: jax.Array) -> tuple[Any, jax.Array]:
        """Returns (the gradient as `change` takes it, added up over the devices; the sum of its squares).

        Args:
          gradient: of `rows.values`.
        """

    @abc.abstractmethod
    def change(self, gradient: Any, arrays: Sequence[jax.Array], shared: Any, update: "RowUpdate") -> list[jax.Array]:
        """Returns arrays with the rows changed that the gradient is of.

        Args:
          arrays: the parameter, and arrays that have its leading dimensions, such as its moments; all are cut as it is.
          shared: arrays that the update reads whole.
          update: is called once for each row, with several in front of each array.
        """


RowUpdate = Callable[[jax.Array, Sequence[jax.Array], Any], list[jax.Array]]
"""(gradients [K, M], rows of each array [K, ...], `shared`) -> new rows."""


class ReadsRows(abc.ABC):
    """A model that reads few rows of some parameters for a batch, such as embedding tables, and can be trained by these rows: its
    loss also takes `Rows.values` in such a parameter's place, if the batch has `Rows.index` under the parameter's name."""

    @abc.abstractmethod
    def row_readers(self, examples: int) -> Mapping[str, RowReader]:
        """Returns what reads the rows of each such parameter, by the parameter's name.

        Args:
          examples: of a batch, on all devices.
        """


class HasOutputs(abc.ABC):
    """A model whose outputs for a batch can be asked for, beside its loss: logits of classes or places, vectors."""

    @abc.abstractmethod
    def __call__(self, batch: Batch) -> jax.Array:
        """Returns the outputs [B, ...] outside training."""


class Distils(HasOutputs):
    """A model whose loss may have soft targets: `batch[SOFT_TARGETS]`, of the shape [B, L, V] of its outputs, is the mass that a
    teacher gives to each class; the data's own class has the rest, to 1."""


class Classifies(HasOutputs):
    """A model that may name the class of a whole example; its outputs are then logits [B, C], or [B, P, C] for
    each slot of a packed row."""

    @property
    @abc.abstractmethod
    def classes(self) -> int:
        """The number of classes; 0 where the model names none of a whole example."""


class Embeds(HasOutputs):
    """A model that may give a vector of a whole example; its outputs are then unit vectors [B, P, M] for each slot of a packed
    row."""

    @property
    @abc.abstractmethod
    def embeds(self) -> bool:
        """Whether the outputs are vectors of whole examples."""


class ShowsAttention(abc.ABC):
    """A model of pictures that can show where it looks."""

    @abc.abstractmethod
    def attention_maps(self, batch: Batch) -> jax.Array:
        """Returns how much each part of a picture is attended to, by layer: [layers, B, rows, columns], outside training."""


class Represents(abc.ABC):
    """A model that gives a vector of what a row has, such as a picture: those of things that look alike to it are alike."""

    @abc.abstractmethod
    def vectors(self, batch: Batch) -> jax.Array:
        """Returns a vector of each row [B, M], outside training; the batch has the arrays of `Decoding.compared`."""


class Searchable(Protocol):
    """A way to continue sequences a position at a time, for beam search and sampling; its state is any pytree."""

    def step(self, state: Any, ids_BK: jax.Array, at: jax.Array) -> tuple[jax.Array, Any]:
        """Returns logits [B, K, V] of the token after `ids` at position `at`, and the next state."""
        ...

    def reorder(self, state: Any, parent_BK: jax.Array) -> Any:
        """Returns the state in which hypothesis k continues what hypothesis parent[b, k] was."""
        ...


class Decodes(abc.ABC):
    """A model that continues sequences (models/parts/decoding.py); it is `Searchable`."""

    @abc.abstractmethod
    def start(self, batch: Batch, hypotheses: int, steps: int) -> Any:
        """Returns the state before the first token, of which a few hypotheses a row may grow by up to `steps` tokens.

        Args:
          batch: the arrays of what is continued or attended to, by name, with rows in front.
        """

    @abc.abstractmethod
    def step(self, state: Any, ids_BK: jax.Array, at: jax.Array) -> tuple[jax.Array, Any]:
        """Returns the next logits and the next state; see Searchable."""

    @abc.abstractmethod
    def reorder(self, state: Any, parent_BK: jax.Array) -> Any:
        """Returns the state with its hypotheses in another order; see Searchable."""


class ContinuesText(Decodes):
    """A model that reads text from left to right and continues it. `start` reads prompts: `tokens` [B, S], and their `lengths`
    [B], at least 1; what stands beyond the end of a prompt is not looked at."""

    @property
    @abc.abstractmethod
    def vocab(self) -> int:
        """The number of tokens that the model knows."""

    @property
    @abc.abstractmethod
    def longest(self) -> int | None:
        """The most positions that a text may have; None where nothing bounds it."""


class SequenceToSequence(Decodes):
    """A model that turns a source (a text, sound, a picture) into a text. `start` reads the source's arrays
    (data.decoding.Decoding.source)."""

    @property
    @abc.abstractmethod
    def target_vocab(self) -> int:
        """The number of tokens that the model can produce."""


class HearsWindows(SequenceToSequence):
    """A model that turns a window of sound into a text (models/whisper). `start` reads `frames` [B, T, F], log-mel by Whisper's
    convention, and `frames_segments` [B, T]."""

    @property
    @abc.abstractmethod
    def window(self) -> tuple[int, int]:
        """The most frames of a window, and the numbers of a frame."""

    @property
    @abc.abstractmethod
    def longest(self) -> int:
        """The most tokens of a text, those that it is begun with included."""


class Writes(abc.ABC):
    """A model that turns a source into a text in a way of its own, not token by token (CTC, a transducer)."""

    @property
    @abc.abstractmethod
    def target_vocab(self) -> int:
        """The number of tokens that the model can produce."""

    @abc.abstractmethod
    def write(self, batch: Batch, beams: int, steps: int) -> jax.Array:
        """Returns the likeliest text of each row, int32 [B, steps] with 0 behind it, by so many hypotheses."""
