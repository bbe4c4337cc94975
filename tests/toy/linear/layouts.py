"""Ways to cut the linear classifier over a mesh."""

from models.sharding.layouts import Recipe, data_parallel, table

LAYOUTS = table(Recipe(data_parallel))
