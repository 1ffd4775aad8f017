"""A report that is one file: HTML with the pictures in it, no script, and nothing that is fetched from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Section", "html_page"]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 64rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .2rem .8rem; border-bottom: 1px solid #ddd; text-align: right }
td:first-child, th:first-child { text-align: left }
svg { max-width: 100%; height: auto }
"""


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes
    ----------
    title, text : str
        Its headline, and a paragraph below it; plain text.
    table : sequence of rows of str
        The first row names the columns; may be empty.
    figure : matplotlib.figure.Figure, optional
        Drawn below.
    """

    title: str
    text: str = ""
    table: Sequence[Sequence[str]] = ()
    figure: Figure | None = None


def html_page(title: str, sections: Sequence[Section]) -> str:
    """Return a whole HTML page.

    Parameters
    ----------
    title : str
        Plain text; names of traces are a stranger's, so everything is escaped.
    sections : sequence of Section

    Returns
    -------
    str

    Examples
    --------
    >>> page = html_page("a < b", [Section("Numbers", table=[["system", "batch"], ["paged-16", "37"]])])
    >>> "<h1>a &lt; b</h1>" in page, "<td>paged-16</td>" in page
    (True, True)
    """
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>",
    ]
    for number, section in enumerate(sections):
        parts.append(f"<h2>{escape(section.title)}</h2>")
        if section.text:
            parts.append(f"<p>{escape(section.text)}</p>")
        if section.table:
            parts.append(_table(section.table))
        if section.figure is not None:
            parts.append(_inline(section.figure, f"f{number}-"))
    return "\n".join([*parts, "</body>\n</html>\n"])


def _table(rows: Sequence[Sequence[str]]) -> str:
    cells = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows[1:]]
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    return "\n".join(["<table>", f"<tr>{head}</tr>", *(f"<tr>{row}</tr>" for row in cells), "</table>"])


def _inline(figure: Figure, prefix: str) -> str:
    """The figure as an <svg> element whose ids begin with `prefix`, since those of a page must differ."""
    import matplotlib as mpl

    file = StringIO()
    with mpl.rc_context({"svg.hashsalt": "pagedcache", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]  # without the XML declaration and the document type
    return re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}", svg)
