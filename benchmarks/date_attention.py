"""What a model of dates attends to: the cross-attention of each part of the ISO date, by language.

    python benchmarks/date_attention.py --model runs/dates [--rows 40] [--quick] [--json]

The model reads dates of the test split and writes them in ISO 8601. CLDR's patterns tell which letters of a
source are its year, its month and its day. The share of a part is the attention of the steps that predict its
digits to the tokens with these letters: the mean over digits, heads of the last layer, and dates. For
comparison, the table has the share under uniform attention. "right" is how often a part attends more to its
letters than to those of every other part, and to all other tokens together.
Draws `date_attention.png` into --output. There is no peer.
"""

import argparse
import datetime
import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from babel import Locale
from datasets import Dataset

import side_by_side
from vaswani.data.sources.dates import DATE_FORMATS, DateWriter, generate_dates
from vaswani.errors import UserError
from vaswani.insight.attention import load_attention_model, read_attention
from vaswani.insight.figures import new_figure, save_figure
from vaswani.insight.themes import BLUE, ORANGE, VERMILLION

DIGITS = {"year": slice(0, 4), "month": slice(5, 7), "day": slice(8, 10)}  # in the target, a token each
COLOURS = {"year": BLUE, "month": VERMILLION, "day": ORANGE}
Spans = dict[str, tuple[int, int]]  # of each part, its letters


def spans_of_parts(source: str, target: str, writers: Sequence[DateWriter]) -> Spans:
    """Return the positions of year, month, day and weekday of a date in its source."""
    day = datetime.date.fromisoformat(target)
    writer = next(each for each in writers if each.write(day) == source)
    spans, text = {}, ""
    for literal, part, _, _ in string.Formatter().parse(writer.template):
        text += literal
        if part:
            # The same writer, with this part alone.
            alone = DateWriter(f"{{{part}}}", writer.months, writer.days, writer.weekdays).write(day)
            spans[part] = (len(text), len(text) + len(alone))
            text += alone
    return spans


def keys_of_parts(tokenizer: Any, source: str, spans: Spans) -> dict[str, torch.Tensor]:
    """The tokens that have letters of each part, or of none: bool [K]."""
    offsets = tokenizer(source, return_offsets_mapping=True)["offset_mapping"]
    keys = {
        part: torch.tensor([start < last and end > first for start, end in offsets])
        for part, (first, last) in spans.items()
    }
    return {**keys, "none": ~torch.stack([*keys.values()]).any(0)}


def shares_of_date(model: Any, tokenizer: Any, source: str, target: str, spans: Spans) -> dict[str, Any]:
    """Return for each part its share, that of uniform attention, and whether the share is the largest."""
    cross = read_attention(model, tokenizer, source, target)[-1]
    if cross.queries[:-1] != tuple(target):
        raise UserError(f"the model's tokens of a date are {cross.queries}; expected one per digit")
    weights = cross.weights[-1].mean(0)  # [Q, K]
    keys = keys_of_parts(tokenizer, source, spans)
    found = {}
    for part, digits in DIGITS.items():
        of_keys = {name: weights[digits][:, seen].sum(1).mean().item() for name, seen in keys.items()}
        found[part] = {
            "share": of_keys[part],
            "equal": keys[part].float().mean().item(),
            "right": float(of_keys[part] == max(of_keys.values())),
        }
    return found


def measure(model: Any, tokenizer: Any, dates: Dataset, most: int) -> dict[str, dict[str, Any]]:
    """Return the means for each locale and part, over up to `most` dates."""
    found: dict[str, list[dict[str, Any]]] = {}
    writers: dict[str, list[DateWriter]] = {}
    for row in dates:
        locale = row["locale"]
        rows = found.setdefault(locale, [])
        if len(rows) == most:
            continue
        if locale not in writers:
            writers[locale] = [DateWriter.from_babel(locale, form) for form in DATE_FORMATS]
        spans = spans_of_parts(row["source"], row["target"], writers[locale])
        rows.append(shares_of_date(model, tokenizer, row["source"], row["target"], spans))
    return {
        locale: {
            part: {name: sum(row[part][name] for row in rows) / len(rows) for name in rows[0][part]}
            for part in DIGITS
        }
        for locale, rows in found.items()
    }


def draw(found: dict[str, dict[str, Any]], file: Path) -> None:
    """Draw the shares of each language, and with small marks those of equal attention."""
    names = [language(locale) for locale in found]
    with new_figure((7, 1.4 + 0.19 * len(found)), layout="constrained") as figure:
        axes = figure.add_subplot()
        for part, colour in COLOURS.items():
            shares = [100 * of_locale[part]["share"] for of_locale in found.values()]
            equal = [100 * of_locale[part]["equal"] for of_locale in found.values()]
            axes.plot(equal, names, "|", color=colour, alpha=0.7)
            axes.plot(shares, names, "o", color=colour, label=part)
        axes.set(xlim=(0, 100), ylim=(len(found) - 0.5, -0.5))
        axes.set_xlabel("cross-attention to the right letters, %; | if all tokens had the same")
        axes.tick_params(axis="y", labelsize="small", length=0)
        axes.grid(axis="x")
        figure.legend(loc="outside upper center", ncols=3)
    save_figure(figure, file)


def language(locale: str) -> str:
    """The English name of a locale's language."""
    return Locale.parse(locale).get_display_name("en") or locale


def main() -> None:
    """Measure, print one table and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a model of the dates")
    parser.add_argument("--rows", type=int, default=40, help="dates of each language")
    parser.add_argument("--quick", action="store_true", help="show that it runs, with few languages")
    parser.add_argument("--json", action="store_true", help="end with a JSON object on the last line")
    parser.add_argument("--output", type=Path, default=Path("runs"), help="folder of the picture")
    args = parser.parse_args()
    side_by_side.quiet()
    model, tokenizer = load_attention_model(args.model)
    corpus: Any = {"locales": "de,en,es,zh", "test_rows": 20} if args.quick else {}
    dates = generate_dates(**corpus, train_rows=0, validation_rows=0)["test"]
    found = measure(model, tokenizer, dates, 1 if args.quick else args.rows)
    args.output.mkdir(parents=True, exist_ok=True)
    draw(found, args.output / "date_attention.png")

    columns = (
        "language",
        *(f"{part}, % (equal)" for part in DIGITS),
        *(f"{part} right, %" for part in DIGITS),
    )
    mean = {
        part: {
            name: sum(of_locale[part][name] for of_locale in found.values()) / len(found)
            for name in ("share", "equal", "right")
        }
        for part in DIGITS
    }
    rows = [
        (
            name,
            *(f"{100 * each['share']:.0f} ({100 * each['equal']:.0f})" for each in of_locale.values()),
            *(f"{100 * each['right']:.0f}" for each in of_locale.values()),
        )
        for name, of_locale in [*((language(each), found[each]) for each in found), ("mean", mean)]
    ]
    side_by_side.print_table(columns, rows)
    if args.json:
        shares = {
            locale: {part: of_locale[part]["share"] for part in DIGITS} for locale, of_locale in found.items()
        }
        print(json.dumps(shares))


if __name__ == "__main__":
    main()
