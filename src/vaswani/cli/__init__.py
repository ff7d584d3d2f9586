"""The command `vaswani`: parse, call, print. A file for each group of commands."""

from vaswani.cli import training, translation, distillation, hub, insight  # noqa: F401, I001  # in the order of the help
from vaswani.cli.app import app, main, run

__all__ = ["app", "main", "run"]
