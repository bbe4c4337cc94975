"""Ways to cut DLRM over a mesh: dense parts by examples, each group of tables in a way of its own."""

from models.sharding.layout import rules
from models.sharding.layouts import BOTH, Recipe, data_parallel, table

ROWS = rules(vocab=BOTH, act_vocab=BOTH)
COLUMNS = rules(embed=BOTH, act_embed=BOTH)
TABLES = rules(bins=BOTH, act_bins=BOTH)

row_wise = Recipe("row_wise", data_parallel.rules, largest=1, components=(("tables", ROWS),))
"""Cuts the batch and every table's rows over all devices: ids go to the devices of their rows, and vectors back."""

column_wise = Recipe("column_wise", data_parallel.rules, largest=1, components=(("tables", COLUMNS),))
"""Cuts the batch and every table's columns over all devices: each sums its elements for the whole batch."""

table_wise = Recipe("table_wise", data_parallel.rules, largest=1, components=(("tables", TABLES),))
"""Cuts the batch, and puts each table on one device, which sums its vectors for the whole batch."""

mixed = Recipe("mixed", data_parallel.rules, largest=1, components=(("tables.large", ROWS), ("tables.middle", COLUMNS)))
"""Cuts the batch, large tables by rows and middle ones by columns; small ones are whole on every device."""

mixed_tables = Recipe(
    "mixed_tables", data_parallel.rules, largest=1, components=(("tables.large", ROWS), ("tables.middle", TABLES))
)
"""Cuts as `mixed`, with each middle table on one device."""

LAYOUTS = table(data_parallel, row_wise, column_wise, table_wise, mixed, mixed_tables)
