"""Decoding speed: our `generate` beside MarianMT's, with the same weights, sentences and outputs.

    python benchmarks/decoding_speed.py [--model DIR] [--data FILE|FOLDER] [--quick] [--json]

Without `--model`, a model is first trained on the corpus for two minutes. Such a model does not know yet
where to end, so each of its outputs is made to end where the reference does: the work is a finished model's.

Both sides call transformers' `generate` with the same arguments and take turns: each batch is decoded by
one, then by the other. The ratio is that of the medians of their times for all sentences, which is a ratio of
tokens per second, for the tokens are the same: they are compared one by one.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, StoppingCriteriaList
from transformers.trainer_callback import PrinterCallback

import side_by_side
from vaswani import VaswaniForConditionalGeneration
from vaswani.data.tokenization import load_tokenizers
from vaswani.inference.decoding import EXTRA_LENGTH, LengthLimits


@dataclass(frozen=True)
class Setting:
    """One row of the table: how to decode, and on how many threads."""

    num_beams: int
    batch_size: int
    sentences: int
    threads: int

    def __str__(self) -> str:
        search = f"beam {self.num_beams}" if self.num_beams > 1 else "greedy"
        return f"{search}, batch {self.batch_size}, {self.threads} thread{'s' * (self.threads > 1)}"


@dataclass(frozen=True)
class Batch:
    """Sources [rows, length], their mask, and the outputs' lengths [rows] unless the model decides."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    lengths: torch.Tensor | None


@dataclass
class Comparison:
    """Tokens per second of both sides, and how many outputs are the same."""

    ours: float
    marian: float
    tokens: int
    identical: int
    sentences: int

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.ours / self.marian


def compare(
    ours: Any, marian: Any, sentences: Dataset, setting: Setting, rounds: int, reference_lengths: bool
) -> Comparison:
    """Decode all sentences `rounds` times with both, after a round of warm-up, taking turns at each batch."""
    torch.set_num_threads(setting.threads)
    rows = sentences.select(range(setting.sentences))
    batches = list(make_batches(rows, setting.batch_size, ours.config.pad_token_id, reference_lengths))
    seconds: dict[str, list[float]] = {"ours": [], "marian": []}
    for _ in range(rounds + 1):
        outputs: dict[str, list[list[int]]] = {"ours": [], "marian": []}
        spent = dict.fromkeys(outputs, 0.0)
        for batch in batches:
            for name, model in (("ours", ours), ("marian", marian)):
                start = time.perf_counter()
                generated = generate(model, batch, setting.num_beams)
                spent[name] += time.perf_counter() - start
                outputs[name] += without_padding(generated, batch.lengths, ours.config.eos_token_id)
            print(".", end="", file=sys.stderr, flush=True)
        for name in seconds:
            seconds[name].append(spent[name])
    ours_seconds, marian_seconds = (statistics.median(times[1:]) for times in seconds.values())
    same = sum(a == b for a, b in zip(outputs["ours"], outputs["marian"], strict=True))
    tokens = sum(map(len, outputs["marian"]))
    return Comparison(tokens / ours_seconds, tokens / marian_seconds, tokens, same, len(outputs["ours"]))


def generate(model: Any, batch: Batch, num_beams: int) -> torch.Tensor:
    """Token ids [rows, length], without the start token."""
    options: dict[str, Any] = {"num_beams": num_beams, "do_sample": False}
    if num_beams > 1:
        options["length_penalty"] = 0.6
    if batch.lengths is not None:
        options["max_length"] = 1 + int(batch.lengths.max())
        options["stopping_criteria"] = StoppingCriteriaList([LengthLimits(batch.lengths)])
        options["suppress_tokens"] = [model.config.eos_token_id, model.config.pad_token_id]
    else:
        options["max_length"] = 1 + batch.input_ids.shape[1] + EXTRA_LENGTH
    generated = model.generate(batch.input_ids, attention_mask=batch.attention_mask, **options)
    return generated[:, 1:]


def make_batches(
    sentences: Dataset, size: int, pad_token_id: int, reference_lengths: bool
) -> Iterator[Batch]:
    """Batches of sentences in the order of the corpus."""
    for rows in sentences.iter(size):
        sources = [torch.tensor(source) for source in rows["input_ids"]]
        input_ids = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True, padding_value=pad_token_id)
        lengths = torch.tensor([len(reference) for reference in rows["labels"]])
        attention_mask = (input_ids != pad_token_id).long()
        yield Batch(input_ids, attention_mask, lengths if reference_lengths else None)


def without_padding(
    generated: torch.Tensor, lengths: torch.Tensor | None, end_token_id: int
) -> list[list[int]]:
    """The tokens of each row, its end-of-sequence token included."""
    rows = generated.tolist()
    if lengths is not None:
        return [row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]
    return [row[: row.index(end_token_id) + 1] if end_token_id in row else row for row in rows]


def train(corpus: side_by_side.TokenizedCorpus, shape: str, steps: int) -> VaswaniForConditionalGeneration:
    """A model that has seen some of the corpus, so that beams part as they do in a trained one."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = {
            "output_dir": folder,
            "max_steps": steps,
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
        trainer.train()
    return trainer.model


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


def settings(threads: list[int], sentences: int) -> list[Setting]:
    """The rows of the table."""
    return [
        Setting(num_beams, batch_size, min(sentences, limit), count)
        for count in threads
        for num_beams, batch_size, limit in ((4, 32, sentences), (1, 32, sentences), (1, 1, sentences // 8))
    ]


def table_row(setting: Setting, result: Comparison) -> tuple[str, ...]:
    """One row of the table."""
    return (
        str(setting),
        f"{result.identical} of {result.sentences}",
        f"{result.tokens / result.sentences:.1f}",
        f"{result.marian:,.0f}",
        f"{result.ours:,.0f}",
        f"{result.ratio:.2f}",
    )


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    side_by_side.corpus_arguments(parser)
    parser.add_argument("--model", help="folder of a trained model, which ends its outputs by itself")
    parser.add_argument("--shape", choices=side_by_side.SHAPES, default="base", help="of the model to train")
    parser.add_argument("--train-steps", type=int, default=100)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sentences", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3, help="times that all sentences are decoded")
    parser.add_argument("--quick", action="store_true", help="a tiny model and few sentences: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args()
    if args.quick:
        args.shape, args.train_steps, args.threads, args.sentences, args.rounds = "tiny", 20, [1], 32, 1
    return args


def main() -> None:
    """Measure and print."""
    args = parse_arguments()
    side_by_side.quiet()
    model, tokenizer = load(args.model) if args.model else (None, None)
    corpus = side_by_side.load_tokens(args, tokenizer)
    if model is None:
        model = train(corpus, args.shape, args.train_steps)
    model.eval()
    model.generation_config.num_beams = 1  # the arguments of each call decide
    model.generation_config.length_penalty = model.generation_config.max_length = None
    marian = side_by_side.marian_twin(model)
    results = {
        setting: compare(model, marian, corpus.test, setting, args.rounds, args.model is None)
        for setting in settings(args.threads, args.sentences)
    }
    print(file=sys.stderr)

    print(side_by_side.describe_setting(corpus.name, args.threads))
    print(f"{side_by_side.describe_shape(model.config)}, vocabulary of {model.config.vocab_size:,} tokens\n")
    side_by_side.print_table(
        (
            *("search", "identical outputs", "tokens/sentence", "MarianMT, tokens/s", "vaswani, tokens/s"),
            "vaswani: × faster",
        ),
        [table_row(setting, result) for setting, result in results.items()],
    )
    if args.json:
        ratio = min(result.ratio for setting, result in results.items() if setting.num_beams > 1)
        print(json.dumps({"ratio_vs_marian": round(ratio, 3)}))


if __name__ == "__main__":
    main()
