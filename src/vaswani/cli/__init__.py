"""The command `vaswani`: parse, call, print. A file for each group of commands."""

from importlib import import_module

from vaswani.cli.app import app, main, run

__all__ = ["app", "main", "run"]

# In the order of the help.
for _group in (
    *("training", "translation", "embedding", "prompting", "distillation", "conversion", "hub", "insight"),
    "configs",
):
    import_module(f"vaswani.cli.{_group}")
