"""Make the help pages of the training commands from the dataclasses of their options.

The training arguments of transformers take seconds to import, so the pages ship with the package and `--help`
prints them (`training_help.py`). After a change to an option, make the pages again and commit them:

    python -m vaswani.cli.option_pages
"""

import dataclasses
import json
import textwrap
from typing import Any

import transformers

from vaswani.cli.training_help import FIELDS, FOLDER
from vaswani.distillation.config import DistillationConfig
from vaswani.distillation.stack_arguments import CONFIG_OF_OBJECTIVE, TaskDistillationConfig
from vaswani.training.config.arguments import ContinuedRunConfig, RunConfig
from vaswani.training.config.finetuning_arguments import OTHER_TASKS, FinetuningConfig
from vaswani.training.config.options import BaseConfig, default_of, is_inherited, plain, sections
from vaswani.training.config.pretraining_arguments import CONTINUED, NEW

PAGES: dict[str, type[BaseConfig]] = {
    "train": RunConfig,
    "train-continued": ContinuedRunConfig,
    "distill": DistillationConfig,
    **{f"distill-{objective}": config_class for objective, config_class in CONFIG_OF_OBJECTIVE.items()},
    "distill-task": TaskDistillationConfig,
    "finetune": FinetuningConfig,
    **{f"finetune-{task}": config_class for task, config_class in OTHER_TASKS.items()},
    **{f"pretrain-{objective}": config_class for objective, config_class in NEW.items()},
    **{f"pretrain-{objective}-continued": config_class for objective, config_class in CONTINUED.items()},
}


def make_page(config_class: type[BaseConfig]) -> str:
    """Return the help page of a command: the fields that this project adds or whose default it changes."""
    lines = [f"Usage: vaswani {config_class.command} --config NAME|FILE [--FIELD VALUE ...]", ""]
    lines += textwrap.wrap(
        f"{config_class.purpose} The configuration is a name that `vaswani configs` lists, or a file of flat "
        "YAML. It sets defaults; flags override it. A boolean flag may stand alone (--bf16) or take true or "
        "false; a list takes several values; `none` sets an option back to nothing where that is possible.",
        100,
    )
    for title, section in sections(config_class).items():
        lines += ["", f"{title.capitalize()}:"]
        for field in dataclasses.fields(section):
            if field.metadata.get("help") and not is_inherited(field.name, section):
                lines += _describe(field)
    lines += [""]
    lines += textwrap.wrap(
        "Every training argument of transformers is accepted as well, among them: "
        "output_dir, max_steps, num_train_epochs, gradient_accumulation_steps, max_grad_norm, seed, bf16, "
        "torch_compile, use_cpu, eval_strategy, eval_steps, save_strategy, save_steps, save_total_limit, "
        f"logging_steps, load_best_model_at_end, metric_for_best_model ({', '.join(config_class.scores)}), "
        "resume_from_checkpoint (true or a directory).",
        100,
    )
    lines += [
        "",
        "  --num_processes  Processes on this machine, one device each. [1]",
        "  --debug          Print the traceback of an error. (Set transformers' own `debug` in the file.)",
    ]
    return "\n".join(lines) + "\n"


def _describe(field: dataclasses.Field) -> list[str]:
    default = default_of(field)
    default = " ".join(default) if isinstance(default, list) else plain(default)
    shown = "" if default in (None, "") else f" [{default}]"
    text = f"{field.metadata['help']}{shown}"
    return textwrap.wrap(text, 100, initial_indent=f"  --{field.name:<34} ", subsequent_indent=" " * 39)


def field_names() -> dict[str, Any]:
    """Return the names of all fields of each command, and the version of transformers that they belong to."""
    names: dict[str, set[str]] = {}
    for config_class in PAGES.values():
        for section in sections(config_class).values():
            settable = {field.name for field in dataclasses.fields(section) if field.init}
            names.setdefault(config_class.command, set()).update(settable, config_class.without_effect)
    return {
        "transformers": transformers.__version__,
        **{command: sorted(of) for command, of in names.items()},
    }


def write_pages() -> None:
    """Write all pages and the names of the fields."""
    for name, config_class in PAGES.items():
        (FOLDER / f"{name}.txt").write_text(make_page(config_class), encoding="utf-8")
    FIELDS.write_text(json.dumps(field_names(), indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_pages()
