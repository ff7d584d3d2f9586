r"""Does sparse attention reach distant tokens? A small classifier finds a review hidden in an article.

    python benchmarks/long_documents.py --articles path/to/sumpubmed --reviews path/to/imdb \
        [--lengths 512 1024 2048 4096] [--patterns dense window ...] [--seeds 2] [--picture long.png] [--json]

Each document is a part of a scientific article that contains the last words of a film review. The label is
that of the review, positive or negative. The classifier reads it from the state of the first token. The
review begins farther from that token than all layers of a window reach, at a position drawn uniformly from
the rest. The text before it is independent of the review, and labels are balanced, so a window alone cannot
exceed chance (50 %) at any length. Global blocks hold the first token and see everything; random blocks may
reach the review over one or several layers. Mean pooling would reach the review with every pattern, and show
nothing.

All lengths hide the same reviews at their own places, and all patterns read the same documents in the same
order, for the same number of updates; only the text around a review grows. There is no peer. Accuracy is that
of the test split, with 95 % intervals over its rows and the seeds, and differences are to dense attention;
their intervals are wide, because the errors of the two sides count as independent. Seconds of an update are
those of the training with its validations, divided by the number of updates. Memory is what reading one
document, forward and backward, adds at its peak. Each row has its own process.

Accuracies during training are those of the validation split: choose options by these.

Finished models are not trained again, and a stopped training resumes from its checkpoint. `--patterns` and
`--lengths` share the work between processes, once one of them has written the documents; the table has the
finished rows.
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from math import hypot
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerBase

import side_by_side
from decoding_memory import memory
from vaswani import VaswaniEncoderConfig
from vaswani.data.labels.labelled import LabelledSpec, load_labelled
from vaswani.data.sources.corpus import load_corpus
from vaswani.data.sources.corpus_spec import SPLITS, TextCorpusSpec
from vaswani.data.tokenization import train_tokenizer
from vaswani.errors import UserError
from vaswani.files.atomic_files import whole_folder, write_json
from vaswani.files.run_files import EVALUATION_FILE, SETTINGS_FILE
from vaswani.insight.curves import read_history
from vaswani.insight.figures import check_picture, new_figure, save_figure, write_plain_numbers
from vaswani.insight.themes import LINES
from vaswani.training.config.config_file import load_config
from vaswani.training.config.finetuning_arguments import FinetuningConfig
from vaswani.training.runs.finetuning import finetune

DENSE = "dense"
PATTERNS: dict[str, tuple[int, int, int] | None] = {  # window, global and random blocks
    DENSE: None,
    "window": (3, 0, 0),
    "random": (1, 0, 3),  # and the query's own block
    "window + global": (3, 1, 0),
    "window + global + random": (3, 1, 2),
}
BLOCK = 32  # tokens
LABELS = ("neg", "pos")
VOCAB_SIZE = 8000
TEXTS_OF_VOCABULARY = 300  # of articles; ten times as many reviews
SHAPE = {"d_model": 128, "encoder_attention_heads": 4, "encoder_ffn_dim": 256}
QUICK = {"rows": 8, "test_rows": 8, "updates": 2, "documents_per_update": 4}
TOKENS_AT_ONCE = 8192  # of a batch; more documents are accumulated
EVALUATIONS = 4  # on the validation split during a training
DATA, SHAPES, RUNS, RESULT_FILE = "data", "shapes", "runs", "long_documents.json"
OPTIONS = (
    *("articles", "reviews", "layers", "review_tokens", "rows", "test_rows"),
    *("updates", "documents_per_update", "learning_rate"),
)


def main() -> None:
    """Train the requested models that are missing; print the finished rows."""
    args = parse_arguments()
    side_by_side.quiet()
    if args.row:
        pattern, length, seed = args.row
        train_and_measure(args, Row(pattern, int(length), int(seed)))
        return
    if args.picture:
        check_picture(args.picture)
    side_by_side.check_options(args.output, {name: getattr(args, name) for name in OPTIONS})
    for length in args.lengths:
        write_documents(args, length)
    for row in asked_for(args):
        if not (row.folder(args.output) / RESULT_FILE).is_file():
            command = [sys.executable, __file__, *sys.argv[1:], "--row", *map(str, asdict(row).values())]
            subprocess.run(command, check=True, stdout=sys.stderr)
    report(args)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="show that it runs, with two updates each")
    parser.add_argument("--json", action="store_true", help="end with a JSON object on the last line")
    parser.add_argument("--articles", required=True, help="folder of long texts: train.jsonl, test.jsonl ...")
    parser.add_argument(
        "--reviews", required=True, help=f"folder of texts with labels {' and '.join(LABELS)}"
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096], help="in tokens")
    parser.add_argument("--patterns", nargs="+", choices=list(PATTERNS), default=list(PATTERNS))
    parser.add_argument("--seeds", type=side_by_side.count, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--review-tokens", type=int, default=128, help="most tokens of a hidden review")
    parser.add_argument("--rows", type=int, default=10_000, help="documents to train with")
    parser.add_argument("--test-rows", type=int, default=2000, help="a quarter as many for validation")
    parser.add_argument("--updates", type=side_by_side.count, default=625)
    parser.add_argument("--documents-per-update", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--picture", type=Path, help="PNG, SVG or PDF file of the results against length")
    parser.add_argument("--output", type=Path, default=Path("runs/long_documents"))
    parser.add_argument("--row", nargs=3, help="train this one here; for the processes")
    args = parser.parse_args()
    if args.quick:
        vars(args).update(QUICK)
    least = far(args.layers) + args.review_tokens + BLOCK
    if min(args.lengths) < least:
        parser.error(
            f"--lengths {min(args.lengths)}: a review of {args.review_tokens} tokens, {far(args.layers)} or "
            f"more from the first, does not fit; give {least} or more"
        )
    return args


def far(layers: int) -> int:
    """The first token that no path from token 0 through the windows of all layers reaches."""
    window = max(blocks[0] for blocks in PATTERNS.values() if blocks and not any(blocks[1:]))
    return (layers * (window // 2) + 1) * BLOCK


# ----------------------------------------------------------------------------------------------- documents


class TokenCounts(dict[str, int]):
    """The tokens of a word after a space; no token holds parts of two words."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        super().__init__()
        self.tokenizer = tokenizer

    def __missing__(self, word: str) -> int:
        self[word] = len(self.tokenizer(f" {word}", add_special_tokens=False)["input_ids"])
        return self[word]

    def ends(self, words: Sequence[str]) -> np.ndarray:
        """Return the number of tokens up to the end of each word: int64 [W]."""
        return np.cumsum([self[word] for word in words])


@dataclass(frozen=True)
class Article:
    """A text as words, with the number of tokens up to the end of each.

    Args:
        words: the W words.
        ends: number of tokens up to the end of each word, int64 [W].
    """

    words: list[str]
    ends: np.ndarray

    def stretch(self, start: int, tokens: int) -> tuple[list[str], np.ndarray]:
        """Return the words from index `start` that fit into `tokens` tokens, and their `ends`."""
        ends = self.ends[start:] - (self.ends[start - 1] if start else 0)
        count = int(np.searchsorted(ends, tokens, side="right"))
        return self.words[start : start + count], ends[:count]


def last_words(text: str, tokens: int, counts: TokenCounts) -> list[str]:
    """Return the last words of a text that fit into `tokens` tokens; reviews tend to conclude there."""
    words = text.split()[::-1][:tokens]
    return words[: int(np.searchsorted(counts.ends(words), tokens, side="right"))][::-1]


def hide(review: Sequence[str], tokens: int, article: Article, room: int, nearest: int, draw: float) -> str:
    """Return the beginning of an article with a review inserted.

    Args:
        review: the words of the review.
        tokens: number of tokens of the review.
        article: the article, from the beginning of the document.
        room: maximum tokens of the document, without special tokens.
        nearest: minimum number of tokens before the review.
        draw: from 0 to 1: position of the review, from the nearest to the last possible.
    """
    words, ends = article.stretch(0, room - tokens)
    first = int(np.searchsorted(ends, nearest)) + 1  # minimum words before the review
    place = first + int(draw * (len(words) - first + 1))
    return " ".join([*words[:place], *review, *words[place:]])


def documents(
    args: argparse.Namespace, split: str, length: int, tokenizer: PreTrainedTokenizerBase, rows: int
) -> Iterator[dict[str, str]]:
    """Yield documents of a split, equally many per label; the reviews are the same for all lengths.

    Raises:
        UserError: no article is long enough, or there are too few reviews.
    """
    counts, draws = TokenCounts(tokenizer), random.Random(f"{split} {length}")
    room = length - tokenizer.num_special_tokens_to_add()
    articles = [Article(words, counts.ends(words)) for words in map(str.split, articles_of(args, split))]
    articles = [article for article in articles if len(article.words) and article.ends[-1] >= room]
    if not articles:
        raise UserError(f"{args.articles}: no text of {split} has {length:,} tokens; give shorter --lengths")
    for label, text in balanced(reviews_of(args, split), rows, f"{split} of {args.reviews}"):
        review = last_words(text, args.review_tokens, counts)
        article = draws.choice(articles)
        last_start = int(np.searchsorted(article.ends, article.ends[-1] - room, side="right"))
        start = draws.randint(0, last_start)
        words, ends = article.stretch(start, room)
        tokens = sum(counts[word] for word in review)
        text = hide(review, tokens, Article(words, ends), room, far(args.layers), draws.random())
        yield {"text": text, "label": label}


def balanced(reviews: Sequence[tuple[str, str]], rows: int, source: str) -> Iterator[tuple[str, str]]:
    """Return labels and texts in random order, half of each label."""
    of_label = {label: [each for each in reviews if each[0] == label] for label in LABELS}
    fewest = min(map(len, of_label.values()))
    if fewest < rows // 2:
        raise UserError(f"{source}: {fewest:,} reviews of a label; {rows:,} documents need {rows // 2:,}")
    draws = random.Random(0)
    chosen = [each for found in of_label.values() for each in draws.sample(found, rows // 2)]
    draws.shuffle(chosen)
    yield from chosen


def articles_of(args: argparse.Namespace, split: str) -> list[str]:
    """The long texts of a split."""
    return load_corpus(TextCorpusSpec(args.articles), [split]).split(split)["text"][:]


def reviews_of(args: argparse.Namespace, split: str) -> list[tuple[str, str]]:
    """Labels and texts of a split."""
    rows = load_labelled(LabelledSpec(args.reviews), [split]).split(split)
    return list(zip(rows["label"][:], rows["text"][:], strict=True))


def is_whole(folder: Path, last_file: str) -> bool:
    """Whether `whole_folder` has written a folder; a process that was killed leaves it without this file."""
    return (folder / last_file).is_file()


def write_documents(args: argparse.Namespace, length: int) -> None:
    """Write the tokenizer and the documents of a length, unless they are there."""
    if not is_whole(args.output / DATA / "tokenizer", "tokenizer_config.json"):
        with whole_folder(args.output / DATA / "tokenizer", "the tokenizer") as folder:
            texts = [text for _, text in reviews_of(args, "train")[: 10 * TEXTS_OF_VOCABULARY]]
            texts += articles_of(args, "train")[:TEXTS_OF_VOCABULARY]
            train_tokenizer(texts, VOCAB_SIZE, purpose="masked").save_pretrained(folder)
    if is_whole(args.output / DATA / f"{length}", "validation.jsonl"):
        return
    tokenizer = AutoTokenizer.from_pretrained(args.output / DATA / "tokenizer")
    rows = dict(zip(SPLITS, (args.rows, args.test_rows // 4, args.test_rows), strict=True))
    with whole_folder(args.output / DATA / f"{length}", "the documents") as folder:
        for split, number in rows.items():
            with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
                for document in documents(args, split, length, tokenizer, number):
                    file.write(json.dumps(document) + "\n")


# ------------------------------------------------------------------------------------------------ training


@dataclass(frozen=True)
class Row:
    """One training.

    Args:
        pattern: a name of `PATTERNS`.
        length: of the documents, in tokens.
        seed: of the weights, the order of documents and the random blocks; the documents are the same.
    """

    pattern: str
    length: int
    seed: int

    def folder(self, output: Path) -> Path:
        """Return the folder of the training."""
        return output / RUNS / f"{self.length}" / f"{self.pattern.replace(' + ', '_')}-{self.seed}"


def asked_for(args: argparse.Namespace) -> Iterator[Row]:
    """Return the requested rows, short documents first."""
    for length in args.lengths:
        for seed in range(args.seeds):
            yield from (Row(pattern, length, seed) for pattern in args.patterns)


def shape_of(row: Row, layers: int, vocab_size: int) -> VaswaniEncoderConfig:
    """The classifier of a row; without dropout, whose noise outweighs what a single state holds at first."""
    blocks = PATTERNS[row.pattern]
    names = ("sparse_window_blocks", "sparse_global_blocks", "sparse_random_blocks")
    return VaswaniEncoderConfig(
        vocab_size=vocab_size,
        encoder_layers=layers,
        encoder_attention="full" if blocks is None else "sparse",
        **({} if blocks is None else dict(zip(names, blocks, strict=True))),
        sparse_block_size=BLOCK,
        sparse_seed=row.seed,
        norm_order="pre",
        embedding_norm=False,
        dropout=0.0,
        attention_dropout=0.0,
        position_embedding="sinusoidal",
        scale_embedding=True,
        initializer_range=None,
        token_type_vocab_size=0,
        classifier_pooling="cls",
        num_labels=len(LABELS),
        **SHAPE,
    )


def config_of(args: argparse.Namespace, row: Row, shape: Path) -> FinetuningConfig:
    """The configuration of a training."""
    folder = row.folder(args.output)
    at_once = max(1, min(args.documents_per_update, TOKENS_AT_ONCE // row.length))
    fields = {
        "model": shape,
        "from_scratch": True,
        "dataset": args.output / DATA / f"{row.length}",
        "output_dir": folder,
        "seed": row.seed,
        "max_length": row.length,
        "max_tokens_per_batch": at_once * row.length,
        "gradient_accumulation_steps": max(1, args.documents_per_update // at_once),
        "max_steps": args.updates,
        "learning_rate": args.learning_rate,
        "eval_strategy": "steps",
        "eval_steps": -(-args.updates // EVALUATIONS),
        "save_steps": -(-args.updates // EVALUATIONS),
        "save_total_limit": 1,
        "logging_steps": max(1, args.updates // 50),
        "use_cpu": True,
        "disable_tqdm": True,
        "resume_from_checkpoint": str((folder / SETTINGS_FILE).is_file()).lower(),
    }
    return load_config(None, [f"--{name}={value}" for name, value in fields.items()], FinetuningConfig)


def train_and_measure(args: argparse.Namespace, row: Row) -> None:
    """Train one classifier, and save its accuracies, seconds and memory."""
    tokenizer = AutoTokenizer.from_pretrained(args.output / DATA / "tokenizer")
    model = AutoModelForSequenceClassification.from_config(shape_of(row, args.layers, len(tokenizer)))
    shape = args.output / SHAPES / row.folder(args.output).relative_to(args.output / RUNS)
    if not is_whole(shape, "config.json"):
        with whole_folder(shape, "the classifier") as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    mebibytes = memory_of_document(model, row.length)
    with redirect_stdout(sys.stderr):
        finetune(config_of(args, row, shape))
    folder = row.folder(args.output)
    history = read_history(folder)
    (seconds,) = (entry["train_runtime"] for entry in history if "train_runtime" in entry)
    result = {
        "parameters": model.num_parameters(),
        "updates": args.updates,
        "accuracy": json.loads((folder / EVALUATION_FILE).read_text())["metrics"]["accuracy"],
        "on_the_way": [entry["eval_accuracy"] for entry in history if "eval_accuracy" in entry],
        "seconds": seconds / args.updates,
        "mebibytes": mebibytes,
    }
    write_json(folder / RESULT_FILE, result)


def memory_of_document(model: torch.nn.Module, length: int) -> float:
    """MiB that one document, forward and backward, adds at its peak to a model with gradients."""

    def read(tokens: int) -> None:
        ids = torch.full((1, tokens), model.config.eos_token_id)
        model(ids, attention_mask=torch.ones_like(ids), labels=torch.tensor([0])).loss.backward()

    read(BLOCK)  # loads kernels, and makes the gradients
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = memory("VmRSS")
    read(length)
    model.zero_grad()
    return memory("VmHWM") - before


# ------------------------------------------------------------------------------------------------- results


@dataclass(frozen=True)
class Result:
    """The results of one pattern and length, one training per seed.

    Args:
        found: the content of their `RESULT_FILE`.
    """

    found: list[dict[str, Any]]

    @property
    def accuracies(self) -> list[float]:
        """Return the accuracy of each seed, in percent."""
        return [each["accuracy"]["value"] for each in self.found]

    @property
    def error(self) -> float:
        """The standard error of the mean accuracy, over rows and seeds."""
        rows = [
            (each["accuracy"]["high"] - each["accuracy"]["low"]) / (2 * side_by_side.HALF_INTERVAL)
            for each in self.found
        ]
        over_seeds = stdev(self.accuracies) / len(self.found) ** 0.5 if len(self.found) > 1 else 0.0
        return hypot(mean(rows), over_seeds)

    def mean(self, name: str) -> float:
        """Return the mean of the seconds or of the mebibytes."""
        return mean(each[name] for each in self.found)

    def difference(self, other: "Result") -> tuple[float, float]:
        """Return the difference in accuracy to another result, in points, and half of its 95 % interval."""
        return mean(self.accuracies) - mean(other.accuracies), side_by_side.HALF_INTERVAL * hypot(
            self.error, other.error
        )


def read_results(args: argparse.Namespace) -> dict[tuple[int, str], Result]:
    """The results by length and pattern, if those of all seeds are there."""
    results = {}
    for length in args.lengths:
        for pattern in PATTERNS:
            rows = [Row(pattern, length, seed) for seed in range(args.seeds)]
            files = [row.folder(args.output) / RESULT_FILE for row in rows]
            if all(file.is_file() for file in files):
                results[length, pattern] = Result([json.loads(file.read_text()) for file in files])
    return results


def report(args: argparse.Namespace) -> None:
    """Print the table, and JSON; draw the picture."""
    results = read_results(args)
    table, record = [], {}
    for (length, pattern), result in results.items():
        dense = results.get((length, DENSE))
        compared = None if dense is None or pattern == DENSE else result.difference(dense)
        way = zip(*(each["on_the_way"] for each in result.found), strict=True)
        table.append(
            (
                f"{length:,}",
                pattern,
                ", ".join(f"{value:.1f}" for value in result.accuracies),
                f"{mean(result.accuracies):.1f} ± {side_by_side.HALF_INTERVAL * result.error:.1f}",
                "" if compared is None else "{:+.1f} ± {:.1f}".format(*compared),
                ", ".join(f"{mean(values):.1f}" for values in way),
                f"{result.mean('seconds'):.2f}",
                f"{result.mean('mebibytes'):.0f}",
            )
        )
        record.setdefault(pattern, {})[length] = {
            "accuracies": result.accuracies,
            "half_interval": side_by_side.HALF_INTERVAL * result.error,
            "difference": compared,
            "seconds": result.mean("seconds"),
            "mebibytes": result.mean("mebibytes"),
        }
    if not results:
        print("no table yet: no row has the results of all seeds", file=sys.stderr)
        return
    first = next(iter(results.values())).found[0]
    print(side_by_side.describe_setting(f"{args.articles}, {args.reviews}", [torch.get_num_threads()]))
    print(f"{first['parameters']:,} parameters, {args.layers} layers · {first['updates']:,} updates\n")
    columns = ("tokens", "pattern", "accuracy of each seed, %", "mean", "to dense", "validation on the way")
    side_by_side.print_table((*columns, "seconds of an update", "MiB of a document"), table)
    if args.picture:
        draw(args.picture, results)
    if args.json:
        print(json.dumps(record))


def draw(picture: Path, results: dict[tuple[int, str], Result]) -> None:
    """Accuracy, seconds and memory against length, a line for each pattern."""
    lengths = sorted({length for length, _ in results})
    with new_figure((12.0, 4.0)) as figure:
        quality, seconds, mebibytes = figure.subplots(1, 3)
        for pattern, colour in zip(PATTERNS, LINES, strict=False):
            found = {length: results[length, pattern] for length in lengths if (length, pattern) in results}
            style = {"marker": "o", "color": colour, "label": pattern}
            means = [mean(result.accuracies) for result in found.values()]
            errors = [side_by_side.HALF_INTERVAL * result.error for result in found.values()]
            quality.errorbar([*found], means, errors, capsize=3, **style)
            for axes, name in ((seconds, "seconds"), (mebibytes, "mebibytes")):
                axes.plot([*found], [result.mean(name) for result in found.values()], **style)
                axes.set(yscale="log")
                write_plain_numbers(axes.yaxis)
        quality.axhline(50, color="grey", linestyle=":")
        quality.set(ylabel="test accuracy, %, with 95 % interval")
        seconds.set(ylabel="seconds of an update")
        mebibytes.set(ylabel="MiB, one document")
        for axes in (quality, seconds, mebibytes):
            axes.set(xscale="log", xlabel="tokens of a document")
            axes.set_xticks(lengths, [f"{length:,}" for length in lengths], minor=False)
            axes.set_xticks([], minor=True)
            axes.grid()
        quality.legend()
    save_figure(figure, picture)


if __name__ == "__main__":
    main()
