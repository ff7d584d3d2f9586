"""The training commands: a configuration gives defaults, and each of its fields is a flag."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaswani.cli.app import app
from vaswani.cli.options import number
from vaswani.cli.screen import begin_work, print_line
from vaswani.cli.training_help import check_flags, help_page
from vaswani.errors import OutputError, RunError, UserError
from vaswani.files.named_configs import command_of, find_config
from vaswani.training.launch.sigterm import ends_on_sigterm

if TYPE_CHECKING:
    from vaswani.training.config.arguments import RunConfig

MAX_PROCESSES = 1024

ConfigFile = Annotated[Path | None, typer.Option("--config")]
NumProcesses = Annotated[
    int,
    number(
        *("--num_processes", "--num-processes"),
        help="Processes on this machine, one device each.",
        at_least=1,
        at_most=MAX_PROCESSES,
    ),
]
ShowHelp = Annotated[bool, typer.Option("--help", "-h")]
ANY_FLAG: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}


CONFIG_CLASSES: dict[str, str] = {}  # of the commands below, each as `module:name`


def load_any_config(path: Path) -> Any:
    """Return the resolved configuration in a file, with the class of the command that its comments name."""
    from vaswani.training.config.config_file import load_config

    return load_config(path, [], _imported(CONFIG_CLASSES[command_of(path)]))


def _training_command(name: str, help: str, example: str, config_class: str, run: str) -> None:
    """Register a command that takes the fields of a configuration.

    Args:
        name: name of the command.
        help: its line in the list of commands.
        example: name of a configuration that it takes.
        config_class: class of its configuration, as `module:name`; it is imported when the command is called.
        run: function that trains with a configuration, written and imported in the same way.
    """
    CONFIG_CLASSES[name] = config_class

    @app.command(name, help=help, **ANY_FLAG)
    def command(
        context: typer.Context,
        config: ConfigFile = None,
        num_processes: NumProcesses = 1,
        show_help: ShowHelp = False,
    ) -> int | None:
        if show_help:
            print_line(help_page(name, context.args))
            return None
        if config is None and not context.args:
            raise UserError(
                f"nothing to {name}: give --config NAME or FILE, such as {example} "
                f"(see vaswani {name} --help)"
            )
        check_flags(name, context.args)
        path = None if config is None else find_config(config)
        with ends_on_sigterm(lambda: "before training began"):
            from vaswani.training.config.config_file import load_config
            from vaswani.training.launch.processes import without_gpu_context

            with without_gpu_context() if num_processes != 1 else nullcontext():
                resolved = load_config(path, context.args, _imported(config_class))
            if num_processes != 1:
                return _launch(context, config, num_processes, resolved)
            _run_training(_imported(run), resolved)
        return None


_training_command(
    "train",
    "Train an encoder-decoder on pairs of texts: translation, summarization.",
    "dates",
    "vaswani.training.config.arguments:RunConfig",
    "vaswani.training.runs.translation:train",
)
_training_command(
    "distill",
    "Train a small student to imitate a large teacher, and report its quality.",
    "distill_dates",
    "vaswani.distillation.config:DistillationConfig",
    "vaswani.distillation.run:distill",
)
_training_command(
    "pretrain",
    "Train a language model on text: masked (encoder) or causal (decoder).",
    "mlm",
    "vaswani.training.config.pretraining_arguments:PretrainingConfig",
    "vaswani.training.runs.pretraining:pretrain",
)
_training_command(
    "finetune",
    "Train a pretrained model on labelled text (classification, tagging, answers ...) or on completions.",
    "finetune_reviews",
    "vaswani.training.config.finetuning_arguments:FinetuningConfig",
    "vaswani.training.runs.finetuning:finetune",
)


def _imported(place: str) -> Any:
    module, name = place.split(":")
    return getattr(import_module(module), name)


def _launch(context: typer.Context, config: Path | None, num_processes: int, resolved: "RunConfig") -> int:
    """Run the same command in several processes and return the exit status."""
    from vaswani.training.launch.launcher import launch
    from vaswani.training.trainer.checkpoints import what_was_saved

    folder, use_cpu = resolved.output_dir, resolved.training.use_cpu
    given = [str(context.command.name), *(["--config", str(config)] if config else []), *context.args]
    debug = ["--debug"] if "--debug" in sys.argv else []
    return launch([*given, *debug], num_processes, lambda: what_was_saved(folder), use_cpu)


def _run_training(run: Callable[[Any], object], config: "RunConfig") -> None:
    from vaswani.training.runs.failures import describe_failure
    from vaswani.training.trainer.checkpoints import what_was_saved

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
