"""What a batch is made of: named arrays, the shape of an example's part and the logical name of each dimension."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Array:
    """An int32 array of a row: its shape, and the logical name of each dimension (None is never cut)."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]


def positions(length: int, *names: str) -> dict[str, Array]:
    return {name: Array((length,), ("length",)) for name in names}
