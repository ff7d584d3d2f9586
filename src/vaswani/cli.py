"""The command `vaswani`: parse, call, print.

Heavy imports stand inside the commands. Every failure is one line on standard error: exit status 2 for what
the user gave, 1 for what happened on the way, Ctrl-C included. With `--debug`, anywhere on the command line,
the traceback comes before it.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from vaswani.errors import RunError, StoppedError, UserError

if TYPE_CHECKING:
    from datasets import Dataset
    from tqdm import tqdm

    from vaswani.hub.run_facts import RunFacts
    from vaswani.inference.translation import Translator
    from vaswani.training.config_file import Config, RunConfig

TYPER_INTERRUPTED = 130  # what typer makes of Ctrl-C
SECONDS_BEFORE_THE_OTHERS_TELL = 2.0

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


ConfigFile = Annotated[Path | None, typer.Option("--config")]
NumProcesses = Annotated[
    int, typer.Option("--num_processes", "--num-processes", help="On this machine, a device each.")
]
ShowHelp = Annotated[bool, typer.Option("--help", "-h")]
ANY_FLAG: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}


@app.command(**ANY_FLAG)
def train(
    context: typer.Context,
    config: ConfigFile = None,
    num_processes: NumProcesses = 1,
    show_help: ShowHelp = False,
) -> int | None:
    """Train a model: --config FILE gives defaults, any field is a flag."""
    from vaswani.training.config_file import RunConfig

    def import_run() -> Callable[[Any], object]:
        from vaswani.training.run import train as run

        return run

    return _train(RunConfig, import_run, context, config, num_processes, show_help)


@app.command(**ANY_FLAG)
def distill(
    context: typer.Context,
    config: ConfigFile = None,
    num_processes: NumProcesses = 1,
    show_help: ShowHelp = False,
) -> int | None:
    """Train a small student to do what a large teacher does, and report how well it does."""
    from vaswani.distillation.arguments import DistillationConfig

    def import_run() -> Callable[[Any], object]:
        from vaswani.distillation.run import distill as run

        return run

    return _train(DistillationConfig, import_run, context, config, num_processes, show_help)


def _train(
    kind: "type[Config]",
    import_run: Callable[[], Callable[[Any], object]],
    context: typer.Context,
    config: Path | None,
    num_processes: int,
    show_help: bool,
) -> int | None:
    """Run a training here, or in several processes; the exit status is theirs."""
    resolved = _resolve(kind, context, config, show_help)
    if resolved is None:
        return None
    if num_processes != 1:
        return _launch(context, config, num_processes, resolved)
    _run_training(import_run(), resolved)
    return None


def _resolve(
    kind: "type[Config]", context: typer.Context, config: Path | None, show_help: bool
) -> "Config | None":
    """The configuration of a run, or None where help was wanted, which is printed."""
    from vaswani.training.config_file import describe_options, load_config

    if show_help:
        print(describe_options(kind))
        return None
    if config is None and not context.args:
        raise UserError(
            f"nothing to {kind.command}: give --config FILE, such as {kind.example} "
            f"(see vaswani {kind.command} --help)"
        )
    return load_config(config, context.args, kind)


def _launch(context: typer.Context, config: Path | None, num_processes: int, resolved: "RunConfig") -> int:
    """Run the same command in several processes, and return the exit status."""
    from vaswani.training.launch import launch

    given = [str(context.command.name), *(["--config", str(config)] if config else []), *context.args]
    debug = ["--debug"] if "--debug" in sys.argv else []
    return launch([*given, *debug], num_processes, resolved.output_dir, resolved.training.use_cpu)


def _run_training(run: Callable[[Any], object], config: "RunConfig") -> None:
    from vaswani.training.failures import describe_failure

    _hide_library_progress()
    try:
        run(config)
    except (UserError, RunError):
        raise
    except (KeyboardInterrupt, Exception) as error:
        raise RunError(describe_failure(error, config.output_dir)) from error


ModelName = Annotated[
    str, typer.Option("--model", help="Folder of a trained model, or an encoder-decoder's name on the Hub.")
]
Split = Annotated[str, typer.Option(help="Split of a data set: train, validation or test.")]
DatasetConfig = Annotated[
    str | None,
    typer.Option("--dataset_config", help="Its configuration; of the dates, their locales: de,fr or all."),
]
SourceField = Annotated[str, typer.Option("--source_field", help="A dot reaches into columns.")]
TargetField = Annotated[str, typer.Option("--target_field", help="Likewise.")]
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
Revision = Annotated[
    str | None, typer.Option("--revision", help="Branch, tag or commit of a model on the Hub.")
]
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
    revision: Revision = None,
    device: Device = None,
    dtype: DType = None,
) -> None:
    """Translate text, line by line: standard input to standard output, or files."""
    from vaswani.inference.files import STANDARD_STREAM, LineWriter, count_lines, open_lines, translate_lines
    from vaswani.inference.translation import BUFFERED_SENTENCES

    with open_lines(input_name) as lines, LineWriter(output_name) as writer:
        translator = _load_translator(
            model,
            revision=revision,
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
    split: Split = "test",
    dataset_config: DatasetConfig = None,
    source_field: SourceField = "source",
    target_field: TargetField = "target",
    output_name: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="Keep the translations, a line each.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON object on a line.")] = False,
    num_beams: NumBeams = 4,
    length_penalty: LengthPenalty = 0.6,
    max_length: MaxLength = 1024,
    max_tokens_per_batch: MaxTokensPerBatch = 8192,
    revision: Revision = None,
    device: Device = None,
    dtype: DType = None,
) -> None:
    """Translate a corpus and score the result: BLEU, chrF and exact match."""
    from vaswani.inference.evaluation import evaluate as evaluate_translator
    from vaswani.inference.files import STANDARD_STREAM, LineWriter, as_text
    from vaswani.training.metrics import score_translations

    files = [data] if target_file is None else [data, target_file]
    split, rows = _load_split(
        files, split, dataset_config=dataset_config, source_field=source_field, target_field=target_field
    )
    with LineWriter(output_name or os.devnull) as writer:
        translator = _load_translator(
            model,
            revision=revision,
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


@app.command()
def student(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The student's folder; empty, or a new one.")],
    teacher: Annotated[
        str,
        typer.Option("--teacher", help="Folder of a trained model, or an encoder-decoder's name on the Hub."),
    ],
    encoder_layers: Annotated[
        str | None,
        typer.Option(
            "--encoder_layers",
            "--encoder-layers",
            help='So many ("6"), evenly spaced, or these ("0,2,5"; one: "5,"). Default: all.',
        ),
    ] = None,
    decoder_layers: Annotated[
        str | None, typer.Option("--decoder_layers", "--decoder-layers", help="Likewise.")
    ] = None,
) -> None:
    """Make a student of some of a teacher's layers, to be trained on.

    For translation keep a deep encoder and a shallow decoder, such as
    6 layers and 1: the decoder runs once for each generated token, the
    encoder once for a sentence.
    """
    from vaswani.distillation.student import parse_layers, save_student

    _hide_library_progress()
    layers = [parse_layers(encoder_layers, "encoder_layers"), parse_layers(decoder_layers, "decoder_layers")]
    before, after = save_student(teacher, output, *layers)
    fewer = 100 * (1 - after / before)
    print(f"saved {output}: teacher {before:,} parameters, student {after:,} ({fewer:.1f} % fewer)")


@app.command()
def compare(
    teacher: Annotated[str, typer.Argument(help="Folder of the model to measure against, or its name.")],
    students: Annotated[
        list[str], typer.Argument(metavar="STUDENT...", help="Likewise, of those distilled from it.")
    ],
    data: Annotated[
        str,
        typer.Option(
            metavar="dates|FILE|FOLDER|NAME",
            help="The built-in dates; a JSONL, JSON, CSV, TSV or Parquet file; a data set's folder or its "
            "name on the Hub.",
        ),
    ],
    split: Split = "test",
    dataset_config: DatasetConfig = None,
    source_field: SourceField = "source",
    target_field: TargetField = "target",
    baseline: Annotated[
        str | None, typer.Option(help="The same student, trained without distillation.")
    ] = None,
    metric: Annotated[str, typer.Option(help="Of retention: bleu, chrf or exact_match.")] = "bleu",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Of report.md, report.json and quality_speed.png. Default: the first student's.",
        ),
    ] = None,
    num_beams: NumBeams = 4,
    length_penalty: LengthPenalty = 0.6,
    max_length: MaxLength = 1024,
    max_tokens_per_batch: MaxTokensPerBatch = 8192,
    device: Device = None,
    dtype: DType = None,
) -> None:
    """Measure students against their teacher: size, quality, retention and decoding speed."""
    from vaswani.distillation.comparison import check_metric, load_candidates, sentences_to_decode
    from vaswani.distillation.comparison import compare as compare_models
    from vaswani.distillation.report import as_markdown, prepare_folder, write_report
    from vaswani.inference.files import STANDARD_STREAM, LineWriter

    check_metric(metric)
    _hide_library_progress()
    candidates = load_candidates(
        [teacher, *students, *([baseline] if baseline else [])],
        device=device,
        dtype=dtype,
        num_beams=num_beams,
        length_penalty=length_penalty,
        max_length=max_length,
        max_tokens_per_batch=max_tokens_per_batch,
    )
    if output is None and not Path(students[0]).is_dir():
        raise UserError(f"{students[0]} is not a folder here to write the report into; give --output FOLDER")
    folder = output or Path(students[0])
    prepare_folder(folder)
    split, rows = _load_split(
        [data], split, dataset_config=dataset_config, source_field=source_field, target_field=target_field
    )
    with _progress_bar(sentences_to_decode(len(candidates), len(rows)), " sentences") as bar:
        comparison = compare_models(
            candidates[0],
            candidates[1 : 1 + len(students)],
            rows,
            data=f"{split} of {_without_folders(data)}" + (f" ({dataset_config})" if dataset_config else ""),
            baseline=candidates[-1] if baseline else None,
            metric=metric,
            progress=bar.update,
        )
    LineWriter(STANDARD_STREAM).write(as_markdown(comparison).rstrip("\n"))
    write_report(comparison, folder)
    _warn(f"wrote the report into {folder}")


ModelFolder = Annotated[Path, typer.Option("--model", help="Folder of a trained model.")]
Languages = Annotated[list[str] | None, typer.Option("--language", help="Code of a language; repeatable.")]
License = Annotated[
    str | None, typer.Option("--license", help="Of the model, as the Hub calls it: apache-2.0, mit ...")
]
DataName = Annotated[str | None, typer.Option("--data_name", help="How the data are called.")]
DataUrl = Annotated[str | None, typer.Option("--data_url", help="Where they come from.")]
DataLicense = Annotated[str | None, typer.Option("--data_license", help="Under which licence.")]


@app.command()
def card(
    model: ModelFolder,
    repo: Annotated[
        str | None, typer.Option("--repo", metavar="NAME", help="That it will have on the Hub.")
    ] = None,
    language: Languages = None,
    license_name: License = None,
    data_name: DataName = None,
    data_url: DataUrl = None,
    data_license: DataLicense = None,
) -> None:
    """Print the card of a model, from what its folder tells of the run.

    The options after --repo add to that, or replace it. A training takes
    them too, as fields of its configuration.
    """
    from vaswani.hub.card import model_card
    from vaswani.inference.files import STANDARD_STREAM, LineWriter

    facts = _facts(model, language, license_name, data_name, data_url, data_license)
    name = repo or model.absolute().name
    LineWriter(STANDARD_STREAM).write(str(model_card(facts, name)).rstrip("\n"))


@app.command()
def push(
    model: ModelFolder,
    repo: Annotated[str, typer.Option("--repo", metavar="NAME", help="owner/name, or a name of your own.")],
    private: Annotated[bool, typer.Option("--private", help="If the repository is made.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, made if need be. Default: main.")] = None,
    language: Languages = None,
    license_name: License = None,
    data_name: DataName = None,
    data_url: DataUrl = None,
    data_license: DataLicense = None,
) -> None:
    """Push a model to the Hub with its code, tokenizers and card.

    The options after --revision are for the card (see vaswani card). The
    token is that of `hf auth login` or HF_TOKEN.
    """
    from vaswani.hub.push import check_folder, push_folder

    _hide_library_progress()
    check_folder(model)
    facts = _facts(model, language, license_name, data_name, data_url, data_license)
    print(f"published {push_folder(model, repo, facts, private=private or None, revision=revision)}")


def _facts(
    model: Path,
    language: list[str] | None,
    license_name: str | None,
    data_name: str | None,
    data_url: str | None,
    data_license: str | None,
) -> "RunFacts":
    """What a model's folder tells, and what was stated besides or instead."""
    from vaswani.hub.run_facts import read_run_facts

    return read_run_facts(model).with_settings(
        language=language,
        license=license_name,
        data_name=data_name,
        data_url=data_url,
        data_license=data_license,
    )


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a training, finished or going on.")],
) -> None:
    """Draw the curves of a training into its folder, and print what it has come to."""
    from vaswani.insight.curves import read_history, save_curves, summary

    print(summary(read_history(run)))
    print(f"saved {save_curves(run)}")


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


def _load_split(files: list[str], split: str, **fields: Any) -> tuple[str, "Dataset"]:
    """The rows of a data set's split, or of one or two files, whose split is called test; its name first."""
    from vaswani.data.corpus import CorpusSpec, load_corpus
    from vaswani.data.reading import table_format

    is_file = len(files) == 2 or Path(files[0]).is_file() or table_format(Path(files[0])) is not None
    spec = CorpusSpec(**({"test_file": files} if is_file else {"dataset": files[0]}), **fields)
    split = "test" if is_file else split
    corpus = load_corpus(spec, [split])
    rows = corpus.split(split)
    _warn(f"{split} of {' and '.join(files)}: {corpus.reports[split]}")
    return split, rows


def _without_folders(data: str) -> str:
    """For a report that others read: what is called `owner/name` and is no path here is a name on the Hub."""
    return Path(data).name if Path(data).exists() else data


def _hide_library_progress() -> None:
    """Bars of the loading and writing of weights; those of trainings and of ours stay."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def _load_translator(model: str, **options: Any) -> "Translator":
    from vaswani.inference.translation import Translator

    _hide_library_progress()
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
        was_asked_to = isinstance(error, StoppedError) or isinstance(error.__cause__, KeyboardInterrupt)
        if message and not (was_asked_to and _rank() > 0):  # several processes stop as one
            _tell(message)
        return status
    if status == TYPER_INTERRUPTED:
        print("vaswani: interrupted", file=sys.stderr)
        return 1
    return status or 0


def _rank() -> int:
    """The number of this process among those that run the command together."""
    return int(os.environ.get("RANK", "0"))


def _tell(message: str) -> None:
    """On standard error; of several processes the first speaks for all that fail alike."""
    rank = _rank()
    if rank > 0:
        time.sleep(SECONDS_BEFORE_THE_OTHERS_TELL)  # launchers end the others when one has failed
    print(f"vaswani: {f'process {rank}: ' if rank > 0 else ''}{message}", file=sys.stderr, flush=True)


def _status_and_message(error: Exception) -> tuple[int, str]:
    if isinstance(error, UserError | RunError):
        return error.exit_status, str(error)
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
