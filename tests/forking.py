"""A process that has done the imports runs each program in a copy of itself, seconds sooner than a new one.

    with ForkingPython(environment) as python:
        python.run(["translate", "--model", "ada/toy"], folder)  # a command of `vaswani`
        python.run([Path("examples/01_train_and_translate.py"), "runs"], folder)  # a script
        python.run(["-c", "import vaswani"], folder)  # code

In an environment without `vaswani` it has imported the libraries alone, and runs only scripts and code.
The client of the Hub tries a lost connection again as often as anywhere, with a fiftieth of the waiting.

The process runs this file. Each line that it reads is a JSON object, the arguments of `run_program`.
"""

import gc
import importlib.util
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

LONGEST = 300  # seconds


class ForkingPython:
    """The process, and what to ask of it."""

    def __init__(self, environment: Mapping[str, str], python: Path | str = sys.executable):
        command = [str(python), str(Path(__file__).resolve())]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env={**environment}, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> "ForkingPython":
        return self

    def __exit__(self, *_: object) -> None:
        # Its input may not end: workers of a data loader that were forked here have the pipe as well.
        self._process.terminate()
        self._process.communicate()

    def run(
        self, arguments: Sequence[object], folder: Path, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end.

        Args:
            arguments: of `vaswani`; or a script, which ends with `.py`, and its arguments; or `-c` and code.
            folder: where it runs; it gets the files `stdout.txt` and `stderr.txt`.
            variables: of the environment, set after the imports.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        printed = {name: folder / f"{name}.txt" for name in ("stdout", "stderr")}
        request = {"arguments": list(map(str, arguments)), "folder": str(folder)}
        request |= {"variables": dict(variables or {}), **{name: str(path) for name, path in printed.items()}}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(
            arguments, status, *(path.read_text() for path in printed.values())
        )


def serve() -> None:
    """Until standard input ends."""
    import_everything()
    shorten_waits()
    for line in sys.stdin:
        copy = os.fork()
        if not copy:
            run_program(**json.loads(line))
        _, status = os.waitpid(copy, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def import_everything() -> None:
    """The libraries, and the package where there is one; copies then share all of it."""
    import_libraries()
    if importlib.util.find_spec("vaswani"):
        import_package()
    leave_out_of_collections()


def import_libraries() -> None:
    """What takes time of torch and transformers."""
    import torch  # noqa: F401
    from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel  # noqa: F401
    from transformers.models.bart import modeling_bart  # noqa: F401  # imports what our models import
    from transformers.pipelines import pipeline  # noqa: F401


def import_package() -> None:
    """All that takes a command time to import."""
    from pydantic import TypeAdapter  # noqa: F401  # typer imports it when it parses the options of a command

    import vaswani
    import vaswani.cli.command_line
    import vaswani.cli.commands
    import vaswani.distillation.run
    import vaswani.evaluation.labels
    import vaswani.hub.push
    import vaswani.inference.align.files
    import vaswani.inference.classify.files
    import vaswani.inference.embed.embedding
    import vaswani.inference.prompt.prompting
    import vaswani.inference.score.files
    import vaswani.inference.translate.translation
    import vaswani.training.runs.evaluation
    import vaswani.training.runs.finetuning
    import vaswani.training.runs.pretraining
    import vaswani.training.runs.translation
    from vaswani.insight.figures import new_figure

    for name in vaswani.__all__:
        getattr(vaswani, name)
    with new_figure((1, 1)):
        pass


def leave_out_of_collections() -> None:
    """Later collections of garbage, here and in copies, touch no object that is there already."""
    gc.collect()
    gc.freeze()


def shorten_waits() -> None:
    """Between the attempts of the Hub's client: with the library's, five take 23 seconds."""
    from huggingface_hub.utils import _http as client

    client.time = SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 50))


def run_program(
    arguments: list[str], folder: str, stdout: str, stderr: str, variables: dict[str, str]
) -> NoReturn:
    """In a folder, with what it prints in files."""
    signal.alarm(LONGEST)
    os.chdir(folder)
    os.environ.update(variables)
    for descriptor, path in enumerate((os.devnull, stdout, stderr)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
    if arguments[0] == "-c":
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
        raise SystemExit
    if arguments[0].endswith(".py"):
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")
        raise SystemExit
    from tiny_runs import leave_out_slow_parts
    from vaswani.cli import main

    leave_out_slow_parts()
    sys.argv = ["vaswani", *arguments]
    main()
    raise SystemExit


if __name__ == "__main__":
    serve()
