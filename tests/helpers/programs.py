"""Small programs, and a slice of a made-up pod on which their times are round."""

import dataclasses
import itertools

from trainers.hlo.parsing import Program, parse
from trainers.pods.price import Price, price
from trainers.runtime.chips import Chip, Slice

US = 1e-6


class _Toy(Chip):
    """Its sides of 4 are rings, whatever the others are."""

    def wraps(self, dims: tuple[int, ...]) -> tuple[bool, ...]:
        return tuple(d % 4 == 0 for d in dims)


# A cycle and a byte over a link take a nanosecond, a byte over the network ten, a hop a microsecond; a microsecond has 10 kB of
# memory, and products of 1 MFLOP.
CHIP = _Toy(
    "toy",
    peak=1e12,
    clock=1e9,
    memory=1e9,
    bandwidth=1e10,
    link=1e9,
    host_link=1e9,
    host_memory=1e9,
    network=1e8,
    torus=3,
    config="",
    options={},
)
SLICE = Slice(CHIP, (4, 4, 2))
MESH = {"x": 4, "y": 4, "z": 2}  # its axes are the torus's; z is no ring
X, Y, Z = "[8,4]<=[4,8]T(1,0)", "[8,4]<=[4,4,2]T(0,2,1)", "[16,2]<=[32]"
XY = "[2,16]<=[16,2]T(1,0)"


def program(*lines: str, before: str = "") -> Program:
    """A program whose entry computation takes %x of f32[500] (2 kB), and then has these lines."""
    body = "\n  ".join(["%x = f32[500]{0} parameter(0)", *lines])
    return parse(f"HloModule test\n\n{before}\nENTRY %main (x: f32[500]) -> f32[500] {{\n  {body}\n}}\n")


def cycles(n: int) -> str:
    """The compiler's estimate, as the end of an instruction."""
    return f', backend_config={{"window_config":{{"estimated_cycles":"{n}","iteration_bounds":["1"]}}}}'


def vector(name: str, us: float) -> str:
    """An instruction that computes for so many microseconds."""
    return f"%{name} = f32[500]{{0}} copy(%x){cycles(round(1000 * us))}"


def algorithm(text: str) -> str:
    return f', backend_config={{"collective_algorithm_config":{{{text}}}}}'


def priced(*lines: str, before: str = "", **kwargs) -> Price:
    """The price of such a program; its parts must add up."""
    return price_of(program(*lines, before=before), **kwargs)


def price_of(p: Program, slices: int = 1, **kwargs) -> Price:
    """The price of a program on the slice; on several, it is the program of each."""
    mesh = ({"slice": slices} if slices > 1 else {}) | MESH
    places = list(itertools.product(*map(range, SLICE.dims))) * slices
    pod = dataclasses.replace(SLICE, slices=slices)
    cost = price(dataclasses.replace(p, devices=len(places) // slices), pod, places, mesh, **kwargs)
    assert abs(sum(cost.exposed.values()) - cost.step_s) < 1e-12
    others = sum(cost.exposed[kind] for kind in ("matrix", "vector", "kernel", "dma", "host", "unpriced"))
    assert abs(others + cost.exposed_s - cost.step_s) < 1e-12
    return cost
