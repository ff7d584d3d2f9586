"""Write the results of a model for the texts of an opened input."""

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from vaswani.cli.screen import begin_work, progress_of_texts
from vaswani.files.line_files import LineWriter, check_not_json

if TYPE_CHECKING:
    from vaswani.inference.inputs import Texts
    from vaswani.inference.pair_inputs import Pairs

Report = TypeVar("Report")


def check_kind(name: str, auto_class: str) -> None:
    """Raise `UserError` if an Auto class does not load the model in a folder; call it before a table is read.

    A model on the Hub is checked when it is loaded.
    """
    if not os.path.isdir(name):
        return
    import transformers

    from vaswani.hub.checkpoint import check_serves, local_folder
    from vaswani.hub.run_metadata import read_config

    folder = local_folder(name)
    check_serves(getattr(transformers, auto_class), read_config(folder), folder)


def check_line_options(
    texts: "Texts | Pairs", name: str, output_name: str, option: str | None, remedy: str | None
) -> None:
    """Raise `UserError` if the texts are lines, for an option of tables or an output named like a table.

    Args:
        texts: the texts or pairs of the input.
        name: name of the input.
        output_name: name of the output.
        option: an option of tables that is given, if there is one.
        remedy: how to write lines of JSON; None if they are written.
    """
    from vaswani.inference.inputs import for_tables

    if texts.row is not None:
        return
    if option is not None:
        raise for_tables(option, name)
    if remedy is not None:
        check_not_json(output_name, remedy)


def write_results(
    load: Callable[[], object],
    texts: "Texts | Pairs",
    write_texts: Callable[..., Report],
    output_name: str,
    buffer_size: int | None,
    **options: Any,
) -> Report:
    """Load a model, write its result for each text with a bar of progress, and return the report.

    The output is opened first, so that a name that cannot be written is refused before the model is loaded.

    Args:
        load: loads the model.
        texts: the texts or pairs of the input.
        write_texts: writes the results, such as `translate_lines`.
        output_name: name of the output.
        buffer_size: number of texts to read ahead; None for the default of `write_texts`, or 1 if the user
            types the texts.
        options: further options of `write_texts`.
    """
    if buffer_size is None and texts.typed:
        buffer_size = 1
    if buffer_size is not None:
        options["buffer_size"] = buffer_size
    begin_work()
    with LineWriter(output_name) as writer:
        model = load()
        with progress_of_texts(texts, output_name) as bar:
            return write_texts(model, texts, writer.write, progress=bar.update, **options)


def stream_results(
    load: Callable[[], object],
    texts: "Texts",
    stream_texts: Callable[..., Report],
    output_name: str,
    **options: Any,
) -> Report:
    """Load a model, write each word of its results as soon as it is found, and return the report.

    Args:
        load: loads the model.
        texts: the texts of the input, which must be lines.
        stream_texts: writes the results, such as `stream_lines`.
        output_name: name of the output.
        options: further options of `stream_texts`.

    Raises:
        UserError: the input is a table.
    """
    from vaswani.inference.streaming import check_lines

    check_lines(texts)
    begin_work()
    with LineWriter(output_name) as writer:
        return stream_texts(load(), texts, partial(writer.write, end=""), **options)
