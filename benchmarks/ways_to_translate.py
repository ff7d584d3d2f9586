"""One trained model translated in many ways: engines, exports, penalties, averages, ensembles, bf16 and int8.

    python benchmarks/ways_to_translate.py --model DIR [DIR ...] --data FOLDER [--rows N] [--quick] [--json]

For each engine and export of the first model, with greedy search and with beams: how many outputs have the
same token ids as PyTorch's, and how many of the others are ties, which rounding decides (their scores differ
by less than 1e-4). For each way: BLEU and chrF with 95 % intervals, and the difference to PyTorch's beam
search with an interval by paired bootstrap.

The folder of a run that kept its checkpoints is also averaged; several models are also an ensemble.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

import side_by_side
from vaswani import Translator
from vaswani.errors import UserError
from vaswani.evaluation.estimates import Estimate
from vaswani.evaluation.resampling import resampled_scores
from vaswani.evaluation.text_metrics import score_texts
from vaswani.inference.translate.engine import Output
from vaswani.interop import average, export_folder

BASE = "torch, beam 4"
METRICS = {"bleu": "BLEU", "chrf": "chrF"}
ROUNDING = 1e-4  # of a score, relative
AVERAGED = 5  # checkpoints


@dataclass(frozen=True)
class Way:
    """One way to translate.

    Args:
        name: for the table.
        load: makes the translator.
        same_as: the way that should give the same outputs; None if the outputs should differ.
    """

    name: str
    load: Callable[[], Translator]
    same_as: str | None = None


@dataclass
class Translated:
    """The outputs of one way to translate.

    Args:
        texts: one for each row.
        outputs: the best output by the token ids of its source.
        scores: the score of each row.
        seconds: time spent on all rows.
    """

    texts: list[str]
    outputs: dict[tuple[int, ...], list[int]]
    scores: list[float]
    seconds: float
    resampled: dict[str, np.ndarray] = field(default_factory=dict)


def main() -> None:
    """Translate in every way, then print the table."""
    args = parse_arguments()
    side_by_side.quiet()
    rows = side_by_side.pairs_of_test_split(args)[: 20 if args.quick else args.rows]
    sources, references = zip(*rows, strict=True)
    found: dict[str, Translated] = {}
    table, record = [], {}
    with TemporaryDirectory() as folder:
        for way in ways(args, Path(folder)):
            try:
                translator = way.load()
            except UserError as error:
                if way.name == BASE:  # the others are compared with it
                    raise
                table.append((way.name, str(error).split(":")[0], *[""] * 5))
                continue
            found[way.name] = result = translated(translator, list(sources), list(references))
            cells, numbers = compared(way, found, list(references))
            table.append((way.name, *cells, f"{result.seconds:.1f}"))
            record[way.name] = numbers
            print(way.name, *cells, flush=True)
    setting = side_by_side.describe_setting(str(args.data or "dates"), [torch.get_num_threads()])
    print(f"\n{setting} · {len(sources):,} rows\n")
    columns = ("way", "same outputs", "BLEU", "difference", "chrF", "difference", "seconds")
    side_by_side.print_table(columns, table)
    if args.json:
        print(json.dumps(record))


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="show that it runs, with 20 rows")
    parser.add_argument("--json", action="store_true", help="end with a JSON object on the last line")
    parser.add_argument("--model", nargs="+", required=True, help="folders of trained models")
    parser.add_argument("--rows", type=int, default=1000, help="at most so many of the test split")
    side_by_side.corpus_arguments(parser)
    return parser.parse_args()


# --------------------------------------------------------------------------------------------------- the ways


def ways(args: argparse.Namespace, folder: Path) -> Iterator[Way]:
    """Return all ways to translate, the base first."""
    model = args.model[0]

    def loads(name: Any, **options: Any) -> Callable[[], Translator]:
        return lambda: Translator.from_pretrained(name, device="cpu", **options)

    def exports(to: str, quantization: str | None, engine: str, **options: Any) -> Callable[[], Translator]:
        output = folder / f"{to}-{quantization}"

        def load() -> Translator:
            if not output.exists():
                export_folder(model, output, to, quantization=quantization)
            return Translator.from_pretrained(output, engine=engine, **options)

        return load

    yield Way(BASE, loads(model))
    yield Way("torch, greedy", loads(model, num_beams=1))
    yield Way("torch, beam 4, bf16", loads(model, dtype="bfloat16"))
    yield Way("torch, beam 4, int8", loads(model, quantization="int8"))
    for to, engine in (("ctranslate2", "ctranslate2"), ("onnx", "onnx"), ("marian", "torch")):
        for search, beams in (("beam 4", 4), ("greedy", 1)):
            yield Way(f"{to}, {search}", exports(to, None, engine, num_beams=beams), f"torch, {search}")
        if to != "marian":
            yield Way(f"{to}, beam 4, int8", exports(to, "int8", engine))
    for name, value in (("length_penalty", 0.0), ("length_penalty", 1.0), ("coverage_penalty", 0.2)):
        yield Way(f"torch, beam 4, {name} {value}", loads(model, **{name: value}))
    checkpoints = last_checkpoints(Path(model))
    if len(checkpoints) == AVERAGED:
        yield Way(f"mean of the last {AVERAGED} checkpoints", averages(checkpoints, folder / "average"))
    if len(args.model) > 1:
        yield Way(f"ensemble of {len(args.model)}", loads(args.model))
        for other in args.model[1:]:
            yield Way(f"{Path(other).name}, beam 4", loads(other))


def last_checkpoints(run: Path) -> list[Path]:
    """The last checkpoints of a run, in their order; fewer if it kept fewer."""
    found = run.glob(f"{PREFIX_CHECKPOINT_DIR}-*")
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))[-AVERAGED:]


def averages(checkpoints: list[Path], output: Path) -> Callable[[], Translator]:
    """Load the mean of checkpoints."""

    def load() -> Translator:
        average(checkpoints, output)
        return Translator.from_pretrained(output, device="cpu")

    return load


# --------------------------------------------------------------------------------------------------- results


def translated(translator: Translator, sources: list[str], references: list[str]) -> Translated:
    """Translate all sources and remember the token ids."""
    outputs: dict[tuple[int, ...], list[int]] = {}
    search = translator.engine.search

    def remembering(rows: list[list[int]], *args: Any, **options: Any) -> list[list[Output]]:
        found = search(rows, *args, **options)
        outputs.update({tuple(row): best[0].token_ids for row, best in zip(rows, found, strict=True)})
        return found

    translator.engine.search = remembering  # type: ignore[method-assign]
    start = time.perf_counter()
    best = [translation.hypotheses[0] for translation in translator.translate(sources)]
    seconds = time.perf_counter() - start
    texts = [hypothesis.text for hypothesis in best]
    scores = [hypothesis.score or 0.0 for hypothesis in best]
    return Translated(texts, outputs, scores, seconds, resampled_scores(texts, references))


def compared(
    way: Way, found: dict[str, Translated], references: list[str]
) -> tuple[list[str], dict[str, Any]]:
    """Return the cells of a table row, and the numbers in them."""
    result, base = found[way.name], found[BASE]
    values, of_base = (score_texts(each.texts, references)[0] for each in (result, base))
    cells, numbers = [same_outputs(result, found.get(way.same_as or ""))], {}
    for metric in METRICS:
        score = Estimate.from_resamples(values[metric], result.resampled[metric])
        difference = Estimate.from_resamples(
            values[metric] - of_base[metric], result.resampled[metric] - base.resampled[metric]
        )
        cells.append(f"{score.value:.2f} [{score.low:.2f}, {score.high:.2f}]")
        is_base = result is base
        cells.append(
            "" if is_base else f"{difference.value:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]"
        )
        numbers[metric] = [score.value, difference.value, difference.low, difference.high]
    return cells, numbers


def same_outputs(result: Translated, other: Translated | None) -> str:
    """How many outputs are equal, and how many of the others are ties."""
    if other is None:
        return ""
    equal = sum(other.outputs[source] == ids for source, ids in result.outputs.items())
    differ = [i for i, text in enumerate(result.texts) if text != other.texts[i]]
    ties = sum(abs(result.scores[i] - other.scores[i]) <= ROUNDING * abs(other.scores[i]) for i in differ)
    return f"{equal:,} of {len(result.outputs):,}" + (f", {ties} ties" if ties else "")


if __name__ == "__main__":
    main()
