"""Pages of reports: one HTML file each, with its pictures inside."""

import base64
import html
import io
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from data.paths import write_whole

COLORS = {"high": "#2f6f9f", "middle": "#5aa469", "low": "#d98032"}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } img { width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; } td, th { padding: .3rem .6rem; text-align: left;
border-bottom: 1px solid #ddd; vertical-align: top; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
p.note { color: #666; font-size: .9rem; } .bad { color: #a33; }
dl { display: flex; flex-wrap: wrap; gap: .4rem 2.2rem; } dt { color: #666; font-size: .85rem; }
dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.bar { display: flex; height: 1.4rem; margin: .6rem 0; } .bar span { display: block; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; } .card { width: 210px; font-size: 13px; overflow-wrap: anywhere; }
.card b { color: #666; } .card img { width: 96px; height: 96px; }
"""
Part = tuple[str, str, str]
"""A part of a page: title, content as HTML, and a note below it; one without content is left out."""


class Html(str):
    """A text that is HTML already."""


def escaped(value: object) -> str:
    """Returns a value as HTML; whatever comes out of a run's folder is text and no markup."""
    return value if isinstance(value, Html) else html.escape(encodable(value))


def encodable(value: object) -> str:
    """Returns a value as text without lone surrogates, which JSON may hold and no file can."""
    return str(value).encode(errors="replace").decode()


def table(head: Sequence[object], rows: Iterable[Sequence[object]], numbers: Collection[int] = ()) -> Html:
    """Returns a table of texts, in any writing direction; the columns of `numbers` are aligned to the right."""

    def cells(tag: str, values: Sequence[object]) -> str:
        opening = (f'<{tag} class="n">' if at in numbers else f'<{tag} dir="auto">' for at in range(len(values)))
        return f"<tr>{''.join(f'{begin}{escaped(x)}</{tag}>' for begin, x in zip(opening, values, strict=True))}</tr>"

    return Html(f"<table>{cells('th', head)}{''.join(cells('td', row) for row in rows)}</table>")


def write(page: Path, title: str, heading: str, parts: Sequence[Part], *, before: str = "") -> Path:
    """Writes a page and returns its path.

    Args:
      before: HTML between the heading and the parts.
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
        f"<style>{STYLE}</style><h1>{html.escape(heading)}</h1>{before}{body}</html>\n",
    )
    return page


def picture(draw: Any, data: Any, size: tuple[float, float] = (9, 3.4)) -> str:
    """Returns an <img> of the figure that `draw(figure, data)` draws, of this size in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=130, layout="constrained")
    alt = draw(figure, data)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return f'<img alt="{html.escape(alt)}" src="{png_data(buffer)}">'


def png_data(buffer: io.BytesIO) -> str:
    """Returns a PNG file as an address that an <img> loads from the page itself."""
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
