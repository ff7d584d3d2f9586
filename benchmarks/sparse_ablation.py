"""BigBird's ablation at a small size: does each of window, global and random blocks help?

    python benchmarks/sparse_ablation.py --data FILE|FOLDER [--field F] [--seeds S ...] [--quick] [--json]

Encoders learn masked language modelling on texts of 2,048 bytes, and differ only in their attention patterns.
Each query block, of 32 bytes, sees itself and, in the sparse variants, 8 blocks more: a window of one block
is the smallest, so that global or random blocks alone still come with the query's own. Global rows see all
blocks, and a window ends where the text does; the table has the mean over all queries.

From random weights, most of these learn only the frequencies of bytes in the available time. As BigBird
starts from RoBERTa, they start from an encoder that was trained to see only its own block. That encoder is
also trained further, to show the gain of the others, which at first lose, because they must learn what to
ignore. For each seed, all start from the same weights and see the same texts with the same bytes hidden,
taking turns; the seed also draws the random blocks.

Single bytes, for which neighbours matter most, and whole words are hidden. "Far words" are hidden words of
five or more letters that also occur elsewhere in the text, but only beyond the reach of the widest window in
all layers, so that only a pattern that sees far can use them. Bits per byte are those of hidden bytes in
held-out texts.
"""

import argparse
import json
import math
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy, linear

import side_by_side
from vaswani import VaswaniConfig
from vaswani.data.sources.corpus import load_corpus
from vaswani.data.sources.corpus_spec import CorpusSpec
from vaswani.model.stacks import VaswaniEncoder

LENGTH, BLOCK = 2048, 32  # bytes
D_MODEL, LAYERS, HEADS, FFN_DIM = 128, 2, 4, 256
BATCH = 2  # sequences
LEARNING_RATE, WARMUP_STEPS = 4e-3, 50
HIDDEN_BYTES, HIDDEN_WORDS = 0.15, 0.1  # of all bytes, and of all words
LONG_WORD = 5  # letters; shorter ones are everywhere

START = "own block alone"
VARIANTS: dict[str, tuple[int, int, int] | None] = {  # window, global and random blocks
    START: (1, 0, 0),
    "window": (9, 0, 0),
    "global": (1, 8, 0),
    "random": (1, 0, 8),
    "window + global": (7, 2, 0),
    "window + global + random": (3, 2, 4),  # in about BigBird's shares
    "dense": None,
}
FAR = LAYERS * (9 // 2) * BLOCK + BLOCK  # bytes that no path through the widest window spans

MASK, FIRST_BYTE = 3, 4  # ids; 0 to 2 are padding, start and end
VOCAB_SIZE = FIRST_BYTE + 256
IGNORED = -100

# ------------------------------------------------------------------------------------------------- the texts


@dataclass(frozen=True)
class Batch:
    """Texts with bytes hidden, [sequences, LENGTH]: ids, the ids to find, and which are of far words."""

    input_ids: torch.Tensor
    labels: torch.Tensor
    far: torch.Tensor


def load_sequences(data: str, field: str) -> tuple[list[bytes], list[bytes]]:
    """Sequences to train with, and those held out: the last split, or every tenth text of the only one."""
    place: dict[str, Any] = {"dataset": data} if Path(data).is_dir() else {"train_file": [data]}
    corpus = load_corpus(CorpusSpec(**place, source_field=field, target_field=field))
    splits = [list(split["source"]) for split in corpus.splits.values()]  # in the order train, ..., test
    if len(splits) == 1:
        splits = [[text for i, text in enumerate(splits[0]) if i % 10], splits[0][::10]]
    train, held_out = (list(stretches(texts)) for texts in (splits[0], splits[-1]))
    if not train or not held_out:
        raise SystemExit(f"--data {data}: too few texts of {LENGTH:,} bytes; give more or longer ones.")
    return train, held_out


def stretches(texts: Iterable[str]) -> Iterator[bytes]:
    """Sequences of LENGTH bytes, each from one text; what is left of a text is left out."""
    for text in texts:
        encoded = text.encode()
        for start in range(0, len(encoded) - LENGTH + 1, LENGTH):
            yield encoded[start : start + LENGTH]


def make_batches(sequences: Sequence[bytes], generator: torch.Generator) -> Iterator[Batch]:
    """Yield batches endlessly, in one random order, with other bytes hidden in each pass."""
    order = cycle(torch.randperm(len(sequences), generator=generator).tolist())
    while True:
        yield hide([sequences[i] for i in islice(order, BATCH)], generator)


def hide(sequences: Sequence[bytes], generator: torch.Generator) -> Batch:
    """Hide bytes and words drawn at random."""
    ids = torch.tensor([list(sequence) for sequence in sequences]) + FIRST_BYTE
    hidden = torch.rand(ids.shape, generator=generator) < HIDDEN_BYTES
    far = torch.zeros_like(hidden)
    for row, sequence in enumerate(sequences):
        words = [match.span() for match in re.finditer(rb"[A-Za-z\x80-\xff]+", sequence)]
        drawn = (torch.rand(len(words), generator=generator) < HIDDEN_WORDS).tolist()
        elsewhere: dict[bytes, list[int]] = defaultdict(list)
        for (start, end), is_hidden in zip(words, drawn, strict=True):
            if not is_hidden:
                elsewhere[sequence[start:end]].append(start)
        for (start, end), is_hidden in zip(words, drawn, strict=True):
            if is_hidden:
                hidden[row, start:end] = True
                far[row, start:end] = is_far(start, end, elsewhere[sequence[start:end]])
    return Batch(ids.masked_fill(hidden, MASK), ids.masked_fill(~hidden, IGNORED), far)


def is_far(start: int, end: int, elsewhere: Sequence[int]) -> bool:
    """Return whether this is a long word that also begins at the places `elsewhere`, none of them near."""
    length = end - start
    nearest = min((abs(start - other) - length for other in elsewhere), default=-1)
    return length >= LONG_WORD and nearest >= FAR


def frequency_bits(train: Sequence[bytes], batches: Iterable[Batch]) -> float:
    """Return the bits per hidden byte of a predictor that knows only the frequency of each byte."""
    counts = torch.bincount(torch.tensor(list(b"".join(train))), minlength=256) + 1
    wanted = torch.cat([batch.labels[batch.labels != IGNORED] for batch in batches])
    return -(counts / counts.sum()).log2()[wanted - FIRST_BYTE].mean().item()


# ------------------------------------------------------------------------------------------------ the models


def make_config(variant: str, seed: int) -> VaswaniConfig:
    """A small encoder; without dropout, for hardly any text comes twice."""
    fields: dict[str, Any] = {"encoder_attention": "full"}
    if (blocks := VARIANTS[variant]) is not None:
        names = ("sparse_window_blocks", "sparse_global_blocks", "sparse_random_blocks")
        fields = {"encoder_attention": "sparse", **dict(zip(names, blocks, strict=True))}
    return VaswaniConfig(
        vocab_size=VOCAB_SIZE,
        d_model=D_MODEL,
        encoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        encoder_ffn_dim=FFN_DIM,
        dropout=0.0,
        norm_order="pre",
        sparse_block_size=BLOCK,
        sparse_seed=seed,
        **fields,
    )


def make_encoder(variant: str, seed: int) -> VaswaniEncoder:
    """An encoder with the random weights of this seed."""
    torch.manual_seed(seed)
    return VaswaniEncoder(make_config(variant, seed))


def key_blocks(variant: str) -> float:
    """Key blocks that a query sees, the mean over all queries."""
    pattern = make_config(variant, 0).sparse_pattern("encoder", 0)
    share = 1.0 if pattern is None else pattern.to_dense(LENGTH).float().mean().item()
    return share * LENGTH / BLOCK


def losses(encoder: VaswaniEncoder, batch: Batch) -> torch.Tensor:
    """Nats of each hidden byte; the output projection is the embedding."""
    hidden = batch.labels != IGNORED
    states = encoder(batch.input_ids).last_hidden_state[hidden]  # [hidden, D_MODEL]
    return cross_entropy(linear(states, encoder.embed_tokens.weight), batch.labels[hidden], reduction="none")


# ----------------------------------------------------------------------------------------------- measurements


@dataclass
class Result:
    """Of one variant with one seed: bits per hidden byte, of all and of far words, and seconds per step."""

    bits: float
    far_bits: float | None
    seconds: list[float]


def measure(
    train_sequences: Sequence[bytes], held_out: Sequence[Batch], seed: int, start_steps: int, steps: int
) -> dict[str, Result]:
    """Train one encoder to start from, then all variants; evaluate them on the held-out texts."""
    batches = make_batches(train_sequences, torch.Generator().manual_seed(seed))
    start = make_encoder(START, seed)
    train({START: start}, islice(batches, start_steps), start_steps)
    encoders = {variant: make_encoder(variant, seed) for variant in VARIANTS}
    for encoder in encoders.values():
        encoder.load_state_dict(start.state_dict())
    seconds = train(encoders, islice(batches, steps), steps)
    return {
        variant: Result(*evaluate(encoder, held_out), seconds[variant])
        for variant, encoder in encoders.items()
    }


def train(
    encoders: Mapping[str, VaswaniEncoder], batches: Iterable[Batch], steps: int
) -> dict[str, list[float]]:
    """Train all, taking turns at each batch; the learning rate rises, then falls to zero. Returns seconds."""
    optimizers = {
        name: torch.optim.AdamW(encoder.parameters(), LEARNING_RATE) for name, encoder in encoders.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in encoders}
    for step, batch in enumerate(batches):
        rate = LEARNING_RATE * min((step + 1) / WARMUP_STEPS, 1 - step / steps)
        for name, encoder in encoders.items():
            optimizers[name].param_groups[0]["lr"] = rate
            began = time.perf_counter()
            optimizers[name].zero_grad()
            losses(encoder, batch).mean().backward()
            torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
            optimizers[name].step()
            seconds[name].append(time.perf_counter() - began)
        if step % 10 == 0:
            print(".", end="", file=sys.stderr, flush=True)
    return seconds


@torch.no_grad()
def evaluate(encoder: VaswaniEncoder, held_out: Sequence[Batch]) -> tuple[float, float | None]:
    """Bits per hidden byte, of all and of far words if there are any."""
    bits = torch.cat([losses(encoder.eval(), batch) for batch in held_out]) / math.log(2)
    far = bits[torch.cat([batch.far[batch.labels != IGNORED] for batch in held_out])]
    return bits.mean().item(), far.mean().item() if len(far) else None


# ------------------------------------------------------------------------------------------------ the results


def table_row(variant: str, results: Sequence[Result]) -> tuple[str, ...]:
    """One row of the table, of the results with each seed."""
    bits = [result.bits for result in results]
    far = [result.far_bits for result in results if result.far_bits is not None]
    return (
        variant,
        "–" if (blocks := VARIANTS[variant]) is None else " / ".join(map(str, blocks)),
        f"{key_blocks(variant):.1f}",
        f"{statistics.mean(bits):.3f}",
        *(f"{each:.3f}" for each in bits),
        f"{statistics.mean(far):.3f}" if far else "–",
        f"{milliseconds(results):.0f}",
    )


def milliseconds(results: Sequence[Result]) -> float:
    """The median of all steps."""
    return 1e3 * statistics.median(second for result in results for second in result.seconds)


def summary(results: Mapping[str, Sequence[Result]], frequencies: float) -> dict[str, Any]:
    """The object of `--json`: for each variant a number, or a list with one for each seed."""
    return {
        "bits_per_byte": {name: [round(each.bits, 4) for each in rows] for name, rows in results.items()},
        "far_bits_per_byte": {
            name: [round(each.far_bits, 4) for each in rows if each.far_bits is not None]
            for name, rows in results.items()
        },
        "bits_of_frequencies": round(frequencies, 4),
        "key_blocks": {name: round(key_blocks(name), 2) for name in results},
        "ms_per_step": {name: round(milliseconds(rows), 1) for name, rows in results.items()},
    }


# ------------------------------------------------------------------------------------------------ the command


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--data", required=True, help="JSONL (CSV, Parquet ...) file of long texts, or folder with splits"
    )
    parser.add_argument("--field", default="text", help="of the texts; default: text")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--start-steps", type=int, default=400, help="of the encoder that all start from")
    parser.add_argument("--steps", type=int, default=350, help="of each variant from there")
    parser.add_argument("--held-out", type=int, default=128, help="sequences, at most")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="very few steps: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args()
    if args.quick:
        args.start_steps, args.steps, args.held_out = 2, 2, 4
    return args


def main() -> None:
    """Measure and print."""
    args = parse_arguments()
    side_by_side.quiet()
    torch.set_num_threads(args.threads)
    train_sequences, sequences = load_sequences(args.data, args.field)
    generator = torch.Generator().manual_seed(0)
    held_out = [hide([sequence], generator) for sequence in sequences[: args.held_out]]
    by_seed = [measure(train_sequences, held_out, seed, args.start_steps, args.steps) for seed in args.seeds]
    results = {variant: [result[variant] for result in by_seed] for variant in VARIANTS}
    frequencies = frequency_bits(train_sequences, held_out)
    print(file=sys.stderr)

    print(side_by_side.describe_setting(args.data, [args.threads]))
    print(
        f"{LENGTH:,} bytes in {LENGTH // BLOCK} blocks, d {D_MODEL}, {LAYERS} layers, batch {BATCH}; "
        f"{args.start_steps} steps with the own block only, then {args.steps} of each variant"
    )
    print(
        f"who knows only the frequencies of bytes needs {frequencies:.3f} bits; far: at least {FAR} bytes\n"
    )
    columns = ("sees", "window / global / random", "key blocks", "bits per byte")
    seeds = (f"seed {seed}" for seed in args.seeds)
    side_by_side.print_table(
        (*columns, *seeds, "far words", "ms per step"),
        [table_row(variant, rows) for variant, rows in results.items()],
    )
    if args.json:
        print(json.dumps(summary(results, frequencies)))


if __name__ == "__main__":
    main()
