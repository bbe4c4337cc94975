"""Ways to cut HSTU over a mesh: the table of items by the rules of its lookups (models/dlrm/lookup.py), the tower by its own."""

from models.dlrm.layouts import COLUMNS, ROWS
from models.sharding.layout import rules
from models.sharding.layouts import ANY, Recipe, also, data_parallel, table
from models.sharding.layouts import fully_sharded as sharded
from models.sharding.layouts import tensor_parallel as tensor

mixed = Recipe("mixed", data_parallel.rules, largest=1, components=(("tables", ROWS),))
"""Cuts the batch, and the table's rows, over all devices; each holds the whole tower."""

column_wise = Recipe("column_wise", data_parallel.rules, largest=1, components=(("tables", COLUMNS),))
"""Cuts the batch, and the table's columns, over all devices; each holds the whole tower."""

fully_sharded = Recipe("fully_sharded", sharded.rules, largest=ANY, components=(("tables", also(ROWS, embed=None)),))
"""Cuts the batch, and the table's rows, over all devices, and every matrix of the tower in both its dimensions, to be gathered
where it is used."""

tensor_parallel = Recipe(
    "tensor_parallel", tensor.rules, largest=8, components=(("tables", rules(vocab="data", act_vocab="data")),)
)
"""Cuts the batch, and the table's rows, over x, and the tower's heads over y."""

LAYOUTS = table(data_parallel, mixed, column_wise, fully_sharded, tensor_parallel)
