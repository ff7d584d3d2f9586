"""Parts of the page in HTML: tables, tokens, messages. All texts are escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from vaswani.data.text_codec import TextCodec
from vaswani.insight.token_texts import token_texts

STYLE = """<style>
.vaswani { color: var(--body-text-color); }
.vaswani h1 { font-size: 1.6rem; }
.vaswani h2 { font-size: 1.25rem; }
.vaswani h1, .vaswani h2, .vaswani h3, .vaswani caption { font-weight: 600; margin: 0.25rem 0; }
.vaswani caption { text-align: start; }
.vaswani table { border-collapse: collapse; width: 100%; margin: 0 0 0.75rem; }
.vaswani th, .vaswani td { text-align: start; padding: 0.3rem 0.5rem; vertical-align: top;
  border-bottom: 1px solid var(--border-color-primary); overflow-wrap: anywhere; }
.vaswani th.number, .vaswani td.number { text-align: end; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.vaswani .tokens { display: flex; flex-wrap: wrap; gap: 0.25rem; padding: 0; margin: 0 0 0.75rem;
  list-style: none; }
.vaswani .tokens li { padding: 0 0.35rem; border: 1px solid var(--border-color-primary);
  border-radius: 0.25rem; font-family: var(--font-mono); font-size: 0.9em; white-space: pre-wrap; }
.vaswani .text { white-space: pre-wrap; overflow-wrap: anywhere; }
.vaswani mark { background: #fde68a; color: #1c1917; font-weight: 600; }
.vaswani .alert { padding: 0.5rem 0.75rem; border-inline-start: 4px solid #c2410c; overflow-wrap: anywhere; }
.vaswani img { max-width: 100%; height: auto; }
.dark .vaswani .of-light, body:not(.dark) .vaswani .of-dark { display: none; }
.vaswani p { margin: 0 0 0.5rem; }
</style>"""


def part(*contents: str) -> str:
    """Return contents in an element to which `STYLE` applies."""
    return f'<div class="vaswani">{"".join(contents)}</div>'


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str | float]]) -> str:
    """Return a table; a column of numbers is aligned at the end."""
    kinds = [
        ' class="number"' if rows and isinstance(rows[0][place], float) else ' dir="auto"'
        for place in range(len(columns))
    ]
    head = "".join(
        f'<th scope="col"{kind}>{escape(column)}</th>' for kind, column in zip(kinds, columns, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{_cell(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in rows
    )
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def _cell(cell: str | float) -> str:
    return f"{cell:.3f}" if isinstance(cell, float) else escape(cell)


def marked(title: str, text: str, start: int, end: int) -> str:
    """Return a text under a title, with its characters from `start` to `end`, exclusive, highlighted."""
    found = f"<mark>{escape(text[start:end])}</mark>" if start < end else ""
    whole = f"{escape(text[:start])}{found}{escape(text[end:])}"
    return f'<h3>{escape(title)}</h3><p class="text" dir="auto">{whole}</p>'


def token_list(title: str, codec: TextCodec, token_ids: Sequence[int]) -> str:
    """Return a list of readable tokens, under a title with their number."""
    tokens = token_texts(codec, token_ids).tokens
    items = "".join(f'<li dir="auto">{escape(token)}</li>' for token in tokens)
    count = f"{len(tokens):,} token{'s' * (len(tokens) != 1)}"
    return f'<h3>{escape(title)}: {count}</h3><ul class="tokens">{items}</ul>'


def pictures(light: str, dark: str, alternative: str) -> str:
    """Return two pictures; the page shows the one for its theme, and screen readers read `alternative`."""
    return "".join(
        f'<img class="{theme}" src="{escape(source)}" alt="{escape(alternative)}">'
        for theme, source in {"of-light": light, "of-dark": dark}.items()
    )


def paragraph(text: str) -> str:
    """Return a paragraph."""
    return f"<p>{escape(text)}</p>"


def alert(message: str) -> str:
    """Return an error message, which screen readers read at once."""
    return f'<p class="alert" role="alert">{escape(message)}</p>'


def heading(level: int, title: str, text: str = "") -> str:
    """Return a heading with a paragraph."""
    return f"<h{level}>{escape(title)}</h{level}>" + (paragraph(text) if text else "")
