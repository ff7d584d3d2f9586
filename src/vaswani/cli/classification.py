"""`vaswani predict`."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from vaswani.cli.app import app
from vaswani.cli.options import (
    BufferSize,
    DocStride,
    InputName,
    MaxAnswerLength,
    MaxQuestionLength,
    NullThreshold,
    OutputName,
    PaddedTokensPerBatch,
    Threshold,
    model_option,
    number,
    takes_engine_options,
    trained_field,
)
from vaswani.cli.screen import warn
from vaswani.cli.text_jobs import write_results
from vaswani.errors import UserError

LINES_TO_CHECK = 50  # of a tagger's input


@app.command()
@takes_engine_options
def predict(
    model: Annotated[
        str,
        model_option(
            "--model", help="Folder or Hub name of a classifier, regressor, tagger or question answerer."
        ),
    ],
    input_name: InputName = "-",
    output_name: OutputName = "-",
    text_field: Annotated[str | None, trained_field("text_field", "text, or the words", "text")] = None,
    text_pair_field: Annotated[
        str | None,
        typer.Option(
            "--text_pair_field",
            help="For models of text pairs: table field of the second text. Default: as in training.",
        ),
    ] = None,
    question_field: Annotated[
        str | None,
        typer.Option(
            "--question_field",
            help="For question answering: table field of the question. Default: as in training, or question.",
        ),
    ] = None,
    context_field: Annotated[
        str | None,
        typer.Option(
            "--context_field",
            help="For question answering: table field of the text. Default: as in training, or context.",
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        number(
            "--top_k",
            help="Also write the probabilities of the K most probable labels, or the K best answers.",
            at_least=1,
        ),
    ] = None,
    threshold: Threshold = None,
    null_score_diff_threshold: NullThreshold = None,
    doc_stride: DocStride = None,
    max_question_length: MaxQuestionLength = None,
    max_answer_length: MaxAnswerLength = None,
    max_length: Annotated[
        int | None,
        number(
            "--max_length",
            help="Maximum number of tokens. Longer texts are truncated and counted; for question answering, "
            "they are split into windows. Default: as in training; if unknown, and for taggers, the model's "
            "maximum, or 4096 if it has none.",
            at_least=1,
        ),
    ] = None,
    max_tokens_per_batch: PaddedTokensPerBatch = 8192,
    buffer_size: BufferSize = None,
    **loading: Any,
) -> None:
    """Predict the label of each line or table row, the tags of its words, or
    the answer to its question, as JSON Lines.

    Each text gets its prediction with the probability. Each row of a table is
    written with these fields added.
    """
    from vaswani.files.line_files import check_not_input
    from vaswani.hub.checkpoint import local_folder
    from vaswani.hub.run_metadata import auto_class_of, read_config

    check_not_input(output_name, input_name)
    folder = local_folder(model, loading["revision"], weights=False)
    text_fields = {"text_field": text_field, "text_pair_field": text_pair_field}
    question_fields = {"question_field": question_field, "context_field": context_field}
    answers = {
        "null_score_diff_threshold": null_score_diff_threshold,
        "doc_stride": doc_stride,
        "max_question_length": max_question_length,
        "max_answer_length": max_answer_length,
    }
    if auto_class_of(read_config(folder)).__name__ == "AutoModelForQuestionAnswering":
        _check_unset({**text_fields, "threshold": threshold}, "predicts labels", "answers questions")
        job = _answer_job(input_name, question_fields, folder)
        loading |= answers if top_k is None else answers | {"n_best": top_k}
    else:
        _check_unset({**question_fields, **answers}, "answers questions", "does not")
        job = _label_job(input_name, text_fields, folder)
        loading["threshold"] = threshold
    loading |= {"max_length": max_length, "max_tokens_per_batch": max_tokens_per_batch}
    load = partial(job.model_class.from_pretrained, model, **loading)
    with job.texts as texts:
        report = write_results(load, texts, job.predict, output_name, buffer_size, top_k=top_k)
    warn(f"predicted {report}")


class _PredictionJob(NamedTuple):
    """The opened texts of an input, and how to predict them."""

    texts: AbstractContextManager[Any]
    model_class: Any  # loads the model
    predict: Callable[..., Any]


def _check_unset(options: dict[str, Any], expected_task: str, task: str) -> None:
    """Raise `UserError` for an option that only other models use."""
    for name, value in options.items():
        if value is not None:
            raise UserError(
                f"--{name} is for a model that {expected_task}, and this one {task}; leave it out"
            )


def _label_job(name: str, fields: dict[str, str | None], folder: Path) -> _PredictionJob:
    """Open texts, pairs or a tagger's words; fields that are not given are those of the training."""
    from vaswani.files.run_settings import read_settings
    from vaswani.inference.classify.classification import Classifier, task_of_checkpoint
    from vaswani.inference.classify.files import ADDED, predict_texts
    from vaswani.inference.inputs import open_texts

    is_tagger, trained = task_of_checkpoint(folder) == "tagging", read_settings(folder)
    if is_tagger:
        _check_not_columns(name, folder)
    # A model of pairs does not read single texts.
    pair_field = fields["text_pair_field"] or trained.get("text_pair_field")
    default = trained.get("text_field") or "text"
    where: dict[str, Any] = {"option": "text_field", "default": default, "pair_field": pair_field}
    texts = open_texts(name, fields["text_field"], added=ADDED, words=is_tagger, **where)
    return _PredictionJob(texts, Classifier, predict_texts)


def _check_not_columns(name: str, folder: Path) -> None:
    """Raise `UserError` if a file of texts has a word with tags of the model in each line, as CoNLL's do."""
    from vaswani.data.sources.conll import sentences
    from vaswani.files.line_files import COLUMN_ENDINGS, open_lines
    from vaswani.hub.run_metadata import read_config
    from vaswani.inference.classify.classification import names_of
    from vaswani.inference.inputs import has_table_ending

    if not os.path.isfile(name) or has_table_ending(name) or name.lower().endswith(COLUMN_ENDINGS):
        return
    labels = set(names_of(read_config(folder)))
    with open_lines(name) as lines:
        texts = [line.decode("utf-8", errors="replace") for line in islice(lines, LINES_TO_CHECK)]
    words = [columns for _, sentence in sentences(texts) for columns in sentence]
    if words and all(len(columns) > 1 and columns[-1] in labels for columns in words):
        raise UserError(
            f"{name} has a word with tags in each line, such as {' '.join(words[0])!r}; end its name in "
            ".conll, or give lines of text"
        )


def _answer_job(name: str, fields: dict[str, str | None], folder: Path) -> _PredictionJob:
    """Open questions, each with its text."""
    from vaswani.files.run_settings import read_settings
    from vaswani.inference.answer.answering import QuestionAnswerer
    from vaswani.inference.answer.files import answer_questions, open_questions

    texts = open_questions(name, fields, read_settings(folder))
    return _PredictionJob(texts, QuestionAnswerer, answer_questions)
