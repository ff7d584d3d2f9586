"""Help and first checks of the training commands, without importing the dataclasses of their options.

The pages in `help/` are made by `option_pages.py`.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from vaswani.training.config.flags import check_choice, check_name, first_values, split_flags

FOLDER = Path(__file__).parent / "help"
FIELDS = FOLDER / "fields.json"
OBJECTIVES = ("masked", "causal", "span_denoising", "gap_sentences")  # of pre-training
PAIR_TASKS = ("translation", "summarization")
LABEL_TASKS = ("classification", "multi_label", "regression", "tagging")
OTHER_TASKS = ("question_answering", "completion")  # of fine-tuning


def help_page(command: str, arguments: Sequence[str]) -> str:
    """Return the help page of a training command; some flags choose among its pages."""
    return (FOLDER / f"{_page(command, arguments)}.txt").read_text(encoding="utf-8").rstrip("\n")


def _page(command: str, arguments: Sequence[str]) -> str:
    given = first_values(split_flags(arguments))
    if command == "distill":
        return _page_of_distillation(given)
    if command == "finetune":
        task = given.get("task") or "classification"
        check_choice("task", task, (*LABEL_TASKS, *OTHER_TASKS))
        return f"finetune-{task}" if task in OTHER_TASKS else command
    continued = "-continued" if given.get("model") is not None else ""
    if command == "train":
        return f"train{continued}"
    objective = given.get("objective", "masked")
    check_choice("objective", objective, OBJECTIVES)
    return f"pretrain-{objective}{continued}"


def _page_of_distillation(given: Mapping[str, str | None]) -> str:
    """Return the page for the teacher's task: translation, language modelling or labels."""
    if (objective := given.get("objective")) is not None:
        check_choice("objective", objective, ("masked", "causal"))
        return f"distill-{objective}"
    task = given.get("task") or "translation"
    check_choice("task", task, (*PAIR_TASKS, *LABEL_TASKS))
    return "distill-task" if task in LABEL_TASKS else "distill"


def check_flags(command: str, arguments: Sequence[str]) -> None:
    """Raise `UserError` for a flag that no configuration of this command has.

    The known names belong to one version of transformers. With another version this check accepts all flags,
    and the configuration checks them later.
    """
    known = json.loads(FIELDS.read_text(encoding="utf-8"))
    flags = split_flags(arguments)
    if known["transformers"] != version("transformers"):
        return
    for flag, name, _ in flags:
        if name.removeprefix("no_") not in known[command]:
            check_name(name, known[command], {}, f"unknown flag {flag!r}", command, "--")
