"""`vaswani prompt`."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaswani.cli.app import app
from vaswani.cli.options import AsJson, model_option, number, numbers_in, seed_of, takes_engine_options
from vaswani.cli.screen import begin_work, check_standard_output, print_line, progress_bar, warn
from vaswani.errors import UserError
from vaswani.files.json_files import finite_json

if TYPE_CHECKING:
    from vaswani.inference.prompt.prompting import PromptingResult


@app.command()
@takes_engine_options
def prompt(
    model: Annotated[str, model_option("--model", help="Folder or Hub name of a causal language model.")],
    task_file: Annotated[
        Path,
        typer.Option(
            "--task", metavar="FILE|NAME", help="Task: a YAML file, or a name such as tasks/sentiment."
        ),
    ],
    shots: Annotated[
        str,
        typer.Option(
            "--shots", metavar="K[,K...]", help="Examples in each prompt: 4, or several numbers: 0,1,4."
        ),
    ] = "0",
    seed: Annotated[int, seed_of("the choice of examples for each question")] = 0,
    output_name: Annotated[
        str | None,
        typer.Option("--output", metavar="FILE", help="Write prompts, answers and scores as JSONL."),
    ] = None,
    as_json: AsJson = False,
    max_tokens_per_batch: Annotated[
        int, number("--max_tokens_per_batch", help="Tokens per batch, of prompts and answers.", at_least=1)
    ] = 8192,
    **loading: Any,
) -> None:
    """Run a task by zero-, one- or few-shot prompting and report the accuracy."""
    from vaswani.files.line_files import LineWriter, check_not_input
    from vaswani.inference.prompt.prompting import Prompter, count_answers
    from vaswani.inference.prompt.task_file import load_task

    check_standard_output()
    task, counts = load_task(task_file), _parse_shots(shots)
    for count in counts:
        task.check_shots(count)
    begin_work()
    results: list[PromptingResult] = []
    check_not_input(output_name or os.devnull, *task.files)
    with LineWriter(output_name or os.devnull) as writer:
        prompter = Prompter.from_pretrained(
            model,
            max_tokens_per_batch=max_tokens_per_batch,
            **loading,
        )
        for count in counts:
            if results:
                print_line(str(results[-1]))
            with progress_bar(count_answers(task), " answers") as bar:
                result = prompter.answer(task, count, seed=seed, progress=bar.update)
            _warn_of_fewer_shots(result, prompter.language_model.positions)
            for answer in result.answers:
                record = {"asked_shots": count, **asdict(answer)}
                writer.write(finite_json(record, ensure_ascii=False))
            results.append(result)
    print_line(str(results[-1]))  # after the answers are safe in their file
    if as_json:
        scoring = {"generate": True} if task.generate else {"normalize": task.normalize}
        record = {"model": model, "task": str(task_file), **scoring, "seed": seed}
        record["results"] = [result.to_dict() for result in results]
        print_line(finite_json(record))


def _parse_shots(text: str) -> list[int]:
    numbers = numbers_in(text, int, f"shots={text}: expected a number, or several such as 0,1,4")
    if len(set(numbers)) < len(numbers):
        raise UserError(f"shots={text} names a number twice; give each once")
    return numbers


def _warn_of_fewer_shots(result: "PromptingResult", positions: int | None) -> None:
    if fewer := result.with_fewer_shots:
        warn(
            f"shots={result.shots}: {len(fewer):,} of {len(result.answers):,} rows had fewer, because the "
            f"model has positions for {positions} tokens; row {fewer[0].row} had {fewer[0].shots}"
        )
