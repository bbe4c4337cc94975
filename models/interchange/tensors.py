"""Maps our parameters to tensors in other libraries' files. NumPy only: mappings are data, which no accelerator is needed for.

Our layers are stacked, in one array with a leading axis "layers"; theirs are one tensor for each layer. An `Entry` maps one
tensor of theirs to the parameters of ours that it holds, in both directions. If the file is memory-mapped, reading a slice of
ours reads that slice of the file only: an entry works on views, until the copy into the result.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from models.errors import UserError, shortened

Shape = tuple[int, ...]
Index = tuple[slice, ...]  # a slice for each dimension, from the first; those left out are whole
Read = Callable[[str, Index], np.ndarray]  # a piece of one of our parameters
Fetch = Callable[[str], np.ndarray]  # a whole tensor of theirs; memory-mapped if possible


_MOST_NAMES = 1 << 17  # of tensors of one kind: the largest models have some 25,000


class InterchangeError(UserError):
    """A model that cannot be read from, or written to, another library's files; the message is one line that says why."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One of our parameters as a part of a tensor of theirs.

    Attributes:
      name: dotted name.
      shape: its shape in one layer.
      inputs: how many leading dimensions of a matrix are summed over in x @ W; 0 for a vector.

    Raises:
      InterchangeError: a size is below 0, as with -4 heads of -8 dimensions, whose product is that of 4 of 8.
    """

    name: str
    shape: Shape
    inputs: int = 0

    def __post_init__(self):
        if any(size < 0 for size in self.shape):
            raise InterchangeError(f"{self.name} would have the shape {list(self.shape)}: no size of config.json is below 0")

    @property
    def flat(self) -> Shape:
        """Returns the shape as a matrix [in, out], or as a vector [size]."""
        sides = (self.shape[: self.inputs], self.shape[self.inputs :])
        return tuple(math.prod(side) for side in sides) if self.inputs else (math.prod(self.shape),)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor of theirs, or one for each layer and each expert, and the parameters of ours that it holds.

    Attributes:
      theirs: its name, with `{layer}` in it where there is one for each layer, and `{expert}` where there is one for each expert.
      parts: the parameters that it holds, side by side along the output dimension: several for fused projections.
      layers: how many layers there are; 0 for a tensor outside the stack.
      first, every: the number of the first of these layers in their count, and of layers from one to the next.
      experts: how many experts a layer has; 0 for a tensor outside them.
      file: the shape of their tensor, where it has other dimensions than a matrix or vector; that of a number is ().
      order: its dimensions in the order of ours, inputs first; by default they are in it.
      transposed: a matrix is stored as [out, in], as in PyTorch.
      groups: into how many groups the outputs of every part are cut: the first group has the first of each part side by side.
      pairs: the number of heads in the output, in each of which the dimensions that rotary positions rotate together
        are neighbours; ours are half a head apart (see models.parts.attention.module.rotate). 0 leaves the order.
      turned: the leading dimensions of these heads that are rotated; 0 means all.
      scale: our numbers divided by theirs.
    """

    theirs: str
    parts: tuple[Part, ...]
    layers: int = 0
    transposed: bool = False
    pairs: int = 0
    first: int = 0
    every: int = 1
    experts: int = 0
    file: Shape | None = None
    order: tuple[int, ...] = ()
    groups: int = 1
    turned: int = 0
    scale: float = 1.0

    @property
    def stacked(self) -> Shape:
        """Returns the leading dimensions that our parameters have beside those of one tensor: layers, experts."""
        return tuple(n for n in (self.layers, self.experts) if n)

    @property
    def shape(self) -> Shape:
        """Returns the shape of their tensor."""
        return self._shape if self.file is None else self.file

    @property
    def _outputs(self) -> int:
        return sum(part.flat[-1] for part in self.parts)

    @property
    def _shape(self) -> Shape:
        *inputs, _ = self.parts[0].flat
        return (self._outputs, *inputs) if self.transposed else (*inputs, self._outputs)

    def names(self) -> list[str]:
        """Returns their names, one for each layer and, of a layer, one for each expert. Raises InterchangeError where there are
        more than a file can have."""
        if math.prod(self.stacked) > _MOST_NAMES:
            raise InterchangeError(f"{self.theirs}: {self.layers:,} layers of {self.experts:,} experts are no model's")
        layers = [self.first + i * self.every for i in range(max(self.layers, 1))]
        if not self.stacked:
            return [self.theirs]
        return [self.theirs.format(layer=i, expert=e) for i in layers for e in range(max(self.experts, 1))]

    def split(self, theirs: np.ndarray) -> list[np.ndarray]:
        """Returns our parameters of one layer from a tensor of theirs."""
        if self.scale != 1:
            theirs = (theirs.astype(np.float64) * self.scale).astype(np.float32)
        if self.file is not None:
            theirs = (theirs.transpose(self.order) if self.order else theirs).reshape(self._shape)
        if self.pairs:
            theirs = _paired(theirs, self.pairs, 2, self.turned)
        matrix = theirs.T if self.transposed else theirs
        ends = np.cumsum([part.flat[-1] // self.groups for part in self.parts])[:-1]
        pieces = np.split(matrix.reshape(*matrix.shape[:-1], self.groups, matrix.shape[-1] // self.groups), ends, -1)
        return [piece.reshape(part.shape) for piece, part in zip(pieces, self.parts, strict=True)]

    def join(self, ours: Iterable[np.ndarray]) -> np.ndarray:
        """Returns a tensor of theirs from our parameters of one layer: the inverse of `split`."""
        cut = [(*part.flat[:-1], self.groups, part.flat[-1] // self.groups) for part in self.parts]
        matrix = np.concatenate([x.reshape(shape) for x, shape in zip(ours, cut, strict=True)], -1)
        matrix = matrix.reshape(*self.parts[0].flat[:-1], self._outputs)
        if self.scale != 1:
            matrix = (matrix.astype(np.float64) / self.scale).astype(np.float32)
        theirs = matrix.T if self.transposed else matrix
        theirs = _paired(theirs, self.pairs, -1, self.turned) if self.pairs else theirs
        if self.file is None:
            return theirs
        if not self.order:
            return theirs.reshape(self.file)
        return theirs.reshape([self.file[i] for i in self.order]).transpose(np.argsort(self.order))


@dataclasses.dataclass(frozen=True)
class Conversion:
    """A tensor of theirs that a file holds in another form: as a part of another tensor, or packed.

    Attributes:
      sources: the tensors that the file has, by their names there.
      shape: the shape of the tensor that is made.
      convert: makes it of the sources, of which only what is read is loaded; it raises InterchangeError where they have no such
        form.
      packed: whether the sources are bytes.
    """

    sources: tuple[str, ...]
    shape: Shape
    convert: Callable[..., np.ndarray]
    packed: bool = False


def _paired(theirs: np.ndarray, heads: int, inner: int, turned: int) -> np.ndarray:
    """Reorders the rows [heads * size, ...] of each head, or its first `turned`: from neighbours to halves with inner=2, back
    with -1."""
    if turned:
        by_head = theirs.reshape(heads, -1, *theirs.shape[1:])
        first = by_head[:, :turned].reshape(-1, *theirs.shape[1:])
        first = _paired(first, heads, inner, 0).reshape(heads, turned, *theirs.shape[1:])
        return np.concatenate([first, by_head[:, turned:]], axis=1).reshape(theirs.shape)
    split = (heads, -1, 2) if inner == 2 else (heads, 2, -1)
    return theirs.reshape(*split, *theirs.shape[1:]).swapaxes(1, 2).reshape(theirs.shape)


def vector(theirs: str, *ours: tuple[str, Shape], **places: Any) -> Entry:
    """Returns the entry of a bias or a norm's scale, or of several of ours in one tensor; `places` as in Entry."""
    return Entry(theirs, tuple(Part(*part) for part in ours), **places)


def table(theirs: str, name: str, shape: Shape) -> Entry:
    """Returns the entry of an embedding table, which is the same in both."""
    return Entry(theirs, (Part(name, shape, 1),))


def matrix(theirs: str, *ours: tuple[str, Shape], inputs: int = 1, transposed: bool = True, **places: Any) -> Entry:
    """Returns the entry of a projection, or of several of ours in one tensor; `places` as in Entry."""
    return Entry(theirs, tuple(Part(*part, inputs) for part in ours), transposed=transposed, **places)


def convolution(theirs: str, ours: str, shape: tuple[int, int, int], *, bias: str) -> list[Entry]:
    """Returns the entries of a convolution [taps, inputs, outputs], stored as [outputs, inputs, taps], and of its biases; a
    `bias` of "" has none."""
    at = f"{theirs}{_between(theirs)}"
    filter_ = matrix(f"{at}weight", (ours, shape), inputs=2, transposed=False, file=shape[::-1], order=(2, 1, 0))
    return [filter_, *([vector(f"{at}bias", (bias, shape[2:]))] if bias else [])]


def norm(
    theirs: str, ours: str, size: int, *, names: tuple[str, str] = ("weight", "bias"), bias: bool = True, **places: Any
) -> list[Entry]:
    """Returns the entries of a layer norm; `names` are theirs of scale and bias."""
    parts = list(zip(names, ("scale", "bias"), strict=True))[: 1 + bias]
    return [vector(f"{theirs}{_between(theirs)}{t}", (f"{ours}.{o}", (size,)), **places) for t, o in parts]


def dense(
    theirs: str, ours: str, shape: tuple[int, ...], inputs: int = 1, *, bias: str | None = None, **places: Any
) -> list[Entry]:
    """Returns the entries of a projection and of its biases, by default named as it is with "_bias"; a `bias` of "" has none."""
    bias = f"{ours}_bias" if bias is None else bias
    weight = matrix(f"{theirs}.weight", (ours, shape), inputs=inputs, **places)
    return [weight, *([vector(f"{theirs}.bias", (bias, shape[inputs:]), **places)] if bias else [])]


def fused(
    theirs: str,
    *ours: tuple[str, Shape],
    inputs: int = 1,
    bias: bool = True,
    names: tuple[str, str] = ("weight", "bias"),
    **places: Any,
) -> list[Entry]:
    """Returns the entries of projections that are one tensor of theirs, and of their biases; `names` are theirs of both."""
    weight = matrix(f"{theirs}{_between(theirs)}{names[0]}", *ours, inputs=inputs, **places)
    biases = [(f"{name}_bias", shape[inputs:]) for name, shape in ours]
    return [weight, *([vector(f"{theirs}{_between(theirs)}{names[1]}", *biases, **places)] if bias else [])]


def _between(theirs: str) -> str:
    """Returns what stands between the parts of a name."""
    return "/" if "/" in theirs else "."


def as_linen(entries: Iterable[Entry], *, joined: bool) -> list[Entry]:
    """Returns entries under the last names and in the layout that Flax Linen's modules have: a kernel is [in, out].

    Args:
      joined: several dimensions, as heads and a head's, are one; otherwise a kernel has the dimensions of ours.
    """

    def of(e: Entry) -> Entry:
        kernel = e.parts[0].inputs > 0
        theirs = f"{e.theirs.removesuffix('.weight')}.{'kernel' if kernel else 'scale'}"
        shape = e.parts[0].shape if kernel and not joined else None
        return dataclasses.replace(e, theirs=theirs, transposed=False, file=shape)

    return [of(e) if e.theirs.endswith(".weight") else e for e in entries]


def without_prefix(entries: Iterable[Entry], prefix: str) -> list[Entry]:
    """Returns entries whose tensors have names without a prefix."""
    return [dataclasses.replace(entry, theirs=entry.theirs.removeprefix(prefix)) for entry in entries]


def shapes(entries: Iterable[Entry]) -> dict[str, Shape]:
    """Returns the shapes of our parameters, stacked, by name."""
    return {part.name: (*e.stacked, *part.shape) for e in entries for part in e.parts}


def their_shapes(entries: Iterable[Entry]) -> dict[str, Shape]:
    """Returns the shapes of their tensors by name, in the order in which `written` yields them."""
    return {name: e.shape for e in entries for name in e.names()}


def reader(entries: Iterable[Entry], fetch: Fetch, source: object) -> Read:
    """Returns a function that reads pieces of our parameters from their tensors, one at a time and only of the layers needed.

    Args:
      source: the file or folder, for errors; a piece with NaN or infinite numbers raises InterchangeError.
    """
    holders = {part.name: (e, i) for e in entries for i, part in enumerate(e.parts)}

    def piece_of(entry: Entry, theirs: str, i: int, index: Index) -> np.ndarray:
        piece = entry.split(fetch(theirs))[i][index]
        check_finite(piece, f"{source}: {theirs}")
        return piece

    def read(name: str, index: Index = ()) -> np.ndarray:
        entry, i = holders[name]
        if not entry.stacked:
            return piece_of(entry, entry.theirs, i, index)
        axes = len(entry.stacked)
        chosen = np.array(entry.names(), object).reshape(entry.stacked)[tuple(index[:axes])]
        pieces = (piece_of(entry, theirs, i, index[axes:]) for theirs in chosen.flat)
        first = next(pieces)
        result = np.empty((chosen.size, *first.shape), first.dtype)
        result[0] = first
        for at, piece in enumerate(pieces, 1):
            # Layers may be stored in several precisions; float32 holds the numbers of all smaller ones.
            if piece.dtype != result.dtype:
                wide = np.promote_types(result.dtype, np.float32)
                result = result.astype(np.promote_types(wide, piece.dtype), copy=False)
            result[at] = piece
        return result.reshape(*chosen.shape, *first.shape)

    return read


def written(entries: Iterable[Entry], read: Read) -> Iterator[tuple[str, np.ndarray]]:
    """Yields their tensors, made from pieces of our parameters, one at a time."""
    for e in entries:
        for place, theirs in zip(np.ndindex(e.stacked), e.names(), strict=True):
            index = tuple(slice(i, i + 1) for i in place)
            yield theirs, e.join([read(part.name, index).reshape(part.shape) for part in e.parts])


_AT_ONCE = 1 << 18  # numbers of a memory-mapped tensor that are read together


def _rows(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields the same rows of arrays of one shape, a quarter of a million numbers at a time."""
    arrays = tuple(map(np.atleast_1d, arrays))
    step = max(1, _AT_ONCE // max(1, math.prod(arrays[0].shape[1:])))
    for start in range(0, len(arrays[0]), step):
        yield tuple(x[start : start + step] for x in arrays)


def check_finite(x: np.ndarray, name: str) -> None:
    """Raises InterchangeError where a number of a tensor, or of a piece of it, is NaN or infinite."""
    if not all(np.isfinite(rows).all() for (rows,) in _rows(x)):
        raise InterchangeError(f"{name} holds NaN or infinite numbers")


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Returns whether two tensors hold the same numbers in any precision; memory-mapped ones are read a piece at a time."""
    return a.shape == b.shape and all(np.array_equal(x, y) for x, y in _rows(a, b))


def problems(want: Mapping[str, Shape], actual: Mapping[str, Shape], most: int = 8) -> str:
    """Describes how the tensors that a file has differ from those wanted, by name, with shapes; "" if they do not."""

    def describe(name: str) -> str:
        label = shortened(name)
        expected, shape = (shortened(str(list(side.get(name, ())))) for side in (want, actual))
        if name not in actual:
            return f"{label} is missing, expected {expected}"
        if name not in want:
            return f"{label} {shape} was not expected"
        return f"{label} is {shape}, expected {expected}"

    names = sorted(name for name in want.keys() | actual.keys() if want.get(name) != actual.get(name))
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return "; ".join([*map(describe, names[:most]), *more])
