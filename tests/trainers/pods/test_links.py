"""Times of collectives on a small torus, 4 x 4 x 2: x and y are rings, z is a line. A link carries a byte in a nanosecond."""

import itertools

import pytest

from trainers.pods.links import Torus, between_slices
from trainers.runtime.chips import parse_slice

US = 1e-6  # also what a hop takes
KB = 1000
DIMS = (4, 4, 2)
BOX = Torus(DIMS, (True, True, False), 1e9, list(itertools.product(*map(range, DIMS))))  # device = 8 x + 2 y + z
X, Y, Z = (0, 8, 16, 24), (0, 2, 4, 6), (0, 1)
XY = tuple(range(0, 32, 2))


@pytest.mark.parametrize(
    ("group", "most", "us", "dims"),
    [
        (X, 3, 6 / 2 + 2, {0}),  # 3/4 of 8 kB over two links; halfway round a ring of 4
        (Z, 3, 4 / 1 + 2, {2}),  # 1/2 of 8 kB over the end's one link
        ((0, 8), 3, 4 / 1 + 2, {0}),  # half a ring is a line
        ((0, 16), 3, 4 * 1.5 + 2, {0}),  # two of three: other groups use the links between
        (XY, 3, 7.5 / 4 + 4, {0, 1}),
        (XY, 1, 7.5 / 2 + 4, {0, 1}),  # an algorithm that goes along one dimension at a time
        ((5,), 3, 0, set()),
    ],
)
def test_gathers(group, most, us, dims):
    """A gather takes all bytes but its own over one link along a line, two along a ring, and more along several dimensions."""
    result = BOX.gather(group, 8 * KB, most)
    assert result.seconds == pytest.approx(us * US)
    assert result.links == {(dim, way) for dim in dims for way in (1, -1)}


def test_an_all_reduce_is_two_gathers():
    """An all-reduce scatters and gathers."""
    assert BOX.all_reduce(X, 8 * KB).seconds == pytest.approx(10 * US)
    assert BOX.all_reduce(XY, 8 * KB, most=1).seconds == pytest.approx(2 * 7.75 * US)


@pytest.mark.parametrize(
    ("group", "us"), [(X, 4 + 2), (Z, 4 + 1), ((0, 8), 4 + 1), ((0, 1, 8, 9, 16, 17, 24, 25), 4 + 3), (tuple(range(32)), 4 + 5)]
)
def test_exchanges(group, us):
    """An all-to-all takes n / 8 of a device's bytes over a ring of n, n / 4 over a line, and as long as its longest dimension."""
    assert BOX.all_to_all(group, 8 * KB).seconds == pytest.approx(us * US)


@pytest.mark.parametrize(("slices", "us"), [(2, 8 + 16), (4, 12 + 16)])
def test_a_sum_over_slices(slices, us):
    """A chip of two slices sends 8 kB of 8, twice a half, of four 12, twice three quarters, and all go to the host and back; no
    link of the torus is occupied."""
    result = between_slices(8 * KB, slices, network=1e9, host_link=1e9)
    assert result.seconds == pytest.approx(us * US)
    assert not result.links.intersection(BOX.all_reduce(tuple(range(32)), KB).links)


def test_an_exchange_along_a_longer_ring_takes_longer():
    """Twice as long a ring takes twice the time for the same bytes on each device."""
    ring = Torus((16,), (True,), 1e9, [(i,) for i in range(16)], hop=0.0)
    assert ring.all_to_all(range(16), 8 * KB).seconds == pytest.approx(16 * US)


RING = list(zip(X, (*X[1:], X[0]), strict=True))


@pytest.mark.parametrize(
    ("pairs", "us", "links"),
    [
        (RING, 8 + 1, {(0, 1)}),
        ([(b, a) for a, b in RING], 8 + 1, {(0, -1)}),
        ([(0, 16), (8, 24), (16, 0), (24, 8)], 8 + 2, {(0, 1), (0, -1)}),  # half of the bytes either way, two such a link
        ([(0, 16)], 4 + 2, {(0, 1), (0, -1)}),
        ([(0, 10)], 8 + 2, {(0, 1), (1, 1)}),  # one on, in x and in y
        ([(0, 24)], 8 + 1, {(0, -1)}),  # the shorter way
        ([(0, 1), (1, 0)], 8 + 1, {(2, 1), (2, -1)}),
        ([(0, 0), (1, 1)], 0, set()),
    ],
)
def test_permutes(pairs, us, links):
    """A permute goes the shorter way, both ways where they are as long, and takes as long as its most loaded link."""
    result = BOX.permute(pairs, 8 * KB)
    assert result.seconds == pytest.approx(us * US) and result.links == links


def test_a_line_has_no_way_round():
    """On a line the pair that closes a ring goes back all the way; pairs that share a link take turns."""
    line = Torus((5,), (False,), 1e9, [(i,) for i in range(5)])
    closed = line.permute([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)], 8 * KB)
    assert closed.seconds == pytest.approx((8 + 4) * US) and closed.links == {(0, 1), (0, -1)}
    assert line.permute([(1, 0), (2, 0)], 8 * KB).seconds == pytest.approx((16 + 2) * US)


def test_a_flat_slice_has_coordinates_to_spare():
    """Coordinates beyond the torus's dimensions change nothing."""
    flat = Torus((4, 4), (True, True), 1e9, [(x, y, 0) for x in range(4) for y in range(4)])
    assert flat.gather(range(16), 8 * KB).seconds == pytest.approx((7.5 / 4 + 4) * US)


# A line of four chips of two devices: device = 2 chip + its number on the chip.
PAIRS = Torus((4,), (False,), 1e9, [(i // 2,) for i in range(8)], hop=0.0)


@pytest.mark.parametrize(
    ("group", "us", "dims"),
    [
        (range(8), 6, {0, 1}),  # 3/4 of 8 kB come to a chip once, and half goes on to its other device meanwhile
        ((0, 2, 4, 6), 12, {0}),  # the other devices gather as much over the same links
        ((0, 1), 4 / 6, {1}),  # within a chip six times as fast
    ],
)
def test_devices_of_a_chip_share_its_links(group, us, dims):
    result = PAIRS.gather(group, 8 * KB)
    assert result.seconds == pytest.approx(us * US)
    assert result.links == {(dim, way) for dim in dims for way in (1, -1)}


def test_devices_of_a_chip_exchange_over_the_same_links():
    """Four chips in a line, two devices each: 8 kB of each device, half of which goes through the middle of the line."""
    assert PAIRS.all_to_all(range(8), 8 * KB).seconds == pytest.approx(16 * US)
    assert PAIRS.all_to_all((0, 1), 8 * KB).seconds == pytest.approx(4 / 6 * US)
    assert PAIRS.permute([(i, (i + 2) % 8) for i in range(4)], 8 * KB).seconds == pytest.approx(16 * US)
    assert PAIRS.permute([(0, 1), (1, 0)], 8 * KB).seconds == pytest.approx(8 / 6 * US)


def test_a_gather_on_tpu7x_takes_as_long_as_measured():
    """A gather of 256 MiB on 2 x 2 chips, by one device of each: both links of a chip bring 178.8 GB/s, for both of its devices
    (tpu-recipes, microbenchmarks/ironwood/collectives/all_gather.md)."""
    pod = parse_slice("tpu7x:2x2x1")
    torus = Torus(pod.dims, pod.wrap, pod.chip.link, [(x, y, 0) for x in range(2) for y in range(2) for _ in range(2)])
    assert torus.gather((0, 2, 4, 6), 2**28).seconds == pytest.approx(2 * 0.75 * 2**28 / 178.8e9, rel=0.01)
