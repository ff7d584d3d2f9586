"""Shared parts of the comparisons: a tokenized corpus, a MarianMT model of the same shape, and one table."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

import datasets
import torch
from datasets import Dataset
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerBase, logging

from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.data.collation import Seq2SeqCollator
from vaswani.data.pair_tokens import tokenize_corpus
from vaswani.data.sources.corpus import load_corpus
from vaswani.data.sources.corpus_spec import CorpusSpec
from vaswani.data.tokenization import train_tokenizer
from vaswani.errors import RunError, UserError
from vaswani.files.atomic_files import write_json
from vaswani.training.config.training_arguments import TrainingArguments
from vaswani.training.trainer.seq2seq import Trainer

ROWS = 30_000  # of the corpus, at most
VOCAB_SIZE = 8_000  # at most; the dates have fewer sub-words
HALF_INTERVAL = 1.96  # standard errors in half of a 95 % interval

_TINY = {"d_model": 32, "layers": 1, "attention_heads": 2, "ffn_dim": 64}
_SMALL = {"d_model": 128, "layers": 4, "attention_heads": 4, "ffn_dim": 256}
_BASE = {"d_model": 512, "layers": 6, "attention_heads": 8, "ffn_dim": 2048}
_DEEP = {**_BASE, "layers": 12, "decoder_layers": 1}  # of translators that must be fast
SHAPES = {"tiny": _TINY, "small": _SMALL, "base": _BASE, "deep": _DEEP}


def check_options(folder: Path, options: dict[str, Any]) -> None:
    """Record the options of the trainings in a folder, so that later calls do not mix them with others.

    A folder that holds nothing but the record has no trainings yet, and takes other options.

    Args:
        folder: where the trainings lie.
        options: what they depend on, as JSON values; None leaves the choice to a configuration.

    Raises:
        UserError: the folder holds trainings with other options.
    """
    record = folder / "options.json"
    if not record.is_file() or [*folder.iterdir()] == [record]:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(record, options)
    for name, value in json.loads(record.read_text()).items():
        if value != options[name]:
            raise UserError(
                f"{folder} holds trainings with {name}={value}, not {options[name]}; give another --output"
            )


def our_config(shape: str, vocab_size: int = VOCAB_SIZE) -> VaswaniConfig:
    """A configuration with equally wide layers in both stacks, and sinusoids in Marian's order."""
    fields: dict[str, Any] = dict(SHAPES[shape])
    stacks = {
        f"{stack}_{name}": fields.get(f"{stack}_{name}", fields[name])
        for stack in ("encoder", "decoder")
        for name in ("layers", "attention_heads", "ffn_dim")
    }
    return VaswaniConfig(
        vocab_size=vocab_size, d_model=fields["d_model"], sinusoidal_layout="concatenated", **stacks
    )


def our_model(shape: str, vocab_size: int, seed: int = 0) -> VaswaniForConditionalGeneration:
    """Return a new model; equal seeds give equal models."""
    torch.manual_seed(seed)
    return VaswaniForConditionalGeneration(our_config(shape, vocab_size))


def our_trainer(
    shape: str, tokenizer: PreTrainedTokenizerBase, rows: Dataset, arguments: dict[str, Any]
) -> Trainer:
    """Our trainer with a new model of ours."""
    return Trainer(
        model=our_model(shape, len(tokenizer), arguments.get("seed", 0)),
        args=TrainingArguments(**arguments),
        train_dataset=rows,
        data_collator=Seq2SeqCollator(tokenizer.pad_token_id, tokenizer.bos_token_id),
        processing_class=tokenizer,
    )


def describe_shape(config: VaswaniConfig) -> str:
    """For example `d 512, 6+6 layers`."""
    return f"d {config.d_model}, {config.encoder_layers}+{config.decoder_layers} layers"


def marian_config(config: VaswaniConfig) -> MarianConfig:
    """The configuration of a MarianMT model that computes the same function."""
    same = (
        *("vocab_size", "decoder_vocab_size", "d_model", "dropout", "attention_dropout"),
        *("activation_dropout", "activation_function", "scale_embedding"),
        *("share_encoder_decoder_embeddings", "tie_word_embeddings"),
        *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
        *(f"{stack}_{field}" for stack in ("encoder", "decoder") for field in ("layers", "ffn_dim")),
        *(f"{stack}_attention_heads" for stack in ("encoder", "decoder")),
    )
    return MarianConfig(**{name: getattr(config, name) for name in same}, forced_eos_token_id=None)


def marian_twin(model: VaswaniForConditionalGeneration) -> MarianMTModel:
    """A MarianMT model with the weights of ours (whose sinusoids must be in Marian's order)."""
    twin = MarianMTModel(marian_config(model.config))
    weights = model.state_dict()
    if "lm_head.bias" in weights:
        twin.final_logits_bias = weights.pop("lm_head.bias")[None]
    weights["model.shared.weight"] = weights["model.encoder.embed_tokens.weight"]
    missing, unexpected = twin.load_state_dict(weights, strict=False)
    strange = [name for name in missing if not name.endswith(("embed_positions.weight", "final_logits_bias"))]
    unexpected = [name for name in unexpected if name != "model.shared.weight"]
    if strange or unexpected:
        raise ValueError(f"MarianMT has no place for {unexpected} or has no values for {strange}")
    twin.eval()
    return twin


# ------------------------------------------------------------------------------------------------ the corpus


def corpus_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the corpus."""
    parser.add_argument(
        "--data",
        help="JSONL (CSV, Parquet ...) file, or folder with train and test files; default: the dates",
    )
    parser.add_argument("--source-field", help="default: source, or the file's first field")
    parser.add_argument("--target-field", help="default: target, or the file's second field")


@dataclass
class TokenizedCorpus:
    """Rows of `input_ids` and `labels`, to train with and to translate, and the tokenizer that made them."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    train: Dataset
    test: Dataset


def load_tokens(
    args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase | None = None
) -> TokenizedCorpus:
    """Read the corpus and split it into sub-words: those of `tokenizer`, or of one that is trained on it."""
    corpus = load_corpus(_spec(args))
    found = list(corpus.splits.values())  # in the order train, validation, test
    splits = [split.select(range(min(ROWS, len(split)))) for split in (found[0], found[-1])]
    if tokenizer is None:
        texts = (text for row in splits[0] for text in (row["source"], row["target"]))
        tokenizer = train_tokenizer(texts, VOCAB_SIZE)
    train, test = (tokenize_corpus(split, tokenizer, tokenizer, 256, 256) for split in splits)
    return TokenizedCorpus(args.data or "dates", tokenizer, train, test)


def pairs_of_test_split(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Sources and targets of the corpus's test split, or else of its last one."""
    found = [*load_corpus(_spec(args)).splits.values()][-1]
    return list(zip(found["source"][:], found["target"][:], strict=True))


def _spec(args: argparse.Namespace) -> CorpusSpec:
    if args.data is None:
        return CorpusSpec(dataset="dates")
    source, target = args.source_field or "source", args.target_field or "target"
    if args.source_field is None and args.target_field is None:
        source, target = _first_fields(Path(args.data)) or (source, target)
    place: dict[str, Any] = (
        {"dataset": args.data} if Path(args.data).is_dir() else {"train_file": [args.data]}
    )
    return CorpusSpec(**place, source_field=source, target_field=target)


def _first_fields(path: Path) -> tuple[str, str] | None:
    """The first two fields of JSONL rows that have no `source` and `target`."""
    file = path / "train.jsonl" if path.is_dir() else path
    if file.suffix != ".jsonl" or not file.is_file():
        return None
    with file.open(encoding="utf-8") as lines:
        names = list(json.loads(next(lines)))
    return None if {"source", "target"} <= set(names) else (names[0], names[1])


# ------------------------------------------------------------------------------------------------- the table


def describe_setting(corpus: str, threads: Sequence[int], dtype: str = "fp32") -> str:
    """Describe the machine, the versions, the dtype and the corpus."""
    versions = " · ".join(f"{name} {version(name)}" for name in ("vaswani", "transformers", "torch"))
    cores = f"{_processor()}, {os.cpu_count()} cores, threads used: {' and '.join(map(str, threads))}"
    return f"{versions} · {dtype} · {cores} · corpus: {corpus}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table; all columns but the first two are numbers."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    rule = [f"{'-' * (width - 1)}{'-' if i < 2 else ':'}" for i, width in enumerate(widths)]
    for row in (columns, rule, *rows):
        cells = (
            cell.ljust(w) if i < 2 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        print(f"| {' | '.join(cells)} |")


def count(text: str) -> int:
    """Parse an option that counts runs or rows: 1 or more, or nothing would be measured."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: give 1 or more")
    return number


def parse_with_flags(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line; also return the remaining flags, which belong to a configuration.

    The seed of a configuration is refused: a benchmark trains with each of its own `--seeds`.
    """
    args, more = parser.parse_known_args()
    if any(flag.partition("=")[0] == "--seed" for flag in more):
        parser.error("--seed: the trainings have different seeds; give --seeds")
    return args, more


def quiet() -> None:
    """Silence all messages, so that only the table is printed, and show the errors of vaswani in one line."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    sys.excepthook = _show_error


def _show_error(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if isinstance(error, UserError | RunError):
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)
