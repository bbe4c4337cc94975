"""Ways to cut the linear classifier over a mesh."""

from models.sharding.layouts import data_parallel, table

LAYOUTS = table(data_parallel)
