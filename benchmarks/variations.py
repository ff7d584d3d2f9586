"""Shared code of studies that change one thing at a time: a translator for each variation of a base.

`table3.py` and `recipe.py` say what is varied; their docstrings say how the models are compared.
"""

import argparse
import json
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from math import hypot
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch

import side_by_side
from vaswani import Scorer, Translator
from vaswani.data.sources.corpus import load_corpus
from vaswani.data.sources.corpus_spec import CorpusSpec
from vaswani.evaluation.estimates import resampled_rows
from vaswani.evaluation.resampling import bootstrap_scores, row_statistics, score_of_sum
from vaswani.files.atomic_files import write_json
from vaswani.files.run_files import SETTINGS_FILE
from vaswani.insight.figures import check_picture, new_figure, save_figure
from vaswani.insight.themes import LINES
from vaswani.training.config.arguments import RunConfig
from vaswani.training.config.config_file import load_config
from vaswani.training.runs.translation import train

BASE = "base"
QUICK = {"vocab_size": 300, "save_steps": 1, "warmup_steps": 0}
QUICK_UPDATES = 2
QUICK_ROWS = 8  # of the validation split
RESULT_FILE = "result.json"
COLUMNS = ("perplexity", "bleu")
AXES = {"perplexity": "perplexity", "bleu": "BLEU"}


@dataclass(frozen=True)
class Variation:
    """A change of the base.

    Args:
        fields: options of `vaswani train`, with their values.
        updates: number of updates for each update of the base.
        paper: what the nearest row of the paper's table 3 adds to perplexity and to BLEU, if there is one.
    """

    fields: dict[str, Any]
    updates: float = 1.0
    paper: tuple[float, float] | None = None


@dataclass(frozen=True)
class Study:
    """A base and its variations.

    Args:
        config: the configuration of vaswani that all models share.
        changed: fields in which the base differs from the configuration.
        variations: by name; the base is `BASE`.
        updates: default number of updates of the base.
        output: default folder for the trainings.
    """

    config: str
    changed: dict[str, Any]
    variations: dict[str, Variation]
    updates: int
    output: Path


def run(study: Study, description: str) -> None:
    """Train the requested models that are missing; print the finished rows.

    Args:
        description: for `--help`.
    """
    args = parse_arguments(study, description)
    side_by_side.quiet()
    if args.picture:
        check_picture(args.picture)
    options = {
        "data": str(args.data.resolve()),
        "max_steps": args.max_steps,
        "bf16": args.bf16,
        "quick": args.quick,
    }
    side_by_side.check_options(args.output, options)
    corpus = CorpusSpec(str(args.data), source_field="en", target_field="de")
    validation = load_corpus(corpus, ["validation"]).split("validation")
    if args.quick:
        validation = validation.select(range(QUICK_ROWS))
    pairs = list(zip(validation["source"][:], validation["target"][:], strict=True))
    for seed in range(args.seeds):
        for name in args.rows:
            train_and_test(study, args, name, seed, pairs)
    found = {name: read_results(args, name, pairs) for name in study.variations}
    results = {name: result for name, result in found.items() if result}
    if BASE in results:
        report(study, args, results, len(pairs))
    else:
        print(f"no table without the row {BASE!r}: train it with --rows {BASE}", file=sys.stderr)


def parse_arguments(study: Study, description: str) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="show that it runs, with two updates each")
    parser.add_argument("--json", action="store_true", help="end with a JSON object on the last line")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of Multi30k: train.jsonl, validation.jsonl"
    )
    parser.add_argument("--seeds", type=side_by_side.count, default=2)
    parser.add_argument("--max-steps", type=int, default=study.updates, help="updates of each")
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16, on the CPU")
    names = list(study.variations)
    parser.add_argument("--rows", nargs="+", choices=names, default=names, help="train these alone")
    parser.add_argument("--output", type=Path, default=study.output)
    parser.add_argument("--picture", type=Path, help="PNG or SVG file for the differences to the base")
    return parser.parse_args()


# ------------------------------------------------------------------------------------------------ training


def folder_of(args: argparse.Namespace, name: str, seed: int) -> Path:
    """Return the folder of a training."""
    return args.output / f"{name.replace(' ', '_')}-{seed}"


def config_of(study: Study, args: argparse.Namespace, name: str, seed: int) -> RunConfig:
    """The configuration of a training."""
    folder, variation = folder_of(args, name, seed), study.variations[name]
    updates = QUICK_UPDATES if args.quick else args.max_steps
    fields = {
        "train_file": args.data / "train.jsonl",
        "validation_file": args.data / "validation.jsonl",
        "dataset": "none",
        "output_dir": folder,
        "seed": seed,
        "max_steps": max(1, round(updates * variation.updates)),
        "save_total_limit": 1,
        "eval_strategy": "no",
        "predict_with_generate": "false",
        "resume_from_checkpoint": str((folder / SETTINGS_FILE).is_file()).lower(),
        **({"bf16": "true", "use_cpu": "true"} if args.bf16 else {}),
        **study.changed,
        **variation.fields,
        **(QUICK if args.quick else {}),
    }
    return load_config(study.config, [f"--{field}={value}" for field, value in fields.items()])


def train_and_test(
    study: Study, args: argparse.Namespace, name: str, seed: int, pairs: list[tuple[str, str]]
) -> None:
    """Train one model, and save its translations and log-probabilities, unless they exist."""
    folder = folder_of(args, name, seed)
    if (folder / RESULT_FILE).is_file():
        return
    config = config_of(study, args, name, seed)
    start = time.perf_counter()
    with redirect_stdout(sys.stderr):
        train(config)
    seconds = time.perf_counter() - start
    translator = Translator.from_pretrained(folder, device="cpu", num_beams=4)
    texts = translator([source for source, _ in pairs])
    scores = Scorer.from_pretrained(folder, device="cpu")(pairs)
    result = {
        "updates": config.training.max_steps,
        "parameters": translator.model.num_parameters(),
        "seconds": seconds,
        "texts": texts,
        "log_probs": [score.log_prob for score in scores],
        "tokens": [score.num_tokens for score in scores],
    }
    write_json(folder / RESULT_FILE, result)


# ------------------------------------------------------------------------------------------------- results


@dataclass(frozen=True)
class Result:
    """The results of one row, with one model for each seed.

    Args:
        models: the content of their `RESULT_FILE`.
        references: of the validation split.
    """

    models: list[dict[str, Any]]
    references: list[str]

    @cached_property
    def values(self) -> dict[str, list[float]]:
        """Perplexity and BLEU of each model."""
        return {
            "perplexity": [perplexity(*self.log_probs_and_tokens(model)) for model in self.models],
            "bleu": [score_of_sum("bleu", rows.sum(axis=0)) for rows in self.bleu_statistics],
        }

    @cached_property
    def resampled(self) -> dict[str, np.ndarray]:
        """Means over the models for resampled rows [R]."""
        log_probs, tokens = zip(*map(self.log_probs_and_tokens, self.models), strict=True)
        draws = resampled_rows(len(self.references))
        perplexities = [
            mean(perplexity(of[rows], count[rows]) for of, count in zip(log_probs, tokens, strict=True))
            for rows in draws
        ]
        bleu = np.mean([bootstrap_scores("bleu", rows, seed=0) for rows in self.bleu_statistics], axis=0)
        return {"perplexity": np.array(perplexities), "bleu": bleu}

    @cached_property
    def bleu_statistics(self) -> list[np.ndarray]:
        """Of each model: int64 [S, K]."""
        return [
            row_statistics(model["texts"], self.references, "translation")["bleu"] for model in self.models
        ]

    @staticmethod
    def log_probs_and_tokens(model: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Of each row: float64 [S] and int64 [S]."""
        return np.array(model["log_probs"]), np.array(model["tokens"])

    def mean(self, column: str) -> float:
        """Over the seeds."""
        return mean(self.values[column])

    def error_over_seeds(self, column: str) -> float:
        """The standard error of the mean; 0 with one seed."""
        values = self.values[column]
        return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0

    def half_interval(self, column: str) -> float:
        """Half of the 95 % interval of the mean, over rows and seeds."""
        return side_by_side.HALF_INTERVAL * hypot(self.resampled[column].std(), self.error_over_seeds(column))

    def difference(self, base: "Result", column: str) -> tuple[float, float]:
        """Return the difference to the base, and half of its 95 % interval."""
        over_rows = (self.resampled[column] - base.resampled[column]).std()
        errors = hypot(over_rows, self.error_over_seeds(column), base.error_over_seeds(column))
        return self.mean(column) - base.mean(column), side_by_side.HALF_INTERVAL * errors


def perplexity(log_probs: np.ndarray, tokens: np.ndarray) -> float:
    """exp of the mean negative log-probability of a token."""
    return float(np.exp(-log_probs.sum() / tokens.sum()))


def read_results(args: argparse.Namespace, name: str, pairs: list[tuple[str, str]]) -> Result | None:
    """The results of a row, if those of all seeds are there."""
    files = [folder_of(args, name, seed) / RESULT_FILE for seed in range(args.seeds)]
    if not all(file.is_file() for file in files):
        return None
    return Result([json.loads(file.read_text()) for file in files], [target for _, target in pairs])


def agreement(difference: float, half_interval: float, paper: float) -> str:
    """Return whether the sign is the paper's: `yes`, `no`, or `open` if our interval contains 0."""
    if abs(difference) <= half_interval:
        return "open" if paper else "yes"
    return "yes" if difference * paper > 0 else "no"


def report(study: Study, args: argparse.Namespace, results: dict[str, Result], rows: int) -> None:
    """Print the table, and JSON. There is a column for the paper's differences if a variation has some."""
    base, record = results[BASE], {}
    papers = {name: study.variations[name].paper for name in results}
    table, columns = [], ["row", "parameters", "updates"]
    for column in COLUMNS:
        columns += [AXES[column], "difference", *["the paper's"] * any(papers.values())]
    for name, result in results.items():
        numbers: dict[str, Any] = {"parameters": result.models[0]["parameters"]}
        cells = [name, f"{numbers['parameters']:,}", f"{result.models[0]['updates']:,}"]
        for i, column in enumerate(COLUMNS):
            difference, half = result.difference(base, column)
            cells.append(f"{result.mean(column):.2f} ± {result.half_interval(column):.2f}")
            cells.append("" if name == BASE else f"{difference:+.2f} ± {half:.2f}")
            if paper := papers[name]:
                cells.append(f"{paper[i]:+g}: {agreement(difference, half, paper[i])}")
            elif any(papers.values()):
                cells.append("–")
            numbers[column] = {
                "seeds": result.values[column],
                "difference": difference,
                "half_interval": half,
            }
        table.append((*cells, f"{mean(model['seconds'] for model in result.models):.0f}"))
        record[name] = numbers
    dtype = "bf16" if args.bf16 else "fp32"
    setting = side_by_side.describe_setting(args.data.name, [torch.get_num_threads()], dtype)
    print(f"{setting} · {rows:,} rows of validation · {args.seeds} seeds\n")
    side_by_side.print_table((*columns, "seconds of a training"), table)
    if args.picture:
        draw(args.picture, record, papers)
    if args.json:
        print(json.dumps(record))


def draw(file: Path, record: dict[str, Any], papers: dict[str, tuple[float, float] | None]) -> None:
    """The differences to the base with their intervals, row by row, and the paper's as rings."""
    names = [name for name in record if name != BASE][::-1]
    places = range(len(names))
    with new_figure((10.0, 0.7 + 0.32 * len(names))) as figure:
        for axes, (i, column) in zip(figure.subplots(1, 2, sharey=True), enumerate(COLUMNS), strict=True):
            found = [record[name][column] for name in names]
            axes.axvline(0, color=LINES[-1], linewidth=1)
            axes.errorbar(
                [each["difference"] for each in found],
                places,
                xerr=[each["half_interval"] for each in found],
                fmt="o",
                color=LINES[0],
                label="ours, with 95 % interval",
            )
            if rings := [(paper[i], place) for place in places if (paper := papers[names[place]])]:
                axes.plot(*zip(*rings, strict=True), "o", mfc="none", color=LINES[1], label="the paper's")
            axes.set(xlabel=f"{AXES[column]}, difference to the base", yticks=places, yticklabels=names)
            axes.grid(axis="x")
        axes.legend()
    save_figure(figure, file)
