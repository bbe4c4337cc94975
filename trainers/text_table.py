"""Tables as lines of text."""

from collections.abc import Collection, Iterable, Sequence


def text_table(head: Sequence[object], rows: Iterable[Sequence[object]], numbers: Collection[int] = ()) -> list[str]:
    """Returns a heading and rows, each column as wide as its longest cell; the columns of `numbers` are aligned to the right."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = [">" if at in numbers else "<" for at in range(len(widths))]
    return ["  ".join(f"{x:{side}{n}}" for x, side, n in zip(row, sides, widths, strict=True)).rstrip() for row in cells]


def markdown(head: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """Returns a heading and rows in Markdown."""
    return [f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)]
