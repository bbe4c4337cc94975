"""Tables as lines of text."""

from trainers.text_table import markdown, text_table


def test_columns_are_as_wide_as_their_longest_cell():
    """Numbers are aligned to the right, and no line ends in spaces; a table without rows is its heading."""
    assert text_table(["name", "n", "note"], [["a", 10, "x"], ["longer", "7", ""]], {1}) == [
        "name     n  note",
        "a       10  x",
        "longer   7",
    ]
    assert text_table(["name", "n"], []) == ["name  n"]
    assert markdown(["a", "b"], [[1, "x"]]) == ["| a | b |", "| --- | --- |", "| 1 | x |"]
