"""`vaswani attention`."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from vaswani.cli.app import app
from vaswani.cli.options import language_options, model_option, takes_language_options, takes_loading_options
from vaswani.cli.screen import begin_work, warn
from vaswani.errors import UserError

AttendingModel = Annotated[str, model_option("--model", help="Folder or Hub name of a model of any kind.")]
SourceText = Annotated[str, typer.Option("--source", metavar="TEXT", help="Text that the model reads.")]
TargetText = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TEXT",
        help="For an encoder-decoder: the target. Default: the model's own translation. For an encoder: the "
        "second text of a pair.",
    ),
]


@app.command()
@takes_loading_options
@takes_language_options
def attention(
    model: AttendingModel,
    source: SourceText,
    target: TargetText = None,
    output_name: Annotated[
        str, typer.Option("--output", metavar="FILE", help="Page to write; - is standard output.")
    ] = "attention.html",
    **loading: Any,
) -> None:
    """Write a page that shows where the tokens of a text attend.

    The page is one HTML file and works offline. It shows each layer and head
    of an encoder-decoder, an encoder or a causal decoder.
    """
    from vaswani.files.line_files import STANDARD_STREAM, LineWriter
    from vaswani.insight.attention import load_attention_model, read_attention
    from vaswani.insight.attention_page import attention_page
    from vaswani.insight.figures import FORMATS

    if (suffix := Path(output_name).suffix.lower().removeprefix(".")) in FORMATS:
        raise UserError(
            f"{output_name} would be a page in HTML: name it .html, or draw a .{suffix} with "
            "vaswani plot attention"
        )
    languages = language_options(loading)
    begin_work()
    with LineWriter(output_name) as writer:
        maps = read_attention(*load_attention_model(model, languages, **loading), source, target)
        name = Path(model).absolute().name if os.path.isdir(model) else model  # the page may go to others
        writer.write(attention_page(maps, title=f"Attention of {name}").html)
    place = "standard output" if output_name == STANDARD_STREAM else f"{output_name}, for a browser"
    warn(f"wrote {', '.join(each.kind for each in maps)} attention to {place}")
