"""`vaswani align`."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaswani.cli.app import app
from vaswani.cli.options import (
    BufferSize,
    MaxSourceLength,
    OutputName,
    PaddedTokensPerBatch,
    PairsName,
    ReverseSourcePrefix,
    TargetFile,
    added_field,
    model_option,
    number,
    numbers_in,
    takes_language_options,
    takes_loading_options,
    takes_options_of,
    trained_field,
)
from vaswani.cli.screen import warn
from vaswani.cli.splits import columns_of_training
from vaswani.cli.text_jobs import check_kind, check_line_options, write_results
from vaswani.errors import UserError

if TYPE_CHECKING:
    from vaswani.inference.align.aligner import Aligner, SymmetricAligner


def _attention_options(
    layer: Annotated[
        str | None,
        typer.Option(
            "--layer",
            metavar="N|all",
            help="Decoder layer whose attention is used: 0 is the first, -1 the last. Default: the second to "
            "last, or the last of up to three layers.",
        ),
    ] = None,
    heads: Annotated[
        str, typer.Option("--heads", metavar="all|N[,N...]", help="Heads that are averaged, from 0.")
    ] = "all",
    step: Annotated[
        str,
        typer.Option(
            "--step",
            metavar="predict|read",
            help="Attention of the decoder step that predicts a target token, or of the step that reads it.",
        ),
    ] = "predict",
    max_source_length: MaxSourceLength = None,
    too_long: Annotated[
        str,
        typer.Option(
            "--too_long",
            metavar="cut|skip",
            help="For longer sources: cut aligns the words of the beginning, skip aligns nothing.",
        ),
    ] = "skip",
    max_length: Annotated[
        int | None,
        number(
            "--max_length",
            help="Pairs whose target has more tokens are not aligned. Default: the model's maximum, or 4096 "
            "if it has none.",
            at_least=1,
        ),
    ] = None,
    max_tokens_per_batch: PaddedTokensPerBatch = 8192,
) -> None:
    """Declare the options of an `Aligner`."""


@app.command()
@takes_loading_options
@takes_language_options
@takes_options_of(_attention_options)
def align(
    model: Annotated[str, model_option("--model", help="Folder or Hub name of an encoder-decoder.")],
    input_name: PairsName = "-",
    target_file: TargetFile = None,
    output_name: OutputName = "-",
    source_field: Annotated[str | None, trained_field("source_field", "sources", "source")] = None,
    target_field: Annotated[str | None, trained_field("target_field", "targets", "target")] = None,
    output_field: Annotated[str | None, added_field("alignment")] = None,
    reverse_model: Annotated[
        str | None,
        model_option("--reverse_model", help="Folder or Hub name of a model from target to source."),
    ] = None,
    reverse_source_prefix: ReverseSourcePrefix = None,
    symmetrize: Annotated[
        str | None,
        typer.Option(
            "--symmetrize",
            metavar="METHOD",
            help="With --reverse_model: intersection, union, grow-diag, grow-diag-final or "
            "grow-diag-final-and (default).",
        ),
    ] = None,
    gold: Annotated[
        str | None,
        typer.Option(
            "--gold",
            metavar="FILE",
            help="Links of annotators, one line per pair: 0-0 is a sure link, 1p2 a possible one. Reports "
            "the alignment error rate.",
        ),
    ] = None,
    buffer_size: BufferSize = None,
    **options: Any,
) -> None:
    """Align the words of sources and targets by an encoder-decoder's attention.

    Each pair gives a line of links such as 0-0 1-2: a word of the source and
    one of the target, counted from 0. Each row of a table gives a line of
    JSON: the row with its links.
    """
    from vaswani.files.line_files import check_not_input
    from vaswani.inference.align.files import align_pairs, load_gold
    from vaswani.inference.align.links import check_method
    from vaswani.inference.other_direction import check_other_direction
    from vaswani.inference.pair_inputs import open_pairs

    check_not_input(output_name, input_name, target_file, gold)
    if symmetrize is not None and reverse_model is None:
        raise UserError("--symmetrize is for two directions; add --reverse_model, or leave it out")
    if reverse_source_prefix is not None and reverse_model is None:
        raise UserError("--reverse_source_prefix is for two directions; add --reverse_model, or leave it out")
    check_method(method := symmetrize or "grow-diag-final-and")
    languages = options.pop("source_language"), options.pop("target_language")
    if reverse_model is not None:
        prefixes = options["source_prefix"], reverse_source_prefix
        check_other_direction(model, reverse_model, languages, prefixes, options["allow_mismatch"])
    of_model = {name: options.pop(name) for name in ("revision", "source_prefix")}  # of --model only
    of_reverse = {"source_prefix": reverse_source_prefix}
    options["layer"], options["heads"] = _layer(options["layer"]), _heads(options["heads"])
    options["max_source_length"] = options["max_source_length"] or "auto"
    added = output_field or "alignment"
    check_kind(model, "AutoModelForSeq2SeqLM")
    defaults = columns_of_training(model, source_field="source", target_field="target")
    fields: dict[str, Any] = {"source_field": source_field, "target_field": target_field}
    with open_pairs(input_name, target_file, **fields, defaults=defaults, added=[added]) as (pairs, _):
        option = None if output_field is None else f"--output_field {output_field}"
        remedy = "give a table, whose rows come back as lines of JSON"
        check_line_options(pairs, input_name, output_name, option, remedy)
        gold_links = None if gold is None else load_gold(gold, pairs.total)
        models = (model, of_model), (reverse_model, of_reverse)
        load = partial(_load_aligner, *models, method, languages, options)
        report = write_results(
            load, pairs, align_pairs, output_name, buffer_size, gold=gold_links, output_field=added, warn=warn
        )
    warn(f"aligned {report}")


def _load_aligner(
    model: tuple[str, dict[str, Any]],
    reverse_model: tuple[str | None, dict[str, Any]],
    method: str,
    languages: tuple[str | None, str | None],
    options: dict[str, Any],
) -> "Aligner | SymmetricAligner":
    """Load the models of one or both directions.

    Args:
        model: the model from source to target, with the options that are its own.
        reverse_model: the model from target to source, None for one direction; with its own options.
        method: how to combine the directions.
        languages: of the sources and of the targets.
        options: options of both.
    """
    from vaswani.data.tokenization import load_tokenizers
    from vaswani.hub.checkpoint import local_folder
    from vaswani.inference.align.aligner import Aligner, SymmetricAligner
    from vaswani.inference.other_direction import exchanged_languages

    def load(name: str, own: dict[str, Any], source: str | None, target: str | None) -> Aligner:
        return Aligner.from_pretrained(name, source_language=source, target_language=target, **own, **options)

    forward = load(*model, *languages)
    reverse, own = reverse_model
    if reverse is None:
        return forward
    tokenizers = forward.pairs.sources.tokenizer, forward.pairs.targets.tokenizer
    turned = load_tokenizers(local_folder(reverse, weights=False))
    return SymmetricAligner(
        forward, load(reverse, own, *exchanged_languages(languages, tokenizers, turned)), method
    )


def _layer(text: str | None) -> Any:
    if text in (None, "all"):
        return text
    try:
        return int(text)
    except ValueError:
        raise UserError(f"--layer {text}: expected all, or a number such as 2 or -1") from None


def _heads(text: str) -> list[int] | None:
    if text == "all":
        return None
    return numbers_in(text, int, f"--heads {text}: expected all, or numbers such as 0,3")
