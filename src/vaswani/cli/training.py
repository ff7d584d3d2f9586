"""The commands that train: a configuration file gives defaults, any of its fields is a flag."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaswani.cli.app import app
from vaswani.cli.options import number
from vaswani.cli.screen import begin_work
from vaswani.errors import OutputError, RunError, UserError
from vaswani.training.launch.sigterm import ends_on_sigterm

if TYPE_CHECKING:
    from vaswani.training.config.config_file import Config
    from vaswani.training.config.run_config import RunConfig

MOST_PROCESSES = 1024

ConfigFile = Annotated[Path | None, typer.Option("--config")]
NumProcesses = Annotated[
    int,
    number(
        *("--num_processes", "--num-processes"),
        help="On this machine, a device each.",
        at_least=1,
        at_most=MOST_PROCESSES,
    ),
]
ShowHelp = Annotated[bool, typer.Option("--help", "-h")]
ANY_FLAG: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}


def _training_command(name: str, help: str, kind: str, run: str) -> None:
    """Register a command that takes the fields of a configuration.

    Args:
        name: of the command.
        help: its line in the list of commands.
        kind: where the class of its configuration lies, `module:name`; imported when it is called.
        run: likewise the function that is called with one.
    """

    @app.command(name, help=help, **ANY_FLAG)
    def command(
        context: typer.Context,
        config: ConfigFile = None,
        num_processes: NumProcesses = 1,
        show_help: ShowHelp = False,
    ) -> int | None:
        with ends_on_sigterm(lambda: "before training began"):
            resolved = _resolve(_imported(kind), context, config, show_help)
            if resolved is None:
                return None
            if num_processes != 1:
                return _launch(context, config, num_processes, resolved)
            _run_training(_imported(run), resolved)
        return None


_training_command(
    "train",
    "Train a model: --config NAME or FILE gives defaults, any field is a flag.",
    "vaswani.training.config.run_config:RunConfig",
    "vaswani.training.runs.translation:train",
)
_training_command(
    "distill",
    "Train a small student to do what a large teacher does, and report how well it does.",
    "vaswani.distillation.arguments:DistillationConfig",
    "vaswani.distillation.run:distill",
)
_training_command(
    "pretrain",
    "Train a language model on texts: masked (an encoder) or causal (a decoder).",
    "vaswani.training.config.pretraining_arguments:PretrainingConfig",
    "vaswani.training.runs.pretraining:pretrain",
)
_training_command(
    "finetune",
    "Train a pre-trained encoder on labelled texts: classification, regression, tagging.",
    "vaswani.training.config.finetuning_arguments:FinetuningConfig",
    "vaswani.training.runs.finetuning:finetune",
)


def _imported(place: str) -> Any:
    module, name = place.split(":")
    return getattr(import_module(module), name)


def _resolve(
    kind: "type[Config]", context: typer.Context, config: Path | None, show_help: bool
) -> "Config | None":
    """The configuration of a run, or None where help was wanted, which is printed."""
    from vaswani.training.config.config_file import describe_options, load_config

    if show_help:
        print(describe_options(kind, context.args))
        return None
    if config is None and not context.args:
        raise UserError(
            f"nothing to {kind.command}: give --config NAME or FILE, such as {kind.example} "
            f"(see vaswani {kind.command} --help)"
        )
    return load_config(config, context.args, kind)


def _launch(context: typer.Context, config: Path | None, num_processes: int, resolved: "RunConfig") -> int:
    """Run the same command in several processes, and return the exit status."""
    from vaswani.training.launch.launcher import launch

    given = [str(context.command.name), *(["--config", str(config)] if config else []), *context.args]
    debug = ["--debug"] if "--debug" in sys.argv else []
    return launch([*given, *debug], num_processes, resolved.output_dir, resolved.training.use_cpu)


def _run_training(run: Callable[[Any], object], config: "RunConfig") -> None:
    from vaswani.training.runs.failures import describe_failure, what_was_saved

    begin_work()
    try:
        with ends_on_sigterm(lambda: f"({what_was_saved(config.output_dir)})"):
            run(config)
    except OutputError as error:
        told = RunError(f"{error}; {what_was_saved(config.output_dir)}")
        told.exit_status = error.exit_status
        raise told from error
    except (UserError, RunError):
        raise
    except (KeyboardInterrupt, Exception) as error:
        raise RunError(describe_failure(error, config.output_dir)) from error
