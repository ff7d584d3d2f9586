"""Does the memory of a process grow if each call has another shape? Compares memory and speed.

    python benchmarks/memory_growth.py [--calls 2000] [--baseline SRC] [--quick] [--json]

Three kinds of work, each in a process of its own: a `Translator` is called with 1 to 12 sentences of 1 to 40
words, an `Embedder` with 1 to 12 texts of 1 to 80 words, and a masked language model is trained on batches of
256 to 1,024 tokens of any length. The peer does the same with the library's model of the same shape: MarianMT
with the same weights, or BERT. `--baseline` names the `src` folder of another version of vaswani, which does
the same calls. The models are tiny: what is kept for a shape does not depend on their width.

The processes take turns, call by call. Growth is the increase of the peak memory over the memory at the 200th
call (or at a tenth of the calls, if there are fewer). The ratio of speeds is the median, over the calls
after that one, of the other side's time divided by ours. Draws `memory_growth.png` into --output.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedTokenizerBase

import side_by_side
from vaswani import (
    VaswaniEncoderConfig,
    VaswaniEncoderModel,
    VaswaniForConditionalGeneration,
    VaswaniForMaskedLM,
)
from vaswani.data.tokenization import train_tokenizer
from vaswani.inference.embed.embedding import Embedder
from vaswani.inference.translate.translation import Translator
from vaswani.insight.figures import new_figure, save_figure

SETTLED = 200  # calls after which memory should grow no more
MAX_OUTPUT = 8  # tokens of a translation: an untrained model ends none
MASKED = 0.15

Call = Callable[[np.random.Generator], object]


def words() -> list[str]:
    """Pseudo-words of two and three syllables, always the same."""
    syllables = [a + b for a in "bdklmnrst" for b in "aeiou"]
    return [a + b + c for a in syllables for b in syllables[::3] for c in ("", *syllables[::9])]


def new_tokenizer() -> PreTrainedTokenizerBase:
    """A tokenizer that knows the words."""
    return train_tokenizer([" ".join(words())], 2000)


def random_texts(generator: np.random.Generator, most_texts: int, most_words: int) -> list[str]:
    """Texts of any number of words, the words in any order."""
    lengths = generator.integers(1, most_words + 1, generator.integers(1, most_texts + 1))
    return [" ".join(generator.choice(words(), length)) for length in lengths]


def translation(shape: str, is_peer: bool) -> Call:
    """Translates some sentences."""
    tokenizer = new_tokenizer()
    model = VaswaniForConditionalGeneration(side_by_side.our_config(shape, len(tokenizer))).eval()
    translator = Translator(
        side_by_side.marian_twin(model) if is_peer else model, tokenizer, max_length=MAX_OUTPUT
    )
    return lambda generator: translator(random_texts(generator, 12, 40))


def encoder_config(shape: str, vocab_size: int, is_peer: bool) -> VaswaniEncoderConfig | BertConfig:
    """An encoder of that shape, ours or the library's."""
    of_shape = side_by_side.SHAPES[shape]
    width, layers, heads, ffn_dim = (
        of_shape[name] for name in ("d_model", "layers", "attention_heads", "ffn_dim")
    )
    if is_peer:
        return BertConfig(
            vocab_size=vocab_size,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=ffn_dim,
        )
    return VaswaniEncoderConfig(
        vocab_size=vocab_size,
        d_model=width,
        encoder_layers=layers,
        encoder_attention_heads=heads,
        encoder_ffn_dim=ffn_dim,
    )


def embedding(shape: str, is_peer: bool) -> Call:
    """Embeds some texts."""
    tokenizer = new_tokenizer()
    config = encoder_config(shape, len(tokenizer), is_peer)
    embedder = Embedder((BertModel if is_peer else VaswaniEncoderModel)(config), tokenizer)
    return lambda generator: embedder.embed(random_texts(generator, 12, 80))


def training(shape: str, is_peer: bool) -> Call:
    """Trains a masked language model for one update."""
    config = encoder_config(shape, 2000, is_peer)
    model = (BertForMaskedLM if is_peer else VaswaniForMaskedLM)(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    one_pass = {} if is_peer else {"smoothing": 0.0}  # as our trainer asks for it

    def update(generator: np.random.Generator) -> None:
        length = generator.integers(8, 129)
        rows = generator.integers(max(1, 256 // length), 1024 // length + 1)
        input_ids = torch.from_numpy(generator.integers(5, 2000, (rows, length)))
        is_masked = torch.from_numpy(generator.random((rows, length)) < MASKED)
        is_masked[0, 0] = True
        labels = input_ids.masked_fill(~is_masked, -100)
        model(input_ids.masked_fill(is_masked, 4), labels=labels, **one_pass).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


WORKS = {"translate": translation, "embed": embedding, "train": training}


def serve_calls(work: str, shape: str, is_peer: bool) -> None:
    """Serve calls in a separate process: read the number of each call, and write its seconds and bytes."""
    side_by_side.quiet()
    torch.manual_seed(0)
    call = WORKS[work](shape, is_peer)
    for number in sys.stdin:
        generator = np.random.default_rng(int(number))
        start = time.perf_counter()
        call(generator)
        seconds = time.perf_counter() - start
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        print(json.dumps([seconds, pages * resource.getpagesize()]), flush=True)


class Side:
    """A process that makes calls, with the seconds and the memory of each."""

    def __init__(self, work: str, shape: str, threads: int, is_peer: bool, source: Path | None = None):
        paths = [str(source)] if source else []
        paths += filter(None, [os.environ.get("PYTHONPATH")])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)}
        for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
            environment.pop(name, None)  # each version sets its own, and importing ours has set them here
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work", work, "--shape", shape, *(["--peer"] if is_peer else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.seconds: list[float] = []
        self.memory: list[int] = []

    def call(self, number: int) -> None:
        """Make one call and wait for its end."""
        assert self.process.stdin
        assert self.process.stdout
        print(number, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the process of a side ended with status {self.process.wait()}")
        seconds, memory = json.loads(answer)
        self.seconds.append(seconds)
        self.memory.append(memory)

    def end(self) -> None:
        """Let the process end."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()

    def growth(self, settled: int) -> float:
        """Return how much the peak memory after `settled` calls exceeds the memory at that call."""
        return max(self.memory[settled:]) / self.memory[settled - 1] - 1


def measure(work: str, args: argparse.Namespace) -> dict[str, Side]:
    """All sides after all calls; they take turns."""
    peer = "MarianMT" if work == "translate" else "BERT"
    start = (work, args.shape, args.threads)
    sides = {"vaswani": Side(*start, is_peer=False)}
    if args.baseline:
        sides["baseline"] = Side(*start, is_peer=False, source=args.baseline)
    sides[peer] = Side(*start, is_peer=True)
    try:
        for number in range(args.calls):
            in_turn = list(sides.values())
            for side in in_turn if number % 2 else reversed(in_turn):
                side.call(number)
    finally:
        for side in sides.values():
            side.end()
    return sides


def draw(results: dict[str, dict[str, Side]], path: Path) -> None:
    """Memory against calls."""
    with new_figure((11, 3.5), dpi=110) as figure:
        for axes, (work, sides) in zip(
            figure.subplots(1, len(results), squeeze=False)[0], results.items(), strict=True
        ):
            for name, side in sides.items():
                axes.plot([memory / 1e6 for memory in side.memory], label=name)
            axes.set(title=work, xlabel="calls of varied shapes", ylabel="memory of the process, MB")
            axes.set_ylim(bottom=0)
            axes.legend()
            axes.grid()
    save_figure(figure, path)


def table_rows(work: str, sides: dict[str, Side], settled: int) -> list[tuple[str, ...]]:
    """A row for each side."""
    ours = sides["vaswani"].seconds[settled:]
    return [
        (
            work,
            name,
            f"{side.memory[settled - 1] / 1e6:.0f}",
            f"{side.memory[-1] / 1e6:.0f}",
            f"{100 * side.growth(settled):+.1f} %",
            f"{1000 * statistics.median(side.seconds[settled:]):.1f}",
            f"{speed_ratio(ours, side.seconds[settled:]):.3f}",
        )
        for name, side in sides.items()
    ]


def speed_ratio(ours: list[float], theirs: list[float]) -> float:
    """Return how many times faster ours is than theirs: the median over the calls."""
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))


def main() -> None:
    """Measure, print one table and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000, help="of each kind of work")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--shape", choices=side_by_side.SHAPES, default="tiny", help="of the models")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--baseline", type=Path, help="the src folder of another version, to compare with")
    parser.add_argument("--quick", action="store_true", help="few calls: does it run?")
    parser.add_argument("--json", action="store_true", help="end with a JSON object on the last line")
    parser.add_argument("--output", type=Path, default=Path("runs"), help="folder of the picture")
    parser.add_argument("--work", choices=WORKS, help=argparse.SUPPRESS)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        serve_calls(args.work, args.shape, args.peer)
        return
    if args.baseline and not (args.baseline / "vaswani").is_dir():
        parser.error(
            f"--baseline {args.baseline}: there is no folder vaswani in it; give a checkout's src folder"
        )
    if args.quick:
        args.calls = 20
    settled = min(SETTLED, args.calls // 10)
    results = {}
    for work in args.works:
        results[work] = measure(work, args)
        print(work, "done", file=sys.stderr)
    args.output.mkdir(parents=True, exist_ok=True)
    draw(results, args.output / "memory_growth.png")

    print(side_by_side.describe_setting("random", [args.threads]))
    print(f"{args.shape} models, {args.calls:,} calls\n")
    columns = (
        *("work", "side", f"memory at call {settled}, MB", "at the last, MB", "growth"),
        *("ms per call", "vaswani: × faster"),
    )
    rows = [row for work, sides in results.items() for row in table_rows(work, sides, settled)]
    side_by_side.print_table(columns, rows)
    if args.json:
        ours = {work: sides["vaswani"] for work, sides in results.items()}
        print(json.dumps({"memory_growth": {work: side.growth(settled) for work, side in ours.items()}}))


if __name__ == "__main__":
    main()
