"""Ways to cut the toy model over a mesh."""

from models.sharding.layout import rules
from models.sharding.layouts import Recipe, data_parallel, table

spatial = Recipe("spatial", rules(batch="data", height="rows"), ("data", "rows"))
"""Grids over x, and their rows over y: convolutions exchange the rows at the edges."""

LAYOUTS = table(data_parallel, spatial)
