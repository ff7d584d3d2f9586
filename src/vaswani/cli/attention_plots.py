"""`vaswani plot attention`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from vaswani.cli.attention import AttendingModel, SourceText, TargetText
from vaswani.cli.options import language_options, number, takes_language_options, takes_loading_options
from vaswani.cli.plots import Dark, Picture, plot
from vaswani.cli.screen import begin_work, print_line
from vaswani.errors import UserError

KINDS = ("encoder", "decoder", "cross")
STYLES = ("heatmap", "arcs", "sheet")


@plot.command("attention")
@takes_loading_options
@takes_language_options
def plot_attention(
    model: AttendingModel,
    source: SourceText,
    target: TargetText = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="|".join(KINDS),
            help="Self-attention of a stack, or cross-attention. Default: cross, or the model's only kind.",
        ),
    ] = None,
    style: Annotated[
        str,
        typer.Option(
            "--style",
            metavar="|".join(STYLES),
            help="A matrix, arcs between two columns of tokens, or all heads on one sheet.",
        ),
    ] = "heatmap",
    layer: Annotated[
        int | None, number("--layer", help="Layer, from 0. Default: the last.", at_least=0)
    ] = None,
    head: Annotated[
        int | None, number("--head", help="Head, from 0. Default: the mean of all.", at_least=0)
    ] = None,
    token: Annotated[
        str | None, typer.Option("--token", metavar="TEXT", help="Draw only the arcs of this token.")
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="Join the parts of each word.")] = False,
    output: Picture = Path("attention.png"),
    dark: Dark = False,
    **loading: Any,
) -> None:
    """Plot which tokens of a text or pair attend to which."""
    from vaswani.insight.figures import check_picture, save_figure

    _check_options(kind, style, layer, head, token)
    check_picture(output)
    begin_work()
    from vaswani.insight.attention import load_attention_model, read_attention
    from vaswani.insight.attention_plots import draw_arcs, draw_heatmap, draw_sheet

    languages = language_options(loading)
    opened = load_attention_model(model, languages, **loading)
    maps = {each.kind: each for each in read_attention(*opened, source, target)}
    attention = maps.get(kind or list(maps)[-1])
    if attention is None:
        raise UserError(f"kind={kind}: the model has attention of kind {', '.join(maps)} only")
    attention = attention.words() if words else attention
    if style == "sheet":
        figure = draw_sheet(attention, dark=dark)
    else:
        place = -1 if layer is None else layer
        if style == "arcs":
            figure = draw_arcs(attention, place, head, token=token, dark=dark)
        else:
            figure = draw_heatmap(attention, place, head, dark=dark)
    save_figure(figure, output)
    count = f"{len(attention.queries)} queries to {len(attention.keys)} keys"
    print_line(f"saved {output}: {attention.kind} attention of {count}")


def _check_options(
    kind: str | None, style: str, layer: int | None, head: int | None, token: str | None
) -> None:
    """Raise a UserError for an unknown choice, or for an option that has no effect on the style."""
    if kind not in (None, *KINDS):
        raise UserError(f"kind={kind} is unknown; expected {', '.join(KINDS)}")
    if style not in STYLES:
        raise UserError(f"style={style} is unknown; expected {', '.join(STYLES)}")
    if style == "sheet" and (layer, head) != (None, None):
        raise UserError("a sheet shows all layers and heads; leave out --layer and --head")
    if style != "arcs" and token is not None:
        raise UserError(f"token={token} is for --style arcs; leave it out")
