"""Ways to cut the toy model over a mesh."""

from models.sharding.layout import Layout, rules
from models.sharding.layouts import Recipe, data_parallel, table


def spatial(x: int, y: int) -> Layout:
    """Grids over x, and their rows over y: convolutions exchange the rows at the edges."""
    return Layout(name="spatial", mesh=(("data", x), ("rows", y)), rules=rules(batch="data", height="rows"))


LAYOUTS = table(Recipe(data_parallel), Recipe(spatial, ("data", "rows")))
