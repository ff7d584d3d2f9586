"""A corpus larger than memory, streamed through tokenization and batching: rows per second, and memory.

    python benchmarks/streaming.py [--rows 10000000] [--quick] [--json]

Rows are generated as they are read (pseudo-words of a fixed seed, 4 to 40 of them a side), tokenized, and
batched by tokens as `vaswani train --streaming true` does it, in one process. Memory is that of the process,
read after every hundredth of the rows; it is flat if it does not grow from the second to the last tenth.
Draws `streaming.png` into --output. There is no peer.
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from datasets import Features, IterableDataset, Value
from datasets import __version__ as datasets_version
from tokenizers import __version__ as tokenizers_version

import side_by_side
from vaswani.data.batching import TokenBudgetStream
from vaswani.data.collation import Seq2SeqCollator
from vaswani.data.pair_tokens import tokenize_corpus
from vaswani.data.tokenization import train_tokenizer
from vaswani.insight.figures import new_figure, save_figure

WORDS = 20_000
ROWS_AT_A_TIME = 1000
MAX_TOKENS = 8192


def vocabulary() -> np.ndarray:
    """Pseudo-words of one to four syllables, always the same."""
    generator = np.random.default_rng(0)
    syllables = np.array([a + b for a in "bdfgklmnprstvz" for b in "aeiou"])
    lengths = generator.integers(1, 5, WORDS)
    return np.array(["".join(generator.choice(syllables, length)) for length in lengths], dtype=object)


def rows(number: int, words: np.ndarray) -> Iterator[dict[str, str]]:
    """Yield `number` pairs of sentences; some words are frequent, as in any language."""
    generator = np.random.default_rng(1)
    while number > 0:
        lengths = generator.integers(4, 41, (min(number, ROWS_AT_A_TIME), 2))
        drawn = words[np.minimum(generator.zipf(1.3, lengths.sum()) - 1, WORDS - 1)]
        sentences = np.split(drawn, lengths.flatten().cumsum()[:-1])
        for source, target in zip(sentences[::2], sentences[1::2], strict=True):
            yield {"source": " ".join(source), "target": " ".join(target)}
        number -= len(lengths)


def resident_bytes() -> int:
    """Return the current memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def measure(number: int) -> list[tuple[int, float, int]]:
    """Return rows, seconds and bytes at about a hundred points of the run."""
    words = vocabulary()
    sample = [f"{row['source']} {row['target']}" for row in rows(20_000, words)]
    tokenizer = train_tokenizer([sample], 8000)
    features = Features({"source": Value("string"), "target": Value("string")})
    texts = IterableDataset.from_generator(
        rows, gen_kwargs={"number": number, "words": words}, features=features
    )
    stream = TokenBudgetStream(tokenize_corpus(texts, tokenizer, tokenizer), MAX_TOKENS)
    collate = Seq2SeqCollator(tokenizer.pad_token_id, tokenizer.bos_token_id or 0)
    points, seen, start = [], 0, time.perf_counter()
    for batch in stream:
        seen += len(collate(batch)["input_ids"])
        if seen >= number * (len(points) + 1) / 100:
            points.append((seen, time.perf_counter() - start, resident_bytes()))
        if seen >= number:
            return points
    raise AssertionError("a stream has no end")


def draw(points: list[tuple[int, float, int]], path: Path) -> None:
    """Memory against rows."""
    with new_figure((8, 4), dpi=120) as figure:
        axes = figure.add_subplot()
        axes.plot([seen / 1e6 for seen, *_ in points], [memory / 1e6 for *_, memory in points])
        axes.set(xlabel="million rows", ylabel="memory of the process, MB")
        axes.set_ylim(0, 1.2 * max(memory for *_, memory in points) / 1e6)
        axes.grid()
    save_figure(figure, path)


def main() -> None:
    """Measure, print one table and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--quick", action="store_true", help="show that it runs, with few rows")
    parser.add_argument("--json", action="store_true", help="end with a JSON object on the last line")
    parser.add_argument("--output", type=Path, default=Path("runs"), help="folder of the picture")
    args = parser.parse_args()
    side_by_side.quiet()
    points = measure(20_000 if args.quick else args.rows)
    args.output.mkdir(parents=True, exist_ok=True)
    draw(points, args.output / "streaming.png")

    tenth = max(1, len(points) // 10)
    first, last = (
        statistics.median(point[2] for point in part) for part in (points[tenth : 2 * tenth], points[-tenth:])
    )
    seen, seconds, _ = points[-1]
    print(f"datasets {datasets_version}, tokenizers {tokenizers_version}; one process\n")
    columns = ("rows", "rows/s", "memory after 10-20 %, MB", "in the last 10 %, MB", "growth")
    growth = last / first - 1
    table = (
        f"{seen:,}",
        f"{seen / seconds:,.0f}",
        f"{first / 1e6:.0f}",
        f"{last / 1e6:.0f}",
        f"{100 * growth:+.1f} %",
    )
    side_by_side.print_table(columns, [table])
    if args.json:
        print(json.dumps({"rows_per_second": seen / seconds, "memory_growth": growth}))


if __name__ == "__main__":
    main()
