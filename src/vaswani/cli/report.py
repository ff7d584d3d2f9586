"""`vaswani report`."""

from pathlib import Path
from typing import Annotated

import typer

from vaswani.cli.app import app
from vaswani.cli.screen import print_line


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a training run, finished or not.")],
) -> None:
    """Plot the curves of a training run into its folder, and print a summary."""
    from vaswani.insight.curves import read_history, save_curves, summary

    print_line(summary(read_history(run)))
    print_line(f"saved {save_curves(run)}")
