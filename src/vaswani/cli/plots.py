"""`vaswani plot`."""

from pathlib import Path
from typing import Annotated

import typer

from vaswani.cli.app import Application, app
from vaswani.cli.options import number, seed_of
from vaswani.cli.screen import say
from vaswani.errors import UserError

plot = Application(help="Plot how a model works.", no_args_is_help=True)
app.add_typer(plot, name="plot")

Picture = Annotated[Path, typer.Option("--output", metavar="FILE", help="A .png, .svg or .pdf file.")]
Dark = Annotated[bool, typer.Option("--dark", help="Draw on a dark background.")]


@plot.command("sparse-pattern")
def plot_sparse_pattern(
    output: Picture = Path("sparse_pattern.png"),
    dark: Dark = False,
    length: Annotated[int, number("--length", help="Tokens in the sequence.", at_least=1)] = 4096,
    block_size: Annotated[int, number("--block_size", help="Tokens in a block.", at_least=1)] = 64,
    window: Annotated[
        int, number("--window", help="Blocks in the window, including the query's own.", at_least=1)
    ] = 3,
    global_blocks: Annotated[
        int, number("--global", help="Global blocks at the start of the sequence.", at_least=0)
    ] = 2,
    random_blocks: Annotated[
        int, number("--random", help="Random blocks for each query block.", at_least=0)
    ] = 3,
    seed: Annotated[int, seed_of("the random blocks")] = 0,
    layer: Annotated[
        int, number("--layer", help="Layer to plot; random blocks differ between layers.", at_least=0)
    ] = 0,
    heads: Annotated[
        int, number("--heads", help="Heads to plot, one panel each; their random blocks differ.", at_least=1)
    ] = 2,
    causal: Annotated[
        bool, typer.Option("--causal", help="Plot a decoder's pattern: no block sees later ones.")
    ] = False,
) -> None:
    """Plot which blocks of a sequence attend to which, and why."""
    from vaswani.insight.figures import check_picture, save_figure
    from vaswani.insight.sparse_patterns import density, draw_sparse_pattern
    from vaswani.model.sparse_pattern import SparsePattern

    check_picture(output)
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
    save_figure(draw_sparse_pattern(pattern, num_blocks, dark=dark), output)
    say(f"saved {output}: density {100 * density(pattern, num_blocks):.1f} % of the block pairs")
