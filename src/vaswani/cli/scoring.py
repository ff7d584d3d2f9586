"""`vaswani score`."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaswani.cli.app import app
from vaswani.cli.options import (
    TRANSLATOR_DEFAULTS,
    BufferSize,
    LengthPenalty,
    MaxSourceLength,
    OutputName,
    PaddedTokensPerBatch,
    PairsName,
    TargetFile,
    language_options,
    model_option,
    number,
    takes_engine_options,
    takes_language_options,
    trained_field,
)
from vaswani.cli.screen import warn
from vaswani.cli.splits import columns_of_training
from vaswani.cli.text_jobs import write_results
from vaswani.errors import UserError

if TYPE_CHECKING:
    from vaswani.inference.inputs import Texts
    from vaswani.inference.pair_inputs import Pairs


@app.command()
@takes_engine_options
@takes_language_options
def score(
    model: Annotated[
        str, model_option("--model", help="Folder or Hub name of an encoder-decoder or language model.")
    ],
    input_name: PairsName = "-",
    target_file: TargetFile = None,
    output_name: OutputName = "-",
    source_field: Annotated[str | None, trained_field("source_field", "sources", "source")] = None,
    target_field: Annotated[
        str | None, trained_field("target_field", "targets, or n-best lists", "target, or hypotheses")
    ] = None,
    text_field: Annotated[
        str | None, trained_field("text_field", "texts, for a language model", "text")
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Also write the tokens, each with its log-probability.")
    ] = False,
    length_penalty: LengthPenalty = 0.6,
    max_source_length: MaxSourceLength = None,
    too_long: Annotated[
        str | None,
        typer.Option(
            "--too_long",
            metavar="cut|skip",
            help="For longer sources: cut reads the beginning, skip scores nothing. Default: skip, or cut if "
            "--max_source_length is given.",
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        number(
            "--max_length",
            help="Targets and texts with more tokens are not scored. Default: the model's maximum, or 4096 "
            "if it has none.",
            at_least=1,
        ),
    ] = None,
    max_tokens_per_batch: PaddedTokensPerBatch = 8192,
    buffer_size: BufferSize = None,
    **loading: Any,
) -> None:
    """Score given texts: log-probabilities and perplexities, as JSON Lines.

    Encoder-decoders score pairs of a source and a target, and sort n-best
    lists, such as those of translate --n_best. Language models score texts;
    masked ones by masking each token in turn.
    """
    from vaswani.files.line_files import check_not_input
    from vaswani.inference.score.files import ADDED, score_inputs
    from vaswani.inference.score.scorer import Scorer, kind_of_checkpoint

    check_not_input(output_name, input_name, target_file)
    is_seq2seq = kind_of_checkpoint(model, loading["revision"]) == "seq2seq"
    of_pairs = {
        "max_source_length": max_source_length,
        "too_long": too_long,
        **language_options(loading),
    }
    fields = {"source_field": source_field, "target_field": target_field, "text_field": text_field}
    _check_options(is_seq2seq, {**of_pairs, **fields, "length_penalty": length_penalty}, target_file)
    options: dict[str, Any] = {name: value for name, value in of_pairs.items() if value is not None}
    added = [name for name in ADDED if tokens or name != "tokens"]
    with _open_input(model, is_seq2seq, input_name, target_file, fields, added) as (texts, target_field):
        if target_file is not None and length_penalty != TRANSLATOR_DEFAULTS["length_penalty"]:
            raise UserError(
                f"--length_penalty={length_penalty} sorts lists of targets, and a line of {target_file} is "
                "one target; leave it out"
            )
        load = partial(
            Scorer.from_pretrained,
            model,
            length_penalty=length_penalty,
            max_length=max_length,
            max_tokens_per_batch=max_tokens_per_batch,
            **options,
            **loading,
        )
        report = write_results(
            load,
            texts,
            score_inputs,
            output_name,
            buffer_size,
            target_field=target_field,
            with_tokens=tokens,
            warn=warn,
        )
    warn(f"scored {report}")


def _check_options(is_seq2seq: bool, given: dict[str, Any], target_file: str | None) -> None:
    """Raise `UserError` for an option that has no effect on the model."""
    if is_seq2seq:
        unused, kinds = ["text_field"], ("a language model", "an encoder-decoder")
    else:
        unused = [name for name in given if name != "text_field"]
        kinds = "an encoder-decoder", "a language model"
        if target_file is not None:
            raise UserError(f"TARGET_FILE {target_file} is for {kinds[0]}, and the model is {kinds[1]}")
    for name in unused:
        if given[name] not in (None, TRANSLATOR_DEFAULTS.get(name)):
            raise UserError(f"--{name} is for {kinds[0]}, and the model is {kinds[1]}; leave it out")


@contextmanager
def _open_input(
    model: str,
    is_seq2seq: bool,
    name: str,
    target_file: str | None,
    fields: dict[str, str | None],
    added: list[str],
) -> "Iterator[tuple[Texts | Pairs, str]]":
    """Open the texts or pairs of the input; also yield the field of the targets."""
    from vaswani.inference.inputs import open_texts
    from vaswani.inference.pair_inputs import TARGET, open_pairs

    if is_seq2seq:
        of_row = fields["source_field"], fields["target_field"]
        defaults = columns_of_training(model, source_field="source", target_field="target")
        with open_pairs(name, target_file, *of_row, added=added, defaults=defaults, lists=True) as opened:
            yield opened
    else:
        (default,) = columns_of_training(model, text_field="text")
        where: dict[str, Any] = {"option": "text_field", "default": default, "added": added}
        with open_texts(name, fields["text_field"], **where) as texts:
            yield texts, TARGET
