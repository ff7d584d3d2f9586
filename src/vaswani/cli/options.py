"""Options that several commands take, and how numeric options declare their bounds."""

import inspect
import os
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer

from vaswani.bounds import LARGEST_ALPHA, LARGEST_SEED, MAX_BEAMS, Bounds
from vaswani.errors import UserError
from vaswani.hub.names import check_model_name

Number = TypeVar("Number", int, float)


def number(*names: str, help: str, **bounds: Any) -> Any:
    """Declare a numeric option.

    Args:
        names: names of the option.
        help: its help text.
        bounds: as for `Bounds`.
    """
    limits = Bounds(**bounds)

    def check(parameter: typer.CallbackParam, value: float | None) -> float | None:
        if value is not None:
            limits.check(parameter.opts[0].lstrip("-"), value)
        return value

    return typer.Option(*names, help=help, callback=check)


def seed_of(what: str) -> Any:
    """Declare the option `--seed`."""
    return number("--seed", help=f"Seed of {what}.", at_least=0, at_most=LARGEST_SEED)


def model_option(*names: str, help: str) -> Any:
    """Declare an option for a model: a folder, or a name on the Hub."""
    return typer.Option(*names, help=help, callback=check_models)


def check_models(value: str | list[str] | None) -> str | list[str] | None:
    """Raise `UserError` before slow imports if a model is a path that does not exist."""
    for name in [value] if isinstance(value, str) else value or ():
        check_model_name(name)
    return value


def check_text_file(name: str | None) -> str | None:
    """Raise `UserError` if a folder is given as the file of targets, such as a model without its option."""
    if name is not None and os.path.isdir(name):
        raise UserError(
            f"TARGET_FILE {name} is a folder; give a text file, or, if it is a model, its option before it"
        )
    return name


def table_field(name: str, of: str, default: str) -> Any:
    """Declare an option for a field of the tables that a command reads.

    Args:
        name: name of the option.
        of: what the field holds, for the help text.
        default: the field that None means, for the help text.
    """
    return typer.Option(
        f"--{name}",
        help=f"Table field of the {of}; a dot selects a nested one. Makes standard input JSONL. "
        f"Default: {default}.",
    )


def trained_field(name: str, of: str, default: str) -> Any:
    """Declare a `table_field` whose default is the column of the model's training, or else another one."""
    return table_field(name, of, f"as in training, or {default}")


def added_field(default: str) -> Any:
    """Declare the option for the field that a command adds to the rows of a table, and its default."""
    return typer.Option("--output_field", help=f"Field to add to the rows of a table. [{default}]")


def column(name: str, what: str, default: str = "as in training") -> Any:
    """Declare an option for a column of the data.

    Args:
        name: name of the option.
        what: what the column holds, for the help text.
        default: the column that None means, for the help text.
    """
    return typer.Option(f"--{name}", help=f"{what}. Default: {default}.")


ModelNames = Annotated[
    list[str],
    model_option(
        "--model",
        help="Folder of a trained model, or the Hub name of an encoder-decoder. Several predict together.",
    ),
]
Split = Annotated[str, typer.Option(help="Split of the data set: train, validation or test.")]
DatasetConfig = Annotated[
    str | None,
    typer.Option(
        "--dataset_config", help="Configuration of the data set; for dates, its locales: de,fr or all."
    ),
]
NumBeams = Annotated[
    int | None,
    number(
        "--num_beams",
        help="Beam size of the search; 1 is greedy. Default: 4.",
        at_least=1,
        at_most=MAX_BEAMS,
    ),
]
LengthPenalty = Annotated[
    float,
    number(
        "--length_penalty",
        help="α of GNMT's length penalty, ((5 + length) / 6)^α.",
        at_least=-LARGEST_ALPHA,
        at_most=LARGEST_ALPHA,
    ),
]
MaxSourceLength = Annotated[
    int | None,
    number(
        "--max_source_length",
        help="Maximum number of source tokens. Default: 1024, or the training limit if that is larger.",
        at_least=1,
    ),
]
TooLongSources = Annotated[
    str | None,
    typer.Option(
        "--too_long",
        metavar="cut|skip",
        help="For longer sources: cut translates the beginning, skip writes an empty line. Default: cut at "
        "--max_source_length, skip at the model's own limit.",
    ),
]
MaxLength = Annotated[
    int,
    number(
        "--max_length",
        help="Maximum number of tokens of a translation; never more than the source's + 50, or than "
        "--max_length_ratio allows.",
        at_least=1,
    ),
]
MinLength = Annotated[
    int | None, number("--min_length", help="Minimum number of tokens of a translation.", at_least=1)
]
MaxLengthRatio = Annotated[
    float | None,
    number(
        "--max_length_ratio",
        help="Maximum tokens of a translation per token of its source, instead of the source's + 50.",
        above=0,
    ),
]
MinLengthRatio = Annotated[
    float | None,
    number("--min_length_ratio", help="Minimum tokens of a translation per token of its source.", above=0),
]
NoRepeatNgramSize = Annotated[
    int | None,
    number(
        "--no_repeat_ngram_size",
        help="No sequence of this many tokens occurs twice in an output; 0 allows all repetitions. Default: "
        "the model's setting.",
        at_least=0,
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    number(
        "--repetition_penalty",
        help="Divides the scores of tokens that are already in an output; above 1 avoids repetition. "
        "Default: the model's setting.",
        above=0,
    ),
]
CoveragePenalty = Annotated[
    float,
    number(
        "--coverage_penalty",
        help="β of GNMT's coverage penalty, which reranks the hypotheses of the search.",
        at_least=0,
    ),
]
MbrMetric = Annotated[
    str | None,
    typer.Option(
        "--mbr_metric",
        metavar="chrf|bleu",
        help="Choose from the hypotheses of the search, or the samples, the one that is most similar to the "
        "others by this metric (minimum Bayes risk).",
    ),
]
ReverseModel = Annotated[
    str | None,
    model_option(
        "--reverse_model",
        help="Folder or Hub name of a model from target to source, which ranks the hypotheses of the search, "
        "or the samples, in addition.",
    ),
]
ReverseSourcePrefix = Annotated[
    str | None,
    typer.Option(
        "--reverse_source_prefix",
        help="The --source_prefix of --reverse_model, such as '>>fra<< '. Default: as saved with it.",
    ),
]
ReverseWeight = Annotated[
    float | None,
    number("--reverse_weight", help="Weight of the scores of --reverse_model. Default: 0.4.", above=0),
]
Temperature = Annotated[
    float | None,
    number(
        "--temperature",
        help="Sample instead of searching, from the softmax of the scores divided by this.",
        above=0,
    ),
]
TopK = Annotated[
    int | None, number("--top_k", help="Sample from this many of the most likely tokens.", at_least=1)
]
TopP = Annotated[
    float | None,
    number(
        "--top_p",
        help="Sample from the most likely tokens that together have this probability.",
        above=0,
        at_most=1,
    ),
]
SamplingSeed = Annotated[
    int | None,
    number("--seed", help="Seed of sampling. Default: 0.", at_least=0, at_most=LARGEST_SEED),
]
ReplaceUnknown = Annotated[
    bool,
    typer.Option(
        "--replace_unknown",
        help="Replace each unknown token by the source word that it attends to most.",
    ),
]
BannedPhrases = Annotated[
    list[str] | None,
    typer.Option("--ban", metavar="TEXT", help="No output contains this text; may be given several times."),
]
RequiredPhrases = Annotated[
    list[str] | None,
    typer.Option(
        "--require", metavar="TEXT", help="Every output contains this text; may be given several times."
    ),
]
MaxTokensPerBatch = Annotated[
    int,
    number("--max_tokens_per_batch", help="Tokens per batch, of sources and expected outputs.", at_least=1),
]
PaddedTokensPerBatch = Annotated[
    int, number("--max_tokens_per_batch", help="Tokens per batch, including padding.", at_least=1)
]
BufferSize = Annotated[
    int | None,
    number("--buffer_size", help="Texts to read ahead. Default: 4096, or 1 from a terminal.", at_least=1),
]
SourceLanguage = Annotated[
    str | None,
    typer.Option(
        "--source_language",
        help="Language of the sources, as a multilingual tokenizer names it: en, eng_Latn, en_XX ...",
    ),
]
TargetLanguage = Annotated[str | None, typer.Option("--target_language", help="Language to translate into.")]
SourcePrefix = Annotated[
    str | None,
    typer.Option(
        "--source_prefix",
        help="Text before each source, such as 'translate English to German: ' for T5; '' for none. Default: "
        "as saved with the tokenizer.",
    ),
]
Device = Annotated[
    str | None, typer.Option("--device", help="Device. Default: a CUDA device if there is one, else cpu.")
]
Revision = Annotated[
    str | None, typer.Option("--revision", help="Branch, tag or commit of a model on the Hub.")
]
AllowMismatch = Annotated[
    bool,
    typer.Option(
        "--allow_mismatch",
        help="Warn, instead of failing, if tokenizers or weights seem to belong to another model.",
    ),
]
DType = Annotated[
    str | None,
    typer.Option("--dtype", help="Type of the weights: float32, bfloat16 or float16. Default: as saved."),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="torch|ctranslate2|onnx",
        help="Engine that runs the model: torch, or the engine that `vaswani export` wrote the folder for.",
    ),
]
Threshold = Annotated[
    float | None,
    number(
        "--threshold",
        help="For multi-label classification: predict labels with a probability above this. Default: 0.5.",
        above=0,
        below=1,
    ),
]
NullThreshold = Annotated[
    float | None,
    number(
        "--null_score_diff_threshold",
        help="For question answering: give no answer if the score of no answer exceeds that of the best one "
        "by more than this. Default: as in training; without one, always answer.",
    ),
]
DocStride = Annotated[
    int | None,
    number(
        "--doc_stride",
        help="For question answering: tokens that a window shares with the one before it. Default: as in "
        "training, or 128; less in short windows.",
        at_least=0,
    ),
]
MaxQuestionLength = Annotated[
    int | None,
    number(
        "--max_question_length",
        help="For question answering: maximum tokens of a question. Default: as in training, or 64; less in "
        "short windows.",
        at_least=1,
    ),
]
MaxAnswerLength = Annotated[
    int | None,
    number(
        "--max_answer_length",
        help="For question answering: maximum tokens of an answer. Default: as in training, or 30.",
        at_least=1,
    ),
]
OnnxEngine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="torch|onnx",
        help="Engine that runs the model: torch, or onnx for the output of `vaswani export --to onnx`.",
    ),
]
Quantization = Annotated[
    str | None,
    typer.Option(
        "--quantization",
        metavar="int8",
        help="Quantize the weights after loading; needs engine torch and a CPU with VNNI instructions.",
    ),
]
EnsembleWeights = Annotated[
    str | None,
    typer.Option(
        "--ensemble_weights",
        metavar="W,W,...",
        help="Weights of several models, above 0. Default: equal ones.",
    ),
]
EnsembleAverage = Annotated[
    str | None,
    typer.Option(
        "--ensemble_average",
        metavar="probabilities|log_probabilities",
        help="What to average over several models. Default: probabilities.",
    ),
]
InputName = Annotated[
    str,
    typer.Option(
        "--input",
        metavar="FILE|-",
        help="UTF-8 text (also .gz), or the rows of a .jsonl, .json, .csv, .tsv (also .gz) or .parquet file.",
    ),
]
PairsName = Annotated[
    str,
    typer.Option(
        "--input",
        metavar="FILE|-",
        help="A .jsonl, .json, .csv, .tsv (also .gz) or .parquet file; other files and standard input are "
        "JSONL. Or UTF-8 text; for pairs, the sources, with TARGET_FILE after it.",
    ),
]
TargetFile = Annotated[
    str | None, typer.Argument(help="Text file of targets, line by line.", callback=check_text_file)
]
OutputName = Annotated[
    str,
    typer.Option("--output", metavar="FILE|-", help="Lines go to FILE.partial until all are written."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the scores as one JSON object on the last line.")]
OutputFolder = typer.Argument(metavar="OUT", help="Folder to create; it must be empty or not exist.")


def _translator_options(
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = 0.6,
    max_source_length: MaxSourceLength = None,
    too_long: TooLongSources = None,
    max_length: MaxLength = 1024,
    min_length: MinLength = None,
    max_length_ratio: MaxLengthRatio = None,
    min_length_ratio: MinLengthRatio = None,
    no_repeat_ngram_size: NoRepeatNgramSize = None,
    repetition_penalty: RepetitionPenalty = None,
    coverage_penalty: CoveragePenalty = 0.0,
    mbr_metric: MbrMetric = None,
    reverse_model: ReverseModel = None,
    reverse_weight: ReverseWeight = None,
    reverse_source_prefix: ReverseSourcePrefix = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: SamplingSeed = None,
    replace_unknown: ReplaceUnknown = False,
    banned_phrases: BannedPhrases = None,
    required_phrases: RequiredPhrases = None,
    max_tokens_per_batch: MaxTokensPerBatch = 8192,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    source_prefix: SourcePrefix = None,
    ensemble_weights: EnsembleWeights = None,
    ensemble_average: EnsembleAverage = None,
    engine: Engine = "torch",
    revision: Revision = None,
    device: Device = None,
    dtype: DType = None,
    quantization: Quantization = None,
    allow_mismatch: AllowMismatch = False,
) -> None:
    """Declare the options of `Translator.from_pretrained`."""


def _engine_options(engine: OnnxEngine = "torch", quantization: Quantization = None) -> None:
    """Declare the options of `FromPretrained.from_pretrained` that only some classes take."""


def _language_options(
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    source_prefix: SourcePrefix = None,
) -> None:
    """Declare the languages and the prefix of an encoder-decoder."""


def numbers_in(text: str, of: type[Number], message: str) -> list[Number]:
    """Return the numbers in a comma-separated text; raise a UserError with the message for anything else."""
    try:
        return [of(part) for part in text.split(",")]
    except ValueError:
        raise UserError(message) from None


_DECLARED = inspect.signature(_translator_options).parameters
TRANSLATOR_DEFAULTS: dict[str, Any] = {name: parameter.default for name, parameter in _DECLARED.items()}


def takes_translator_options(
    *left_out: str, **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of `Translator.from_pretrained` to a command, which receives them as `**options`.

    A `max_source_length` that is not given is "auto", as in `Translator`.

    Args:
        left_out: names of options that the command does not take.
        defaults: default values of this command that differ from the usual ones.
    """
    shared = [
        parameter.replace(default=defaults.get(name, parameter.default))
        for name, parameter in _DECLARED.items()
        if name not in left_out
    ]

    def adapt(options: dict[str, Any]) -> None:
        options["max_source_length"] = options["max_source_length"] or "auto"
        if (weights := options.get("ensemble_weights")) is not None:
            message = f"ensemble_weights={weights} must be numbers with commas between them, such as 2,1"
            options["ensemble_weights"] = numbers_in(weights, float, message)

    return lambda command: _with_options(command, shared, adapt)


def check_stream_options(given: dict[str, Any]) -> None:
    """Raise `UserError` for an option that needs the whole output and cannot be used with `--stream`.

    Args:
        given: values of such options by flag.
    """
    for flag, value in given.items():
        if value:
            raise UserError(f"--stream and {flag} exclude each other; leave one out")


def takes_options_of(
    declaration: Callable[..., None],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the parameters of a function to a command, which gets them as `**options`."""
    shared = [*inspect.signature(declaration).parameters.values()]
    return lambda command: _with_options(command, shared)


def taken(declaration: Callable[..., None], options: dict[str, Any]) -> dict[str, Any]:
    """Take the parameters of a function (see `takes_options_of`) out of the options that a command gets."""
    return {name: options.pop(name) for name in inspect.signature(declaration).parameters}


def takes_loading_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `FromPretrained.from_pretrained` to a command, which gets them as `**loading`."""
    shared = [_DECLARED[name] for name in ("revision", "device", "dtype", "allow_mismatch")]
    return _with_options(command, shared)


def takes_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the loading options, with the engine and the quantization, to a command (`**loading`)."""
    return takes_loading_options(takes_options_of(_engine_options)(command))


def takes_language_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the languages and the prefix of an encoder-decoder to a command (see `language_options`)."""
    return takes_options_of(_language_options)(command)


def language_options(options: dict[str, Any]) -> dict[str, str | None]:
    """Take the languages and the prefix out of the options that a command gets."""
    return taken(_language_options, options)


def _with_options(
    command: Callable[..., None],
    shared: list[inspect.Parameter],
    adapt: Callable[[dict[str, Any]], None] = lambda options: None,
) -> Callable[..., None]:
    """Return a command with further options.

    Args:
        command: takes the options as its `**` argument.
        shared: the options to add.
        adapt: called with all values that the command gets; may change them.
    """

    @wraps(command)
    def with_options(*args: Any, **kwargs: Any) -> None:
        adapt(kwargs)
        command(*args, **kwargs)

    signature = inspect.signature(command)
    own = [each for each in signature.parameters.values() if each.kind != each.VAR_KEYWORD]
    with_options.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
    with_options.__annotations__ = {
        **command.__annotations__,
        **{each.name: each.annotation for each in shared},
    }
    return with_options
