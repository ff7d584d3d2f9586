"""The pages of the commands, made from what `vaswani COMMAND --help` is made from."""

import dataclasses
import typing
from typing import Any

import typer

from builder.tables import as_text, limits, shown_default, table, type_name
from vaswani.bounds import Bounds
from vaswani.cli.commands import app
from vaswani.cli.option_pages import PAGES
from vaswani.training.config.options import (
    INHERITED_BOUNDS,
    BaseConfig,
    default_of,
    is_inherited,
    plain,
    sections,
)

CHOSEN_BY = {
    "continued": "--model FOLDER",
    "masked": "--objective masked",
    "causal": "--objective causal",
    "span_denoising": "--objective span_denoising",
    "gap_sentences": "--objective gap_sentences",
    "masked-continued": "--objective masked --model FOLDER",
    "causal-continued": "--objective causal --model FOLDER",
    "span_denoising-continued": "--objective span_denoising --model FOLDER",
    "gap_sentences-continued": "--objective gap_sentences --model FOLDER",
    "task": "--task classification",
    "question_answering": "--task question_answering",
    "completion": "--task completion",
}
OF_ALL = """A configuration sets defaults, and flags override it. A boolean flag may stand alone (`--bf16`) or
take `true` or `false`. A list takes several values. `none` sets an option back to nothing where that is
possible. A configuration file has the same names without dashes. Every training argument of transformers is
accepted as well.
"""


def command_pages() -> dict[str, str]:
    """Return a page for each command, and an overview."""
    group: Any = typer.main.get_command(app)
    pages = {}
    rows = []
    for name, command in group.commands.items():
        pages[f"commands/{name}.md"] = _page(name, command)
        rows.append([f"[`vaswani {name}`]({name}.md)", as_text(_first_line(command.help))])
    overview = "# All commands\n\n" + table(["command", "purpose"], rows)
    overview += "\nEvery command takes `--help`, and `--debug`, which prints the traceback of an error.\n"
    return {"commands/index.md": overview, **pages}


def _first_line(text: str) -> str:
    return text.strip().split("\n\n")[0].split(". ")[0].rstrip(".") + "."


def _page(name: str, command: Any) -> str:
    if name in {config_class.command for config_class in PAGES.values()}:
        return _page_of_training(name)
    parts = [f"# vaswani {name}\n", as_text(command.help) + "\n", _usage(f"vaswani {name}", command)]
    for inner_name, inner in getattr(command, "commands", {}).items():
        whole_name = f"vaswani {name} {inner_name}"
        parts += [f"## {whole_name}\n", as_text(inner.help) + "\n", _usage(whole_name, inner)]
    return "\n".join(parts)


def _usage(name: str, command: Any) -> str:
    """The positional arguments and the options of a command."""
    options = [each for each in command.params if each.param_type_name == "option"]
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    named = [(each.metavar or each.name).upper() for each in arguments]
    words = [
        name,
        *(f"--{each.opts[0].lstrip('-')} {_value(each)}" for each in options if each.required),
        *(word if each.required else f"[{word}]" for word, each in zip(named, arguments, strict=True)),
        *(["[OPTIONS]"] if any(not each.required for each in options) else []),
    ]
    text = f"```text\n{' '.join(words)}\n```\n"
    if arguments:
        rows = [[f"`{word}`", as_text(each.help or "")] for word, each in zip(named, arguments, strict=True)]
        text += "\n" + table(["argument", "meaning"], rows)
    if options:
        text += "\n" + table(["option", "type", "default", "meaning"], map(_row, options))
    return text


def _value(option: Any) -> str:
    return option.metavar or option.name.upper()


def _row(option: Any) -> list[str]:
    is_flag = option.is_flag or option.type_descriptor.annotation is bool
    kind = "flag" if is_flag else type_name(option.type_descriptor.annotation)
    if option.metavar:
        kind = f"`{option.metavar}`"
    default = "" if is_flag else shown_default(option.default)
    names = ", ".join(f"`{name}`" for name in option.opts)
    return [names, kind, "required" if option.required else default, as_text(option.help or "")]


# ------------------------------------------------------------------------------- the commands that train


def _page_of_training(command: str) -> str:
    """The fields of each kind of run that the command starts."""
    parts = [f"# vaswani {command}\n", OF_ALL]
    for page, config_class in PAGES.items():
        if config_class.command == command:
            chosen_by = CHOSEN_BY[page.removeprefix(f"{command}-")] if page != command else ""
            parts.append(_kind_of_run(command, chosen_by, config_class))
    return "\n".join(parts)


def _kind_of_run(command: str, chosen_by: str, config_class: type[BaseConfig]) -> str:
    usage = f"vaswani {command} --config NAME|FILE {chosen_by} [--FIELD VALUE ...]"
    title = chosen_by.replace("FOLDER", "").strip() or "By default"
    parts = [
        f"## {f'`{title}`' if chosen_by else title}\n",
        f"{as_text(config_class.purpose)}\n",
        f"```text\n{' '.join(usage.split())}\n```\n",
    ]
    for section_title, section in sections(config_class).items():
        types = typing.get_type_hints(section)
        rows = [
            [
                f"`--{field.name}`",
                type_name(types[field.name]) + limits(bounds_of(field)),
                shown_default(plain(default_of(field))),
                as_text(field.metadata["help"]),
            ]
            for field in dataclasses.fields(section)
            if field.metadata.get("help") and not is_inherited(field.name, section)
        ]
        if rows:
            parts += [
                f"### {section_title.capitalize()}\n",
                table(["field", "type", "default", "meaning"], rows),
            ]
    parts.append(
        f"`metric_for_best_model` takes: {', '.join(f'`{name}`' for name in config_class.scores)}.\n"
    )
    return "\n".join(parts)


def bounds_of(field: dataclasses.Field) -> Bounds:
    """Return the numbers that a field accepts, including fields of transformers with another default here."""
    return field.metadata.get("bounds") or INHERITED_BOUNDS.get(field.name, Bounds())
