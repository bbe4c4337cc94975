"""Pages of the reports: one HTML file each, with its pictures in it; and the command of those that need a trained model."""

import base64
import html
import io
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from configs.experiment import Experiment
from data.paths import write_whole
from models.sharding.layouts import ONE_DEVICE
from scripts import cli

COLORS = {"high": "#2f6f9f", "middle": "#5aa469", "low": "#d98032"}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } img { width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; } td, th { padding: .3rem .6rem; text-align: left;
border-bottom: 1px solid #ddd; vertical-align: top; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
p.note { color: #666; font-size: .9rem; }
"""
Part = tuple[str, str, str]
"""A part of a page: title, content as HTML, and a note below it; one without content is left out."""


class Html(str):
    """A text that is HTML already."""


def escaped(value: object) -> str:
    """Returns a value as HTML: whatever comes out of a run's folder is a text and no markup."""
    return value if isinstance(value, Html) else html.escape(encodable(value))


def encodable(value: object) -> str:
    """Returns a value as a text without halves of pairs, which JSON may hold and no file can."""
    return str(value).encode(errors="replace").decode()


def table(head: Sequence[object], rows: Iterable[Sequence[object]], numbers: Collection[int] = ()) -> Html:
    """Returns a table of texts; the columns of `numbers` are aligned to the right."""

    def cells(kind: str, values: Sequence[object]) -> str:
        opening = (f'<{kind} class="n">' if at in numbers else f"<{kind}>" for at in range(len(values)))
        return f"<tr>{''.join(f'{tag}{escaped(x)}</{kind}>' for tag, x in zip(opening, values, strict=True))}</tr>"

    return Html(f"<table>{cells('th', head)}{''.join(cells('td', row) for row in rows)}</table>")


def write(page: Path, title: str, heading: str, parts: Sequence[Part], *, style: str = "", before: str = "") -> Path:
    """Writes a page and returns its path.

    Args:
      style: beside that of all pages.
      before: content as HTML between the heading and the parts.
    """
    title, heading = encodable(title), encodable(heading)
    body = "".join(
        f"<h2>{part}</h2>{content}" + (f'<p class="note">{html.escape(note)}</p>' if note else "")
        for part, content, note in parts
        if content
    )
    write_whole(
        page,
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}{style}</style><h1>{html.escape(heading)}</h1>{before}{body}</html>\n",
    )
    return page


def picture(draw: Any, data: Any, size: tuple[float, float] = (9, 3.4)) -> str:
    """Returns an <img> of the figure that `draw(figure, data)` draws, of this size in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=130, layout="constrained")
    alt = draw(figure, data)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def of_model(doc: str | None, write_page: Callable[[Path, Experiment, Any], Path]) -> int:
    """Writes the page of a run that is named on the command line, and prints its path.

    Args:
      write_page: of the folder, the experiment and the trained weights.
    """
    parser = cli.parser(doc)
    parser.add_argument("workdir", type=cli.folder, help="a run's working folder")
    args = parser.parse_args()
    cli.use_devices(ONE_DEVICE)

    print(write_page(args.workdir, *cli.opened(args.workdir)))
    return 0
