"""Time of collectives on a torus of chips, and the links that they occupy.

A chip has two links along each dimension of the torus, one to each neighbour, with their bandwidth in either direction at once.
A collective takes the time of its bytes on the links that carry them, and a fixed time for each hop:

- along a ring both links of a chip carry data; a part of a dimension is a line, and a chip at its end has one link;
- an all-gather or a reduce-scatter uses rings along several dimensions at once, and an all-reduce is both in turn;
- in an all-to-all, half of the bytes cross the middle of a ring over its two cuts: n / 8 of each chip's bytes on every link;
- a permute's pairs are routed one dimension after the other, the shorter way round; the most loaded link decides;
- a sum over n slices is copied to each chip's host, 2 (n - 1) / n of it go over the network in each direction, as in a ring of
  hosts, and the result is copied back, one after the other; latencies of that network are not known and not in it.

The devices of a chip share its links: what both take part in travels to the chip once, what each does with its like at the same
time travels twice. Between them is a connection six times as fast as a link (Google Cloud's page of TPU7x).

Measured against published runs, see BENCHMARKS.md.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

WITHIN = 6.0  # bandwidth between the devices of a chip, as a multiple of a link's

Link = tuple[int, int]  # dimension of the torus, or one more within chips, and direction, 1 or -1: all links of that direction
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
      coordinates: coordinates of each device's chip, in the order of the mesh, equal for devices of one chip; those beyond the
        dimensions, which flat slices have, are ignored.
      slices: how many slices the devices are of, one after the other: each has links of its own, and does what the others do.
      hop: latency in seconds from a chip to its neighbour.
    """

    def __init__(
        self,
        dims: Sequence[int],
        wrap: Sequence[bool],
        link: float,
        coordinates: Sequence[Sequence[int]],
        slices: int = 1,
        hop: float = 1e-6,
    ):
        self.dims, self.wrap, self.link, self.hop = tuple(dims), tuple(wrap), link, hop
        self.chips = np.array(coordinates)[: len(coordinates) // slices, : len(self.dims)]  # [devices, dimensions], of one slice
        self.per_chip = max(1, len(self.chips) // math.prod(self.dims))  # devices

    def gather(self, group: Sequence[int], size: int, most: int = 3) -> Transfer:
        """Returns the transfer of an all-gather or a reduce-scatter along at most `most` dimensions.

        `size` is the number of bytes on each device after the gather, or before the scatter.
        """
        sides = sorted(self._sides(group), key=lambda side: -side.width)
        chips = math.prod(side.chips for side in sides)
        on_chip = len(group) // chips
        width = sum(side.width for side in sides[:most]) * on_chip / self.per_chip
        hops = sum(side.chips / (2 if side.ring else 1) for side in sides)
        between = size * (chips - 1) / chips / (width * self.link) if sides else 0.0
        return Transfer(max(between + hops * self.hop, self._within(size, on_chip)), self._links(sides, on_chip))

    def all_reduce(self, group: Sequence[int], size: int, most: int = 3) -> Transfer:
        """Returns the transfer of an all-reduce of `size` bytes: a reduce-scatter, then an all-gather."""
        half = self.gather(group, size, most)
        return Transfer(2 * half.seconds, half.links)

    def all_to_all(self, group: Sequence[int], size: int) -> Transfer:
        """Returns the transfer of an all-to-all of `size` bytes a device; the longest dimension decides."""
        sides = self._sides(group)
        on_chip = len(group) // math.prod(side.chips for side in sides)
        most = max((self.per_chip * size * s.chips / (8 if s.ring else 4) * s.spacing for s in sides), default=0.0)
        between = most / self.link + sum(s.chips / 2 for s in sides) * self.hop
        return Transfer(max(between, self._within(size, on_chip)), self._links(sides, on_chip))

    def permute(self, pairs: Sequence[Sequence[int]], size: int) -> Transfer:
        """Returns the transfer of `size` bytes from the first to the second device of each pair."""
        pairs = [pair for pair in pairs if max(pair) < len(self.chips)]
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
        stays = (distance == 0) & (np.diff(np.array(pairs))[:, 0] != 0)  # from one device of a chip to another
        if stays.any():
            links |= self._links([], self.per_chip)
        within = size / (WITHIN * self.link) if stays.any() else 0.0
        return Transfer(max(float(load.max() * size / self.link + distance.max() * self.hop), within), links)

    def _sides(self, group: Sequence[int]) -> list[_Side]:
        sides = []
        for dim, places in enumerate(self.chips[list(group)].T):
            distinct = np.unique(places)
            chips, span = len(distinct), int(distinct[-1] - distinct[0]) + 1
            whole = chips == self.dims[dim]
            if chips > 1:
                sides.append(_Side(dim, chips, whole and self.wrap[dim], 1.0 if whole else span / chips))
        return sides

    def _within(self, size: int, on_chip: int) -> float:
        """Returns the seconds in which the devices that a group has on each chip get each other's part of `size` bytes."""
        return size * (on_chip - 1) / on_chip / (WITHIN * self.link)

    def _links(self, sides: Sequence[_Side], on_chip: int) -> frozenset[Link]:
        dims = [side.dim for side in sides] + [len(self.dims)] * (on_chip > 1)
        return frozenset((dim, direction) for dim in dims for direction in (1, -1))


def between_slices(size: int, slices: int, network: float, host_link: float) -> Transfer:
    """Returns the transfer of a sum of `size` bytes of each device over slices.

    Args:
      network, host_link: bytes/s of a device's share of its host's network, and between a device and its host, in one direction.
    """
    return Transfer(2 * size * (1 - 1 / slices) / network + 2 * size / host_link, frozenset({NETWORK}))
