"""`vaswani predict`."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaswani.cli.app import app
from vaswani.cli.options import (
    BufferSize,
    InputName,
    OutputName,
    PaddedTokensPerBatch,
    model_option,
    number,
    table_field,
    takes_loading_options,
)
from vaswani.cli.screen import begin_work, progress_of_texts, warn
from vaswani.errors import UserError

if TYPE_CHECKING:
    from vaswani.inference.inputs import Texts


@app.command()
@takes_loading_options
def predict(
    model: Annotated[
        str,
        model_option(
            "--model", help="Folder or Hub name of a classifier, regressor, tagger or answerer of questions."
        ),
    ],
    input_name: InputName = "-",
    output_name: OutputName = "-",
    text_field: Annotated[
        str | None, table_field("text_field", "text, or the words", "as in training, or text")
    ] = None,
    text_pair_field: Annotated[
        str | None,
        typer.Option(
            "--text_pair_field",
            help="Table field of a second text, for a model of pairs of texts. Default: as in training.",
        ),
    ] = None,
    question_field: Annotated[
        str | None,
        typer.Option(
            "--question_field",
            help="Of questions, the table field of the question. Default: as in training, or question.",
        ),
    ] = None,
    context_field: Annotated[
        str | None,
        typer.Option(
            "--context_field",
            help="Table field of the text that answers it. Default: as in training, or context.",
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
    max_length: Annotated[
        int | None,
        number(
            "--max_length",
            help="Longer texts are cut after so many tokens, and counted; those of questions are cut into "
            "windows. Default: as in training; or else, and for taggers, the model's maximum, or 4096 if it "
            "has none.",
            at_least=1,
        ),
    ] = None,
    max_tokens_per_batch: PaddedTokensPerBatch = 8192,
    buffer_size: BufferSize = None,
    **loading: Any,
) -> None:
    """Predict the label of each line or table row, the tags of its words, or
    the answer to its question, as JSON Lines.

    Each text gets its prediction with the probability; each row of a table
    comes back with these fields.
    """
    from vaswani.files.line_files import LineWriter, check_not_input
    from vaswani.hub.checkpoint import local_folder
    from vaswani.hub.run_metadata import read_config, read_settings
    from vaswani.inference.answer.answering import PAIRS_AT_ONCE, QuestionAnswerer, answers_questions
    from vaswani.inference.answer.files import answer_questions, open_questions
    from vaswani.inference.batches import BUFFERED_TEXTS
    from vaswani.inference.classify.classification import Classifier
    from vaswani.inference.classify.files import predict_texts

    check_not_input(output_name, input_name)
    folder = local_folder(model, loading["revision"], weights=False)
    trained = read_settings(folder)
    of_texts = {"text_field": text_field, "text_pair_field": text_pair_field}
    of_questions = {"question_field": question_field, "context_field": context_field}
    kind: Any
    predict_all: Any
    if answers_questions(read_config(folder)):
        kind, predict_all, ahead = QuestionAnswerer, answer_questions, PAIRS_AT_ONCE
        _check_none(of_texts, "predicts labels", "answers questions")
        loading |= {} if top_k is None else {"n_best": top_k}
        opened: Any = open_questions(input_name, of_questions, trained)
    else:
        kind, predict_all, ahead = Classifier, predict_texts, BUFFERED_TEXTS
        _check_none(of_questions, "answers questions", "does not")
        opened = _texts(input_name, of_texts, trained, folder)
    with opened as texts:
        begin_work()
        with LineWriter(output_name) as writer:
            loaded = kind.from_pretrained(
                model, max_length=max_length, max_tokens_per_batch=max_tokens_per_batch, **loading
            )
            with progress_of_texts(texts, output_name) as bar:
                report = predict_all(
                    loaded,
                    texts,
                    writer.write,
                    top_k=top_k,
                    buffer_size=buffer_size or (1 if texts.typed else ahead),
                    progress=bar.update,
                )
    warn(f"predicted {report}")


def _check_none(fields: dict[str, str | None], reader: str, found: str) -> None:
    """Raise `UserError` for a field that only another model reads."""
    for name, field in fields.items():
        if field is not None:
            raise UserError(f"--{name} is for a model that {reader}, and this one {found}; leave it out")


def _texts(
    name: str, fields: dict[str, str | None], trained: dict[str, Any], folder: Path
) -> "AbstractContextManager[Texts]":
    """Open texts or pairs, or the words of a tagger, by the fields that are given or were in training."""
    from vaswani.inference.classify.classification import task_of_checkpoint
    from vaswani.inference.classify.files import ADDED
    from vaswani.inference.inputs import open_texts

    # A model of pairs reads no single texts.
    pair_field = fields["text_pair_field"] or trained.get("text_pair_field")
    default = trained.get("text_field") or "text"
    where: dict[str, Any] = {"option": "text_field", "default": default, "pair_field": pair_field}
    is_tagger = task_of_checkpoint(folder) == "tagging"
    return open_texts(name, fields["text_field"], added=ADDED, words=is_tagger, **where)
