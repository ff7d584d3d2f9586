"""`vaswani embed`."""

from collections.abc import Iterator
from itertools import tee
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaswani.cli.app import app
from vaswani.cli.options import (
    InputName,
    PaddedTokensPerBatch,
    model_option,
    number,
    numbers_in,
    takes_engine_options,
    takes_options_of,
    trained_field,
)
from vaswani.cli.screen import begin_work, progress_of_texts, warn
from vaswani.cli.splits import columns_of_training
from vaswani.errors import UserError

if TYPE_CHECKING:
    from vaswani.inference.embed.embedding import Unit
    from vaswani.inference.inputs import Texts


def _vector_options(
    pooling: Annotated[
        str | None,
        typer.Option(
            "--pooling",
            help="How to pool a text's tokens: mean, cls, max or last. Default: as saved by "
            "sentence-transformers, else mean.",
        ),
    ] = None,
    subtoken_pooling: Annotated[
        str | None,
        typer.Option(
            "--subtoken_pooling",
            help="How to pool a word's tokens: first (default), last, first_last or mean.",
        ),
    ] = None,
    layers: Annotated[
        str,
        typer.Option("--layers", help="Layers to use: last, all, or numbers such as -1,-2; 0 is embeddings."),
    ] = "last",
    combine: Annotated[
        str,
        typer.Option(
            "--combine", help="How to combine layers: concat, mean, or the .safetensors file of a ScalarMix."
        ),
    ] = "concat",
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale each vector to length 1.")] = False,
    max_length: Annotated[
        int | None,
        number(
            "--max_length",
            help="Maximum number of tokens per line. Default: the model's maximum, or 4096 if it has none.",
            at_least=1,
        ),
    ] = None,
    truncation: Annotated[
        bool, typer.Option("--truncation", help="Truncate longer lines, and report how many.")
    ] = False,
    max_tokens_per_batch: PaddedTokensPerBatch = 8192,
) -> None:
    """Declare the options of an `Embedder`."""


@app.command()
@takes_engine_options
@takes_options_of(_vector_options)
def embed(
    model: Annotated[str, model_option("--model", help="Folder or Hub name of a trained model.")],
    input_name: InputName = "-",
    output_name: Annotated[
        str,
        typer.Option(
            "--output",
            metavar="FILE|-",
            help="JSON Lines; or a .npy or .safetensors file, which needs memory for all vectors.",
        ),
    ] = "-",
    text_field: Annotated[str | None, trained_field("text_field", "text", "text")] = None,
    words: Annotated[bool, typer.Option("--words", help="Compute one vector per word.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Compute one vector per token.")] = False,
    backward_model: Annotated[
        str | None,
        model_option(
            "--backward_model",
            help="With --words: a model trained on reversed text; its vectors are appended (FLAIR).",
        ),
    ] = None,
    **options: Any,
) -> None:
    """Embed text line by line, or a field of a table: a vector for each text, word or token."""
    from vaswani.files.line_files import check_not_input
    from vaswani.inference.batches import BUFFERED_TEXTS
    from vaswani.inference.embed.embedding import Embedder, check_pooling
    from vaswani.inference.embed.vector_files import added_fields, check_output, write_vectors
    from vaswani.inference.embed.word_vectors import stack_word_vectors
    from vaswani.inference.inputs import open_texts

    unit = _unit(words, tokens)
    _check_options(unit, options["pooling"], options["subtoken_pooling"], backward_model)
    check_output(unit, output_name)
    if unit == "text":
        check_pooling()
    check_not_input(output_name, input_name)
    revision = options.pop("revision")  # of --model only
    options["pooling"] = options["pooling"] or (None if unit == "text" else "mean")
    options["subtoken_pooling"] = options["subtoken_pooling"] or "first"
    options["layers"], options["combine"] = _layers(options["layers"]), _combination(options["combine"])
    normalize = options["normalize"]
    options["normalize"] = normalize and not backward_model  # else the whole vectors, not their parts
    begin_work()
    (default,) = columns_of_training(model, text_field="text")
    where: dict[str, Any] = {"option": "text_field", "default": default, "added": added_fields(unit)}
    with open_texts(input_name, text_field, **where) as texts:
        embedder = Embedder.from_pretrained(model, revision=revision, **options)
        buffer_size = 1 if texts.typed else BUFFERED_TEXTS
        report, found = texts.report, _counting_empty(texts)
        with progress_of_texts(texts, output_name) as bar:
            if backward_model:
                backward = Embedder.from_pretrained(backward_model, backward=True, **options)
                first, second = tee(found)
                streams = (
                    embedder.stream(first, "word", buffer_size=buffer_size, progress=bar.update),
                    backward.stream(second, "word", buffer_size=buffer_size),
                )
                results = stack_word_vectors(streams, normalize)
            else:
                results = embedder.stream(found, unit, buffer_size=buffer_size, progress=bar.update)
            write_vectors(results, texts, unit, output_name)
    report.cut_off = embedder.truncated
    warn(f"embedded {report}")


def _counting_empty(texts: "Texts") -> Iterator[str]:
    """Yield the texts, and count the empty ones, whose vectors are zero, in the report."""
    for text in texts:
        texts.report.empty += not text.strip()
        yield text


def _unit(words: bool, tokens: bool) -> "Unit":
    if words and tokens:
        raise UserError("--words and --tokens exclude each other; give one of them")
    return "word" if words else "token" if tokens else "text"


def _check_options(
    unit: "Unit", pooling: str | None, subtoken_pooling: str | None, backward_model: str | None
) -> None:
    """Raise `UserError` for an option that would have no effect."""
    if pooling and unit != "text":
        raise UserError(f"--pooling is for vectors of texts, not of {unit}s; leave it out")
    for name, value in {"subtoken_pooling": subtoken_pooling, "backward_model": backward_model}.items():
        if value and unit != "word":
            raise UserError(f"--{name} is for vectors of words; add --words, or leave it out")


def _layers(text: str) -> Any:
    if text in ("last", "all"):
        return text
    return numbers_in(text, int, f"--layers {text}: expected last, all or numbers such as -1,-2")


def _combination(text: str) -> Any:
    from vaswani.inference.embed.embedding import load_scalar_mix

    return load_scalar_mix(text) if text.endswith(".safetensors") else text
