"""Time of collectives on a torus of chips, and the links that they occupy.

A chip has two links along each dimension of the torus, one to each neighbour, with their bandwidth in either direction at once.
A collective takes the time of its bytes on the links that carry them, and a fixed time for each hop:

- along a ring both links of a chip carry data; a part of a dimension is a line, and a chip at its end has one link;
- an all-gather or a reduce-scatter uses rings along several dimensions at once, and an all-reduce is both in turn;
- in an all-to-all, half of the bytes cross the middle of a ring over its two cuts: n / 8 of each chip's bytes on every link;
- a permute's pairs are routed one dimension after the other, the shorter way round; the most loaded link decides;
- a sum over n slices is copied to each chip's host, 2 (n - 1) / n of it go over the network in each direction, as in a ring of
  hosts, and the result is copied back, one after the other; latencies of that network are not known and not in it.

Measured against published runs, see BENCHMARKS.md.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

Link = tuple[int, int]  # dimension of the torus and direction, 1 or -1: all links of that direction
NETWORK: Link = (-1, 1)  # the network between slices


@dataclasses.dataclass(frozen=True)
class Transfer:
    """Seconds that a transfer takes, and the links that it occupies meanwhile."""

    seconds: float
    links: frozenset[Link]


@dataclasses.dataclass(frozen=True)
class _Side:
    """A dimension along which the chips of a group differ: their number, whether they form a ring, and their mean spacing."""

    dim: int
    chips: int
    ring: bool
    spacing: float

    @property
    def width(self) -> float:
        """Number of links into a chip that carry the group's data; interleaved groups share links."""
        return (2 if self.ring else 1) / self.spacing


class Torus:
    """A slice of a pod.

    Args:
      dims: chips along each dimension.
      wrap: which dimensions are rings.
      link: bytes/s of a link in one direction.
      coordinates: coordinates of each device's chip, in the order of the mesh; those beyond the dimensions, which flat slices
        have, are ignored.
      hop: latency in seconds from a chip to its neighbour.
    """

    def __init__(
        self, dims: Sequence[int], wrap: Sequence[bool], link: float, coordinates: Sequence[Sequence[int]], hop: float = 1e-6
    ):
        self.dims, self.wrap, self.link, self.hop = tuple(dims), tuple(wrap), link, hop
        self.chips = np.array(coordinates)[:, : len(self.dims)]  # [devices, dimensions]

    def gather(self, group: Sequence[int], size: int, most: int = 3) -> Transfer:
        """Returns the transfer of an all-gather or a reduce-scatter along at most `most` dimensions.

        `size` is the number of bytes on each device after the gather, or before the scatter.
        """
        sides = sorted(self._sides(group), key=lambda side: -side.width)
        if not sides:
            return Transfer(0.0, frozenset())
        width = sum(side.width for side in sides[:most])
        hops = sum(side.chips / (2 if side.ring else 1) for side in sides)
        moved = size * (len(group) - 1) / len(group)
        return Transfer(moved / (width * self.link) + hops * self.hop, _links(sides))

    def all_reduce(self, group: Sequence[int], size: int, most: int = 3) -> Transfer:
        """Returns the transfer of an all-reduce of `size` bytes: a reduce-scatter, then an all-gather."""
        half = self.gather(group, size, most)
        return Transfer(2 * half.seconds, half.links)

    def all_to_all(self, group: Sequence[int], size: int) -> Transfer:
        """Returns the transfer of an all-to-all of `size` bytes a device; the longest dimension decides."""
        sides = self._sides(group)
        most = max((size * s.chips / (8 if s.ring else 4) * s.spacing for s in sides), default=0.0)
        return Transfer(most / self.link + sum(s.chips / 2 for s in sides) * self.hop, _links(sides))

    def permute(self, pairs: Sequence[Sequence[int]], size: int) -> Transfer:
        """Returns the transfer of `size` bytes from the first to the second device of each pair."""
        at, to = self.chips[np.array(pairs).T]  # [pairs, dimensions] each
        load = np.zeros((len(self.dims), 2, *self.dims))  # pairs over each chip's link: up, down
        distance = np.zeros(len(at), int)
        for dim, chips in enumerate(self.dims):
            delta = to[:, dim] - at[:, dim]
            up, down = (delta % chips, -delta % chips) if self.wrap[dim] else (delta.clip(0), (-delta).clip(0))
            short = np.minimum(up, down) if self.wrap[dim] else up + down
            share = np.where((up == down) & (up > 0), 0.5, 1.0)  # half a ring apart: half of the data each way
            for direction, hops in enumerate((up, down)):
                chip, left = at.copy(), np.where(hops == short, hops, 0)
                while left.any():
                    going = left > 0
                    np.add.at(load[dim, direction], tuple(chip[going].T), share[going])
                    chip[going, dim] = (chip[going, dim] + 1 - 2 * direction) % chips
                    left = left - going
            distance += short
            at[:, dim] = to[:, dim]
        links = frozenset(
            (dim, 1 - 2 * direction) for dim in range(len(self.dims)) for direction in (0, 1) if load[dim, direction].any()
        )
        return Transfer(float(load.max() * size / self.link + distance.max() * self.hop), links)

    def _sides(self, group: Sequence[int]) -> list[_Side]:
        sides = []
        for dim, places in enumerate(self.chips[list(group)].T):
            distinct = np.unique(places)
            chips, span = len(distinct), int(distinct[-1] - distinct[0]) + 1
            whole = chips == self.dims[dim]
            if chips > 1:
                sides.append(_Side(dim, chips, whole and self.wrap[dim], 1.0 if whole else span / chips))
        return sides


def between_slices(size: int, slices: int, network: float, host_link: float) -> Transfer:
    """Returns the transfer of a sum of `size` bytes of each chip over slices.

    Args:
      network, host_link: bytes/s of a chip's share of its host's network, and between a chip and its host, in one direction.
    """
    return Transfer(2 * size * (1 - 1 / slices) / network + 2 * size / host_link, frozenset({NETWORK}))


def _links(sides: Sequence[_Side]) -> frozenset[Link]:
    return frozenset((side.dim, direction) for side in sides for direction in (1, -1))
