"""The application with all of its commands, in the order of the help."""

from importlib import import_module

from vaswani.cli.app import app

__all__ = ["app"]

GROUPS = (
    "training",
    "translation",
    "evaluation",
    "scoring",
    "alignment",
    "attention",
    "classification",
    "embedding",
    "generation",
    "prompting",
    "distillation",
    "conversion",
    "hub",
    "demo",
    "report",
    "estimate",
    "plots",
    "attention_plots",
    "configs",
    "env",
)

for _group in GROUPS:
    import_module(f"vaswani.cli.{_group}")
