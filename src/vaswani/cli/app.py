"""The application with which commands register. It refuses mistakes that typer accepts silently."""

from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import vaswani
from vaswani.cli.screen import print_line
from vaswani.errors import UserError


class QuickHelp:
    """A command or group whose `--help` works without pydantic, which typer imports to convert a default."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option as typer makes it, with a default that needs no conversion."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.default = False
        return option


class Group(QuickHelp, TyperGroup):
    """A group of commands."""


MAY_BE_EMPTY = {"--source_prefix"}  # options that accept an empty value


class Command(QuickHelp, TyperCommand):
    """A command that refuses an empty value, and an option given twice (typer would keep the last)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as typer does; add the value to its message about a value of the wrong type."""
        values, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for parameter, times in Counter(order).items():
            is_option = parameter.param_type_name == "option"
            name = parameter.opts[0] if is_option else parameter.metavar or parameter.name.upper()
            if is_option and times > 1 and not (parameter.multiple or getattr(parameter, "is_flag", False)):
                raise UserError(f"{name} is given {times} times; give it once")
            given = values.get(parameter.name)
            if name not in MAY_BE_EMPTY and "" in (given if isinstance(given, list | tuple) else [given]):
                raise UserError(f"{name} is empty; give a value, or leave it out")
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            given = None if error.param is None else values.get(str(error.param.name))
            if isinstance(given, str) and given not in error.message:
                error.message += f", got {given!r}"
            raise


class Application(typer.Typer):
    """An application, or a group of commands, whose commands are of the class `Command`."""

    def __init__(self, **options: Any):
        super().__init__(cls=Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Register a command, as in typer."""
        return super().command(name, **{"cls": Command, **options})


app = Application(
    help="The original Transformer: train, evaluate, translate, distill.",
    epilog="Every command takes --debug, which prints the traceback of an error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print_line(f"vaswani {vaswani.__version__}")
        raise typer.Exit


@app.callback()
def _take_version(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Take the option that needs no command."""
