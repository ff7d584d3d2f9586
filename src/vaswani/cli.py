"""The command `vaswani`: parse, call, print.

Heavy imports stand inside the commands. Every failure is one line on standard error: exit status 2 for what
the user gave, 1 for what happened on the way, Ctrl-C included. With `--debug`, anywhere on the command line,
the traceback comes before it.
"""

import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from vaswani.errors import RunError, UserError

if TYPE_CHECKING:
    from tqdm import tqdm

    from vaswani.inference.translation import Translator

TYPER_INTERRUPTED = 130  # what typer makes of Ctrl-C

app = typer.Typer(
    help="The original Transformer: train it, evaluate it, translate with it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
plot = typer.Typer(help="Draw pictures of how a model works.", no_args_is_help=True)
app.add_typer(plot, name="plot")


@app.callback()
def _common(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; any command takes it.")
    ] = False,
) -> None:
    """Declare what all commands take; `run` acts on it."""


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def train(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option("--config")] = None,
    show_help: Annotated[bool, typer.Option("--help", "-h")] = False,
) -> None:
    """Train a model: --config FILE gives defaults, any field is a flag."""
    from vaswani.training.config_file import describe_options, load_config

    if show_help:
        print(describe_options())
        return
    if config is None and not context.args:
        raise UserError(
            "nothing to train: give --config FILE, such as configs/dates.yaml (see vaswani train --help)"
        )
    resolved = load_config(config, context.args)

    from transformers.utils import logging

    from vaswani.training.failures import describe_failure
    from vaswani.training.run import train as run_training

    logging.disable_progress_bar()  # of the writing of each checkpoint; that of the training stays
    try:
        run_training(resolved)
    except UserError:
        raise
    except (KeyboardInterrupt, Exception) as error:
        raise RunError(describe_failure(error, resolved.output_dir)) from error


ModelName = Annotated[
    str, typer.Option("--model", help="Folder of a trained model, or an encoder-decoder's name on the Hub.")
]
NumBeams = Annotated[int, typer.Option("--num_beams", help="Hypotheses kept in the search.")]
LengthPenalty = Annotated[float, typer.Option("--length_penalty", help="GNMT's α: ((5 + length) / 6)^α.")]
MaxLength = Annotated[
    int, typer.Option("--max_length", help="Most tokens of a translation; the source's + 50 if that is less.")
]
MaxTokensPerBatch = Annotated[
    int,
    typer.Option("--max_tokens_per_batch", help="Tokens of a batch: of sources and what they may become."),
]
Device = Annotated[str | None, typer.Option("--device", help="Default: a CUDA device if there is one.")]
DType = Annotated[
    str | None, typer.Option("--dtype", help="float32, bfloat16 or float16. Default: as saved.")
]


@app.command()
def translate(
    model: ModelName,
    input_name: Annotated[
        str, typer.Option("--input", metavar="FILE|-", help="UTF-8 text, a line each.")
    ] = "-",
    output_name: Annotated[
        str, typer.Option("--output", metavar="FILE|-", help="Written to FILE.partial until it is complete.")
    ] = "-",
    n_best: Annotated[
        int | None,
        typer.Option("--n_best", help="Write so many hypotheses of each line, with scores, as JSONL."),
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="The same as --n_best 1.")] = False,
    num_beams: NumBeams = 4,
    length_penalty: LengthPenalty = 0.6,
    max_length: MaxLength = 1024,
    max_tokens_per_batch: MaxTokensPerBatch = 8192,
    buffer_size: Annotated[
        int | None,
        typer.Option("--buffer_size", help="Lines read ahead; default 4096, and 1 from a terminal."),
    ] = None,
    device: Device = None,
    dtype: DType = None,
) -> None:
    """Translate text, line by line: standard input to standard output, or files."""
    from vaswani.inference.files import STANDARD_STREAM, LineWriter, count_lines, open_lines, translate_lines
    from vaswani.inference.translation import BUFFERED_SENTENCES

    with open_lines(input_name) as lines, LineWriter(output_name) as writer:
        translator = _load_translator(
            model,
            device=device,
            dtype=dtype,
            num_beams=num_beams,
            length_penalty=length_penalty,
            max_length=max_length,
            max_tokens_per_batch=max_tokens_per_batch,
        )
        if buffer_size is None:
            buffer_size = 1 if lines.isatty() else BUFFERED_SENTENCES
        shares_terminal = output_name == STANDARD_STREAM and sys.stdout.isatty()
        with _progress_bar(count_lines(input_name), " lines", hidden=shares_terminal) as bar:
            report = translate_lines(
                translator,
                lines,
                writer.write,
                n_best=1 if scores and n_best is None else n_best,
                buffer_size=buffer_size,
                warn=_warn,
                progress=bar.update,
            )
    _warn(f"translated {report}")


@app.command()
def evaluate(
    model: ModelName,
    data: Annotated[
        str,
        typer.Option(
            metavar="dates|FILE|FOLDER|NAME",
            help="The built-in dates; a JSONL, JSON, CSV, TSV or Parquet file; a plain text file of sources, "
            "with TARGET_FILE after it; a data set's folder or its name on the Hub.",
        ),
    ],
    target_file: Annotated[
        str | None, typer.Argument(help="Targets of a plain text file, line by line.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of a data set: train, validation or test.")] = "test",
    dataset_config: Annotated[
        str | None,
        typer.Option(
            "--dataset_config", help="Its configuration; of the dates, their locales: de,fr or all."
        ),
    ] = None,
    source_field: Annotated[
        str, typer.Option("--source_field", help="A dot reaches into columns.")
    ] = "source",
    target_field: Annotated[str, typer.Option("--target_field", help="Likewise.")] = "target",
    output_name: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="Keep the translations, a line each.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object on a line.")] = False,
    num_beams: NumBeams = 4,
    length_penalty: LengthPenalty = 0.6,
    max_length: MaxLength = 1024,
    max_tokens_per_batch: MaxTokensPerBatch = 8192,
    device: Device = None,
    dtype: DType = None,
) -> None:
    """Translate a corpus and score the result: BLEU, chrF and exact match."""
    from vaswani.data.corpus import CorpusSpec, load_corpus
    from vaswani.data.reading import table_format
    from vaswani.inference.evaluation import evaluate as evaluate_translator
    from vaswani.inference.files import STANDARD_STREAM, LineWriter, as_text
    from vaswani.training.metrics import score_translations

    is_file = target_file is not None or Path(data).is_file() or table_format(Path(data)) is not None
    files = [data] if target_file is None else [data, target_file]
    spec = CorpusSpec(
        **({"test_file": files} if is_file else {"dataset": data}),
        dataset_config=dataset_config,
        source_field=source_field,
        target_field=target_field,
    )
    split = "test" if is_file else split
    corpus = load_corpus(spec, [split])
    rows = corpus.split(split)
    _warn(f"{split} of {' and '.join(files)}: {corpus.reports[split]}")
    with LineWriter(output_name or os.devnull) as writer:
        translator = _load_translator(
            model,
            device=device,
            dtype=dtype,
            num_beams=num_beams,
            length_penalty=length_penalty,
            max_length=max_length,
            max_tokens_per_batch=max_tokens_per_batch,
        )
        with _progress_bar(len(rows), " rows") as bar:
            evaluation = evaluate_translator(translator, rows, score_translations, bar.update)
        for translation in evaluation.translations:
            writer.write(as_text(translation))
    screen = LineWriter(STANDARD_STREAM)
    screen.write(str(evaluation))
    if as_json:
        search = {"num_beams": num_beams, "length_penalty": length_penalty, "max_length": max_length}
        record = {"model": model, "data": files, "split": split, **search, **evaluation.to_dict()}
        screen.write(json.dumps(record))


@plot.command("sparse-pattern")
def plot_sparse_pattern(
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="A .png, .pdf or .svg file.")
    ] = Path("sparse_pattern.png"),
    length: Annotated[int, typer.Option("--length", help="Tokens of the sequence.")] = 4096,
    block_size: Annotated[int, typer.Option("--block_size", help="Tokens of a block.")] = 64,
    window: Annotated[int, typer.Option("--window", help="Blocks of the window, the own one included.")] = 3,
    global_blocks: Annotated[int, typer.Option("--global", help="Global blocks, from the start.")] = 2,
    random_blocks: Annotated[int, typer.Option("--random", help="Random blocks of each query block.")] = 3,
    seed: Annotated[int, typer.Option("--seed", help="Of the random blocks.")] = 0,
    layer: Annotated[int, typer.Option("--layer", help="Each draws other random blocks.")] = 0,
    heads: Annotated[int, typer.Option("--heads", help="A panel each; each draws other random blocks.")] = 2,
    causal: Annotated[bool, typer.Option("--causal", help="A decoder's: nothing sees what follows.")] = False,
) -> None:
    """Draw which block of a sequence attends to which, and why."""
    from vaswani.insight.plots import density, save_sparse_pattern
    from vaswani.model.sparse_pattern import SparsePattern

    try:
        pattern = SparsePattern(
            num_heads=heads,
            block_size=block_size,
            window_blocks=window,
            global_blocks=global_blocks,
            random_blocks=random_blocks,
            seed=seed,
            layer=layer,
            causal=causal,
        )
        num_blocks = pattern.num_blocks(length)
    except ValueError as error:
        raise UserError(str(error)) from error
    save_sparse_pattern(pattern, num_blocks, output)
    print(f"saved {output}: density {100 * density(pattern, num_blocks):.1f} % of the block pairs")


def _load_translator(model: str, **options: Any) -> "Translator":
    from transformers.utils.logging import disable_progress_bar

    from vaswani.inference.translation import Translator

    disable_progress_bar()
    return Translator.from_pretrained(model, **options)


def _progress_bar(total: int | None, unit: str, hidden: bool = False) -> "tqdm":
    from tqdm import tqdm

    return tqdm(total=total, unit=unit, file=sys.stderr, disable=hidden or None)  # None: unless on a terminal


def _warn(message: str) -> None:
    from tqdm import tqdm

    tqdm.write(f"vaswani: {message}", file=sys.stderr)  # above the bar, if there is one


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status."""
    debug = "--debug" in arguments
    try:
        status = app(
            [argument for argument in arguments if argument != "--debug"], "vaswani", standalone_mode=False
        )
    except Exception as error:
        if debug:
            traceback.print_exc()
        status, message = _status_and_message(error)
        if message:
            print(f"vaswani: {message}", file=sys.stderr)
        return status
    if status == TYPER_INTERRUPTED:
        print("vaswani: interrupted", file=sys.stderr)
        return 1
    return status or 0


def _status_and_message(error: Exception) -> tuple[int, str]:
    if isinstance(error, UserError):
        return 2, str(error)
    if isinstance(error, RunError):
        return 1, str(error)
    if hasattr(error, "format_message"):  # typer's own, about usage
        return getattr(error, "exit_code", 2), error.format_message()
    return 1, f"{type(error).__name__}: {' '.join(str(error).split())} (--debug shows where)"


def main() -> NoReturn:
    """Entry point of the command."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a letter must not end a run
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
