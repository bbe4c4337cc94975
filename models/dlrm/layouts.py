"""Ways to cut DLRM over a mesh: dense parts by examples, each group of tables in a way of its own."""

from models.sharding.layout import rules
from models.sharding.layouts import ANY, BOTH, Recipe, data_parallel, table

ROWS = rules(vocab=BOTH, act_vocab=BOTH)
COLUMNS = rules(embed=BOTH, act_embed=BOTH)
TABLES = rules(bins=BOTH, act_bins=BOTH)

row_wise = Recipe("row_wise", data_parallel.rules, largest=1, components=(("tables", ROWS),))
"""Cuts the batch and every table's rows over all devices: ids go to the devices of their rows, and vectors back."""

column_wise = Recipe("column_wise", data_parallel.rules, largest=1, components=(("tables", COLUMNS),))
"""Cuts the batch and every table's columns over all devices: each sums its elements for the whole batch."""

table_wise = Recipe("table_wise", data_parallel.rules, largest=1, components=(("tables", TABLES),))
"""Cuts the batch, and puts each table on one device, which sums its vectors for the whole batch."""

_LARGE = ("tables.large", ROWS)

mixed = Recipe(
    "mixed", data_parallel.rules, largest=ANY, components=(_LARGE, ("tables.middle", rules(embed="model", act_embed="model")))
)
"""Cuts the batch and large tables' rows over all devices, middle tables' columns over y; small tables are whole everywhere."""

mixed_tables = Recipe(
    "mixed_tables",
    data_parallel.rules,
    largest=ANY,
    components=(_LARGE, ("tables.middle", rules(bins="model", act_bins="model"))),
)
"""Cuts as `mixed`, but puts each middle table on one device along y."""

LAYOUTS = table(data_parallel, row_wise, column_wise, table_wise, mixed, mixed_tables)
