"""Worked examples and sentences of lessons as HTML."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence

from anyformer_course.table import PAGE_LIMIT, Table, is_folded, is_numeric, number


def example_html(says: str, tables: Sequence[Table], svg: str) -> str:
    """Return the sentence, the picture and the tables for a notebook or a page without other files."""
    parts = [f"<p><strong>{html.escape(says)}</strong></p>"]
    url = "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    alt = html.escape(says, quote=True)
    parts.append(f'<p><img alt="{alt}" src="{url}" style="max-width: 100%; background: white"></p>')
    for i, table in enumerate(tables):
        opened = "" if is_folded(table, i) else " open"
        summary = f"<summary>{html.escape(table.title)}</summary>"
        parts.append(f"<details{opened}>{summary}{table_html(table)}</details>")
    return "\n".join(parts)


def table_html(table: Table) -> str:
    aligned = [' style="text-align: right"' if is_numeric(table, i) else "" for i in range(len(table.columns))]
    head = "".join(f"<th{style}>{html.escape(str(name))}</th>" for name, style in zip(table.columns, aligned))
    body = "".join(
        "<tr>" + "".join(f"<td{style}>{html.escape(number(cell))}</td>" for cell, style in zip(row, aligned)) + "</tr>"
        for row in table.rows[:PAGE_LIMIT]
    )
    return f'<div style="overflow-x: auto"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def text_html(text: str) -> str:
    """Turn a sentence of a lesson into HTML: `code`, **bold**, *italic* and [links](url)."""
    pieces = re.split(r"(`[^`]+`)", text)
    return "".join(
        f"<code>{html.escape(piece[1:-1])}</code>" if i % 2 else marked_up(html.escape(piece))
        for i, piece in enumerate(pieces)
    )


def marked_up(text: str) -> str:
    text = re.sub(r"\[([^\]]+)\]\((https?://[^)\s]+)\)", r'<a href="\2">\1</a>', text)
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"(?<![\w*])\*(\S(?:.*?\S)?)\*(?![\w*])", r"<em>\1</em>", text)
