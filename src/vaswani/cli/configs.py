"""`vaswani configs` and `vaswani configs show`."""

from typing import Annotated

import typer

from vaswani.cli.app import Application, app
from vaswani.cli.screen import print_line
from vaswani.files import named_configs

USES = {
    **{verb: f"vaswani {verb} --config NAME" for verb in ("train", "pretrain", "finetune", "distill")},
    "prompt": "vaswani prompt --task NAME",
    "estimate": "vaswani estimate --device NAME",
    "launch": "accelerate launch --config_file FILE (first: vaswani configs show NAME > FILE)",
}

configs = Application(help="List the configurations that ship with vaswani.", invoke_without_command=True)
app.add_typer(configs, name="configs")


@configs.callback()
def list_configs(context: typer.Context) -> None:
    """List the configurations that ship with vaswani, by the command that takes them.

    Use a name in place of a file: vaswani train --config dates.
    """
    if context.invoked_subcommand is not None:
        return
    names = named_configs.config_names()
    width = max(map(len, names))
    for verb, use in USES.items():
        print_line(use)
        for name in (name for name in names if named_configs.command(name) == verb):
            print_line(f"  {name:<{width}}  {named_configs.summary(name)}")


@configs.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `vaswani configs` lists it.")],
) -> None:
    """Print a configuration, to save and edit: vaswani configs show dates > my_dates.yaml."""
    print_line(named_configs.shipped_config(name).read_text(encoding="utf-8").rstrip("\n"))
