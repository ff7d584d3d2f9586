"""`vaswani generate`."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from vaswani.cli.app import app
from vaswani.cli.options import (
    BufferSize,
    InputName,
    NoRepeatNgramSize,
    OutputName,
    RepetitionPenalty,
    SamplingSeed,
    Temperature,
    TopK,
    TopP,
    added_field,
    check_stream_options,
    model_option,
    number,
    taken,
    takes_engine_options,
    takes_options_of,
    trained_field,
)
from vaswani.cli.screen import warn
from vaswani.cli.text_jobs import check_kind, check_line_options, stream_results, write_results
from vaswani.errors import UserError


def _search_options(
    max_new_tokens: Annotated[
        int, number("--max_new_tokens", help="Maximum number of tokens of a continuation.", at_least=1)
    ] = 128,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop", metavar="TEXT", help="A continuation ends before this text; may be given several times."
        ),
    ] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: SamplingSeed = None,
    no_repeat_ngram_size: NoRepeatNgramSize = None,
    repetition_penalty: RepetitionPenalty = None,
    too_long: Annotated[
        str,
        typer.Option(
            "--too_long",
            metavar="cut|skip",
            help="For prompts that leave the model too few positions: cut reads only their end; skip "
            "shortens the continuation, or writes an empty one if none fits.",
        ),
    ] = "skip",
) -> None:
    """Declare the options of `check_generation`."""


@app.command()
@takes_engine_options
@takes_options_of(_search_options)
def generate(
    model: Annotated[str, model_option("--model", help="Folder or Hub name of a causal language model.")],
    input_name: InputName = "-",
    output_name: OutputName = "-",
    prompt_field: Annotated[str | None, trained_field("prompt_field", "prompt", "prompt")] = None,
    messages_field: Annotated[
        str | None,
        typer.Option(
            "--messages_field",
            help="Table field of chats, lists of messages with role and content, instead of prompts. "
            "Default: as in training.",
        ),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat",
            help="Each prompt is the message of a user, to be answered by the tokenizer's chat template. "
            "Default for lines if the model was trained on chats.",
        ),
    ] = False,
    output_field: Annotated[str | None, added_field("continuation")] = None,
    num_samples: Annotated[
        int | None,
        number(
            "--num_samples",
            help="Number of continuations of each prompt; written with their scores as JSONL.",
            at_least=1,
        ),
    ] = None,
    max_tokens_per_batch: Annotated[
        int, number("--max_tokens_per_batch", help="Tokens per batch, of prompts and outputs.", at_least=1)
    ] = 8192,
    buffer_size: BufferSize = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Write each word of lines of text as soon as it is found."),
    ] = False,
    **options: Any,
) -> None:
    """Continue prompts, or answer chats, by a causal language model.

    Each input line gives one output line, its continuation. Each row of a table
    gives a line of JSON: the row with its continuation.
    """
    from vaswani.files.line_files import check_not_input
    from vaswani.files.run_settings import read_settings

    search = taken(_search_options, options)
    search["stop"] = search["stop"] or ()
    if num_samples is not None and output_field is not None:
        raise UserError(f"--output_field {output_field} has no effect with --num_samples; leave it out")
    if stream:
        check_stream_options({"--num_samples": num_samples, "--buffer_size": buffer_size})
    check_not_input(output_name, input_name)
    check_kind(model, "AutoModelForCausalLM")
    fields = {"prompt_field": prompt_field, "messages_field": messages_field}
    added, trained = output_field or "continuation", read_settings(Path(model))
    with _open_prompts(input_name, fields, trained, chat, None if num_samples else added) as texts:
        from vaswani.inference.generate.files import generate_texts, stream_texts
        from vaswani.inference.generate.generation import TextGenerator, check_generation

        check_generation(**search).check_samples(num_samples or 1)
        option = None if output_field is None else "--output_field"
        remedy = "add --num_samples for lines of JSON" if num_samples is None else None
        check_line_options(texts, input_name, output_name, option, remedy)
        options["chat"] = chat or (texts.row is None and trained.get("messages_field") is not None)
        options["max_tokens_per_batch"] = max_tokens_per_batch
        load = partial(TextGenerator.from_pretrained, model, **search, **options)
        if stream:
            report = stream_results(load, texts, stream_texts, output_name, warn=warn)
        else:
            results: dict[str, Any] = {"num_samples": num_samples, "output_field": added, "warn": warn}
            report = write_results(load, texts, generate_texts, output_name, buffer_size, **results)
    warn(f"continued {report}")


def _open_prompts(
    name: str, fields: dict[str, str | None], trained: dict[str, Any], chat: bool, added: str | None
) -> Any:
    """Open prompts or chats; a field that is not given is that of the training.

    Args:
        name: name of the input.
        fields: the options "prompt_field" and "messages_field".
        trained: settings of the training.
        chat: whether prompts are messages of users.
        added: field that the output adds to a row; None for those of several continuations.
    """
    from vaswani.inference.inputs import open_texts

    prompt, messages = fields["prompt_field"], fields["messages_field"]
    if messages is not None and (prompt is not None or chat):
        other = "--chat" if prompt is None else f"--prompt_field {prompt}"
        raise UserError(f"{other} and --messages_field {messages} exclude each other; give one")
    of_training = None if prompt is not None or chat else trained.get("messages_field")
    if messages is None and of_training is None:
        option, given, default = "prompt_field", prompt, trained.get("prompt_field") or "prompt"
    else:
        option, given, default = "messages_field", messages, of_training
    return open_texts(
        name,
        given,
        option=option,
        default=default,
        added=["continuations", "problem", "prompt_cut_off"] if added is None else [added],
        remedy="rename it" if added is None else "choose another with --output_field",
        chats=option == "messages_field",
    )
