"""Options that several commands take, and how those that are numbers declare their bounds."""

from typing import Annotated, Any

import typer

from vaswani.bounds import LARGEST_ALPHA, LARGEST_SEED, MOST_BEAMS, Bounds


def number(*names: str, help: str, **bounds: Any) -> Any:
    """An option that is a number within bounds.

    Args:
        names: of the option.
        help: its text.
        bounds: as for `Bounds`.
    """
    limits = Bounds(**bounds)

    def check(parameter: typer.CallbackParam, value: float | None) -> float | None:
        if value is not None:
            limits.check(parameter.opts[0].lstrip("-"), value)
        return value

    return typer.Option(*names, help=help, callback=check)


def seed_of(what: str) -> Any:
    """The option `--seed`."""
    return number("--seed", help=f"Of {what}.", at_least=0, at_most=LARGEST_SEED)


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
NumBeams = Annotated[
    int, number("--num_beams", help="Hypotheses kept in the search.", at_least=1, at_most=MOST_BEAMS)
]
LengthPenalty = Annotated[
    float,
    number(
        "--length_penalty",
        help="GNMT's α: ((5 + length) / 6)^α.",
        at_least=-LARGEST_ALPHA,
        at_most=LARGEST_ALPHA,
    ),
]
MaxSourceLength = Annotated[
    int | None,
    number(
        "--max_source_length",
        help="Most tokens of a source. Default: 1024, or what the model was trained on if that is more.",
        at_least=1,
    ),
]
TooLong = Annotated[
    str | None,
    typer.Option(
        "--too_long",
        metavar="cut|skip",
        help="Longer sources: translate their beginning, or leave them empty. Default: skip, or cut if "
        "--max_source_length is given.",
    ),
]
MaxLength = Annotated[
    int,
    number(
        "--max_length", help="Most tokens of a translation; the source's + 50 if that is less.", at_least=1
    ),
]
MaxTokensPerBatch = Annotated[
    int,
    number(
        "--max_tokens_per_batch", help="Tokens of a batch: of sources and what they may become.", at_least=1
    ),
]
Device = Annotated[str | None, typer.Option("--device", help="Default: a CUDA device if there is one.")]
Revision = Annotated[
    str | None, typer.Option("--revision", help="Branch, tag or commit of a model on the Hub.")
]
AllowMismatch = Annotated[
    bool,
    typer.Option(
        "--allow_mismatch", help="Take tokenizers or weights that seem to be another model's, with a warning."
    ),
]
DType = Annotated[
    str | None, typer.Option("--dtype", help="float32, bfloat16 or float16. Default: as saved.")
]
