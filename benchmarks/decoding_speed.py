r"""Decoding speed: our `generate` beside MarianMT's and engines, with the same weights and sentences.

    python benchmarks/decoding_speed.py [--model DIR] [--data FILE|FOLDER] [--quick] [--json]
    python benchmarks/decoding_speed.py --shape small base deep --train-steps 0 --source-tokens 20 200 \
        --batch-sizes 1 32 128 --beams 1 4 --threads 1 2 --sentences 128

Without `--model`, a model is first trained on the corpus for two minutes. Such a model has not learned where
to end, so the end token is excluded, and each output has as many tokens as the longest reference of its
batch, or as the sources of `--source-tokens`. With `--model` a finished model ends its outputs by itself.

Engines run what `vaswani export` writes: CTranslate2 with `CTranslate2Engine` in float32 and in int8, and by
hand, with a call of its `translate_batch` and its own length penalty; ONNX Runtime with `generate`.

All sides take turns: each batch is decoded by one after the other. A ratio is that of the medians of their
times for all sentences. Outputs are compared one by one with ours.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from transformers.trainer_callback import PrinterCallback

import side_by_side
from vaswani import VaswaniForConditionalGeneration
from vaswani.data.tokenization import load_tokenizers, save_tokenizers
from vaswani.inference.decoding import EXTRA_LENGTH
from vaswani.inference.onnx.loading import load_onnx
from vaswani.inference.translate.ctranslate2_engine import CTranslate2Engine
from vaswani.inference.translate.ctranslate2_folder import read_ctranslate2_folder
from vaswani.inference.translate.engine import SearchOptions
from vaswani.interop.to_ctranslate2 import export_to_ctranslate2
from vaswani.interop.to_onnx import export_to_onnx

MARIAN, OURS, CTRANSLATE2, INT8, BY_HAND, ONNX = SIDES = (
    *("MarianMT", "vaswani", "CTranslate2", "CTranslate2 int8", "CTranslate2 by hand", "ONNX Runtime"),
)
ENGINES = {"ctranslate2": (CTRANSLATE2, INT8, BY_HAND), "onnx": (ONNX,)}
ALPHA = 0.6  # of the length penalty


@dataclass(frozen=True)
class Setting:
    """One row of the table: the search, the sentences and the number of threads."""

    num_beams: int
    batch_size: int
    sentences: int
    threads: int
    source_tokens: int | None = None

    def __str__(self) -> str:
        search = f"beam {self.num_beams}" if self.num_beams > 1 else "greedy"
        sources = "" if self.source_tokens is None else f", {self.source_tokens} tokens"
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"{search}, batch {self.batch_size}{sources}, {threads}"


@dataclass(frozen=True)
class Batch:
    """Sources, and the number of tokens of each output unless the model decides."""

    sources: list[list[int]]
    length: int | None

    @property
    def most(self) -> int:
        """Maximum tokens of an output."""
        return self.length or max(map(len, self.sources)) + EXTRA_LENGTH


# Decodes a batch with a number of beams to the tokens of each output, its end token included.
Decode = Callable[[Batch, int], list[list[int]]]


@dataclass
class Comparison:
    """Seconds of each side, how many of its outputs equal ours, and the tokens of all outputs."""

    seconds: dict[str, float]
    same: dict[str, int]
    tokens: int
    sentences: int

    def speed(self, side: str) -> float:
        """Tokens per second, of our outputs."""
        return self.tokens / self.seconds[side]

    def ratio(self, side: str, other: str) -> float:
        """Return how many times faster `side` is than `other`."""
        return self.seconds[other] / self.seconds[side]


def compare(sides: dict[str, Decode], batches: list[Batch], num_beams: int, rounds: int) -> Comparison:
    """Decode all sentences `rounds` times, after a round of warm-up, taking turns at each batch."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + 1):
        outputs: dict[str, list[list[int]]] = {name: [] for name in sides}
        spent = dict.fromkeys(sides, 0.0)
        for batch in batches:
            for name, decode in sides.items():
                start = time.perf_counter()
                outputs[name] += decode(batch, num_beams)
                spent[name] += time.perf_counter() - start
            print(".", end="", file=sys.stderr, flush=True)
        for name in sides:
            seconds[name].append(spent[name])
    return Comparison(
        {name: statistics.median(times[1:]) for name, times in seconds.items()},
        {name: sum(a == b for a, b in zip(outputs[OURS], outputs[name], strict=True)) for name in sides},
        sum(map(len, outputs[OURS])),
        len(outputs[OURS]),
    )


# ------------------------------------------------------------------------------------------------- the sides


def by_generate(model: Any) -> Decode:
    """Decode by transformers' `generate`."""

    def decode(batch: Batch, num_beams: int) -> list[list[int]]:
        rows = [torch.tensor(source) for source in batch.sources]
        inputs = torch.nn.utils.rnn.pad_sequence(rows, True, model.config.pad_token_id)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], True)
        options: dict[str, Any] = {"num_beams": num_beams, "do_sample": False, "max_length": 1 + batch.most}
        if num_beams > 1:
            options["length_penalty"] = ALPHA
        found = model.generate(inputs, attention_mask=mask, **options)[:, 1:].tolist()
        return [without_padding(row, model.config.eos_token_id) for row in found]

    return decode


def without_padding(row: list[int], end_token_id: int) -> list[int]:
    """The tokens of a row, its end token included."""
    return row[: row.index(end_token_id) + 1] if end_token_id in row else row


def by_engine(engine: CTranslate2Engine) -> Decode:
    """Decode with an engine, with the same limit for all outputs, as the other sides."""

    def decode(batch: Batch, num_beams: int) -> list[list[int]]:
        options = SearchOptions(num_beams=num_beams, length_penalty=ALPHA)
        limits = [batch.most] * len(batch.sources)
        found = engine.search(batch.sources, limits, options, start_options={})
        return [outputs[0].token_ids for outputs in found]

    return decode


def by_hand(folder: Path, tokenizer: PreTrainedTokenizerBase) -> Decode:
    """Decode with CTranslate2 as its documentation shows."""
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), intra_threads=torch.get_num_threads())

    def decode(batch: Batch, num_beams: int) -> list[list[int]]:
        found = translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(source) for source in batch.sources],
            beam_size=num_beams,
            length_penalty=ALPHA,
            max_decoding_length=batch.most,
            max_input_length=0,
            return_end_token=True,
        )
        return [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in found]

    return decode


def make_sides(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    engines: list[str],
) -> dict[str, Decode]:
    """Return all sides, with the current number of torch threads."""
    sides = {MARIAN: by_generate(side_by_side.marian_twin(model)), OURS: by_generate(model)}
    if "ctranslate2" in engines:
        read = read_ctranslate2_folder(folder / "ctranslate2")
        sides[CTRANSLATE2] = by_engine(CTranslate2Engine(read, "cpu"))
        sides[INT8] = by_engine(CTranslate2Engine(read, "cpu", "int8"))
        sides[BY_HAND] = by_hand(read.path, tokenizer)
    if "onnx" in engines:
        sides[ONNX] = by_generate(load_onnx(folder / "onnx"))
    return sides


def export(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    engines: list[str],
) -> None:
    """Export the model for the engines."""
    for engine in engines:
        place = folder / engine
        place.mkdir()
        if engine == "onnx":
            export_to_onnx(model, place)
        else:
            export_to_ctranslate2(model, (tokenizer, tokenizer), place)
        save_tokenizers(tokenizer, tokenizer, place)
        model.generation_config.save_pretrained(place)


# ------------------------------------------------------------------------------------- the work and the model


def make_batches(sentences: Dataset, setting: Setting, reference_lengths: bool) -> Iterator[Batch]:
    """Return batches of sentences in corpus order, or of sources of one length, cut from the corpus."""
    if setting.source_tokens is not None:
        sources = of_length(sentences, setting.source_tokens, setting.sentences)
        for start in range(0, len(sources), setting.batch_size):
            length = setting.source_tokens if reference_lengths else None
            yield Batch(sources[start : start + setting.batch_size], length)
        return
    for rows in sentences.select(range(setting.sentences)).iter(setting.batch_size):
        yield Batch(rows["input_ids"], max(map(len, rows["labels"])) if reference_lengths else None)


def of_length(sentences: Dataset, length: int, count: int) -> list[list[int]]:
    """Return sources of `length` tokens, including the end token, cut from the corpus."""
    end = sentences[0]["input_ids"][-1]
    tokens: list[int] = []
    while len(tokens) < count * (length - 1):
        tokens += [token for row in sentences["input_ids"] for token in row[:-1]]
    return [
        [*tokens[start : start + length - 1], end] for start in range(0, count * (length - 1), length - 1)
    ]


def train(corpus: side_by_side.TokenizedCorpus, shape: str, steps: int) -> VaswaniForConditionalGeneration:
    """Train a model on a part of the corpus, so that beams diverge as in a fully trained model."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = {
            "output_dir": folder,
            "max_steps": max(1, steps),
            "warmup_steps": steps // 2,
            "learning_rate": 0.02 * side_by_side.SHAPES[shape]["d_model"] ** -0.5,
            "max_tokens_per_batch": 1024,
            "use_cpu": True,
            "save_strategy": "no",
            "logging_strategy": "no",
            "report_to": [],
        }
        trainer = side_by_side.our_trainer(shape, corpus.tokenizer, corpus.train, arguments)
        trainer.remove_callback(PrinterCallback)
        if steps:
            trainer.train()
    return trainer.model


def never_ending(model: VaswaniForConditionalGeneration) -> VaswaniForConditionalGeneration:
    """Return the model with a bias that excludes the end token and padding."""
    endless = VaswaniForConditionalGeneration(
        type(model.config)(**{**model.config.to_dict(), "lm_head_bias": True})
    )
    endless.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        endless.lm_head.bias.zero_()
        endless.lm_head.bias[[model.config.eos_token_id, model.config.pad_token_id]] = -1e4
    return endless


def load(directory: str) -> tuple[VaswaniForConditionalGeneration, PreTrainedTokenizerBase]:
    """A trained model, and its tokenizer."""
    model = VaswaniForConditionalGeneration.from_pretrained(directory)
    of_marians_kind = {
        "norm_order": "post",
        "position_embedding": "sinusoidal",
        "sinusoidal_layout": "concatenated",
    }
    for name, value in of_marians_kind.items():
        if getattr(model.config, name) != value:
            raise SystemExit(f"{directory} has {name}={getattr(model.config, name)}; MarianMT has {value}")
    return model, load_tokenizers(directory)[0]


# ----------------------------------------------------------------------------------------------- the command


def settings(args: argparse.Namespace, threads: int) -> list[Setting]:
    """The rows of the table for a number of threads."""
    usual = [(4, 32), (1, 32), (1, 1)]
    if args.beams or args.batch_sizes:
        usual = [(beams, size) for beams in args.beams or [4] for size in args.batch_sizes or [32]]
    return [
        Setting(beams, size, max(size, args.sentences // (8 if size == 1 else 1)), threads, tokens)
        for tokens in args.source_tokens or [None]
        for beams, size in usual
    ]


def table_row(shape: str, setting: Setting, result: Comparison) -> tuple[str, ...]:
    """One row of the table."""
    others = [name for name in SIDES if name in result.same and name not in (OURS, BY_HAND)]
    row = [shape, str(setting), f"{result.tokens / result.sentences:.1f}"]
    row.append(f"{', '.join(str(result.same[name]) for name in others)} of {result.sentences}")
    row += [f"{result.speed(name):,.0f}" for name in SIDES if name in result.seconds and name != BY_HAND]
    row.append(f"{result.ratio(OURS, MARIAN):.2f}")
    row += [f"{result.ratio(name, OURS):.2f}" for name in others[1:]]
    if BY_HAND in result.seconds:
        row.append(f"{result.ratio(CTRANSLATE2, BY_HAND):.2f}")
    return tuple(row)


def columns(engines: list[str]) -> tuple[str, ...]:
    """Return the column names of the table."""
    known = [side for engine in ENGINES if engine in engines for side in ENGINES[engine] if side != BY_HAND]
    equal = f"equal to ours: {', '.join([MARIAN, *known])}"
    speeds = [f"{side}, tokens/s" for side in (MARIAN, OURS, *known)]
    ratios = [f"{OURS} / {MARIAN}", *(f"{side} / {OURS}" for side in known)]
    by_hand = ["engine / by hand"] if "ctranslate2" in engines else []
    return ("shape", "search", "tokens/sentence", equal, *speeds, *ratios, *by_hand)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    side_by_side.corpus_arguments(parser)
    parser.add_argument("--model", help="folder of a trained model, which ends its outputs by itself")
    parser.add_argument(
        "--shape", nargs="+", choices=side_by_side.SHAPES, default=["base"], help="of the models to train"
    )
    parser.add_argument("--train-steps", type=int, default=100, help="0: a model that has learned nothing")
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=[*ENGINES], help="default: all")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--beams", type=int, nargs="+", help="with each of --batch-sizes; 1 is greedy")
    parser.add_argument("--batch-sizes", type=int, nargs="+")
    parser.add_argument("--source-tokens", type=int, nargs="+", help="default: the sentences of the corpus")
    parser.add_argument("--sentences", type=side_by_side.count, default=128)
    parser.add_argument(
        "--rounds", type=side_by_side.count, default=3, help="times that all sentences are decoded"
    )
    parser.add_argument("--quick", action="store_true", help="a tiny model and few sentences: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args()
    if args.quick:
        args.shape, args.train_steps, args.threads, args.sentences, args.rounds = ["tiny"], 20, [1], 32, 1
    return args


def measure(
    args: argparse.Namespace, model: VaswaniForConditionalGeneration, corpus: side_by_side.TokenizedCorpus
) -> Iterator[tuple[Setting, Comparison]]:
    """Compare all sides with one model."""
    model.eval()
    model.generation_config.num_beams = 1  # the arguments of each call decide
    model.generation_config.length_penalty = model.generation_config.max_length = None
    with tempfile.TemporaryDirectory() as folder:
        export(model, corpus.tokenizer, Path(folder), args.engines)
        for threads in args.threads:
            torch.set_num_threads(threads)
            sides = make_sides(model, corpus.tokenizer, Path(folder), args.engines)
            for setting in settings(args, threads):
                batches = list(make_batches(corpus.test, setting, args.model is None))
                yield setting, compare(sides, batches, setting.num_beams, args.rounds)


def main() -> None:
    """Measure and print."""
    args = parse_arguments()
    side_by_side.quiet()
    model, tokenizer = load(args.model) if args.model else (None, None)
    corpus = side_by_side.load_tokens(args, tokenizer)
    rows, results = [], []
    for shape in args.shape[: 1 if args.model else None]:
        measured = model or never_ending(train(corpus, shape, args.train_steps))
        for setting, result in measure(args, measured, corpus):
            rows.append(table_row(side_by_side.describe_shape(measured.config), setting, result))
            results.append((setting, result))
    print(file=sys.stderr)

    print(side_by_side.describe_setting(corpus.name, args.threads))
    print(f"vocabulary of {len(corpus.tokenizer):,} tokens\n")
    side_by_side.print_table(columns(args.engines), rows)
    if args.json:
        print(json.dumps(summary(results)))


def summary(results: list[tuple[Setting, Comparison]]) -> dict[str, float]:
    """Return the smallest ratios to MarianMT, with several beams if measured, and to CTranslate2 by hand."""
    searches = [result for setting, result in results if setting.num_beams > 1]
    compared = searches or [result for _, result in results]
    found = {"ratio_vs_marian": min(result.ratio(OURS, MARIAN) for result in compared)}
    if all(BY_HAND in result.seconds for _, result in results):
        found["engine_vs_by_hand"] = min(result.ratio(CTRANSLATE2, BY_HAND) for _, result in results)
    return {name: round(ratio, 3) for name, ratio in found.items()}


if __name__ == "__main__":
    main()
