"""Pictures of the tables in docs/results: quality against size, speed and length, time and memory too.

    python benchmarks/results_pictures.py [--output docs/results]

Nothing is measured here: each point is a row of a table in the documentation, next to its command. The
pictures are `by_size.png`, `by_speed.png`, `by_length.png` and `accuracy_by_length.png`.
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from vaswani.insight.figures import new_figure, save_figure, write_plain_numbers
from vaswani.insight.themes import LINES

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SIZE, SPEED = (9.0, 5.0), (7.0, 4.5)
GREY = "#808080"
NUMBER = re.compile(r"[+\N{MINUS SIGN}-]?\d[\d,]*(?:\.\d+)?")


@dataclass
class Row:
    """A row of a table: its cells by the names of their columns."""

    cells: dict[str, str]

    @property
    def name(self) -> str:
        """The first cell, as plain text."""
        return re.sub(r"\[(.*?)\]\(.*?\)", r"\1", next(iter(self.cells.values()))).replace("`", "")

    def numbers(self, column: str) -> list[float]:
        """The numbers of a cell, in its order."""
        return [float(found.replace(",", "")) for found in NUMBER.findall(self.cells[column])]


def tables(page: Path) -> Iterator[list[Row]]:
    """The tables of a page of Markdown."""
    text = page.read_text(encoding="utf-8")
    for is_table, lines in groupby(text.splitlines(), key=lambda line: line.startswith("|")):
        if is_table:
            head, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
            yield [Row(dict(zip(head, cells, strict=True))) for cells in body]


def table_with(page: Path, column: str) -> list[Row]:
    """The first table of a page with this column."""
    for table in tables(page):
        if column in table[0].cells:
            return table
    raise SystemExit(f"{page} has no table with a column {column!r}")


def draw_sizes(folder: Path) -> Any:
    """BLEU against parameters, English to German: the paper's table 3 in small, and configurations."""
    variations = table_with(folder / "table3.md", "BLEU")
    summary = table_with(folder.parent / "results.md", "parameters")
    in_german = [row for row in summary if "French" not in row.name and "BLEU" in row.cells["result"]]
    records = [row for row in in_german if "--config" in row.name]
    with new_figure(SIZE) as figure:
        axes = figure.subplots()
        places = [row.numbers("parameters")[0] / 1e6 for row in variations]
        scores = [row.numbers("BLEU")[0] for row in variations]
        label = "variations of one architecture after equal updates, validation"
        axes.plot(places, scores, "o", color=GREY, label=label)
        for number, row in enumerate(records):
            score = row.numbers("result")[0]
            place, color = row.numbers("parameters")[0], LINES[number % len(LINES)]
            axes.plot(place, score, "D", color=color, label=f"{row.name}, test2016")
        axes.set(xlabel="million parameters", ylabel="BLEU, Multi30k, English to German")
        axes.grid()
        figure.legend(loc="outside lower center", fontsize="small")
    return figure


def draw_speeds(folder: Path) -> Any:
    """BLEU with its interval against the speed of decoding: a teacher, students, the same without it."""
    with new_figure(SPEED) as figure:
        axes = figure.subplots()
        student, colours = "", iter(LINES)
        for row in table_with(folder / "distillation.md", "decoding"):
            place, (score, *interval) = row.numbers("decoding")[0], row.numbers("BLEU")
            if alone := row.name.startswith("the same"):
                place += 0.02  # beside its student, whose shape it has
            else:
                student, colour = row.name, next(colours)
            label = f"{student}, without a teacher" if alone else student
            axes.plot([place] * 2, interval, marker="_", linestyle=":" if alone else "-", color=colour)
            axes.plot(place, score, "s" if alone else "o", color=colour, label=label)
        axes.set(xlabel="speed of decoding, times the teacher's", ylabel="BLEU, with 95 % interval")
        axes.grid()
        figure.legend(loc="outside right upper", fontsize="small")
    return figure


def draw_lengths(folder: Path) -> Any:
    """Time and memory of attention, forward and backward, against the length, on logarithmic axes."""
    found = table_with(folder / "sparse_attention.md", "dense SDPA, ms")
    rows = [row for row in found if row.cells["block"] == "64"]
    memory = next(name for name in rows[0].cells if name.startswith("peak memory"))
    lengths = [row.numbers("tokens")[0] for row in rows]
    ours = [row.numbers("vaswani, ms")[0] for row in rows]
    slower = [(row.numbers("× faster than BigBird") or [float("nan")])[0] for row in rows]
    times = {
        "sparse, vaswani": ours,
        "dense, PyTorch": [row.numbers("dense SDPA, ms")[0] for row in rows],
        "BigBird, transformers": [time * factor for time, factor in zip(ours, slower, strict=True)],
    }
    of_memory = [(row.numbers(memory) + [float("nan")] * 2)[:3] for row in rows]
    bytes_of = dict(zip(times, zip(*of_memory, strict=True), strict=True))
    with new_figure(SIZE) as figure:
        panels = {"milliseconds": times, "peak memory, MiB": bytes_of}
        for axes, (label, sides) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            for colour, (name, values) in zip(LINES, sides.items(), strict=False):
                axes.loglog(lengths, values, "o-", color=colour, label=name)
            axes.set(xlabel="tokens", ylabel=label)
            for axis in (axes.xaxis, axes.yaxis):
                write_plain_numbers(axis)
            axes.set_xticks(lengths, [f"{length / 1024:g}k" for length in lengths])
            axes.minorticks_off()
            axes.grid()
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def draw_accuracies(folder: Path) -> Any:
    """Accuracy with its interval against the length of documents, for each pattern of attention."""
    rows = table_with(folder / "sparse_attention.md", "1,024 tokens, %")
    columns = {name: float(name.split()[0].replace(",", "")) for name in rows[0].cells if "tokens, %" in name}
    with new_figure(SPEED) as figure:
        axes = figure.subplots()
        for number, (colour, row) in enumerate(zip(LINES, rows, strict=False)):
            found = {length: row.numbers(name) for name, length in columns.items() if row.numbers(name)}
            places = [length * 1.02 ** (number - 2) for length in found]  # side by side
            means, halves = zip(*found.values(), strict=True)
            axes.errorbar(places, means, halves, capsize=3, marker="o", color=colour, label=row.name)
        axes.axhline(50, color=GREY, linestyle=":")
        axes.set(xscale="log", xlabel="tokens of a document", ylabel="accuracy, %, with 95 % interval")
        axes.set_xticks([*columns.values()], [f"{length:,.0f}" for length in columns.values()])
        axes.minorticks_off()
        axes.grid()
        figure.legend(loc="outside right upper", fontsize="small")
    return figure


PICTURES = {
    "by_size": draw_sizes,
    "by_speed": draw_speeds,
    "by_length": draw_lengths,
    "accuracy_by_length": draw_accuracies,
}


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder")
    args = parser.parse_args()
    for name, draw in PICTURES.items():
        save_figure(draw(RESULTS), args.output / f"{name}.png")


if __name__ == "__main__":
    main()
