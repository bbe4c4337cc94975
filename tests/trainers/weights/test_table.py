"""The table of released models in docs/WEIGHTS.md."""

from tests.helpers import weights_table


def test_the_table_says_what_is_tested():
    """It has a line for each model_type that is read, whose models are compared with others' outputs."""
    table = weights_table.lines()
    assert "\n".join(table) + "\n\n" in weights_table.PAGE.read_text()
    assert all(" model" in line for line in table[2:])
