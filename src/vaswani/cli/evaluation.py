"""`vaswani evaluate`."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from vaswani.cli.app import app
from vaswani.cli.options import (
    DatasetConfig,
    Split,
    model_option,
    number,
    takes_translator_options,
)
from vaswani.cli.screen import begin_work, check_standard_output, progress_bar, say, warn
from vaswani.cli.splits import load_labelled_split, load_question_split, load_split, located
from vaswani.errors import UserError
from vaswani.files.json_files import finite_json

# The kinds of models by their Auto class, and the options that each takes beside those of all.
KINDS = {
    "AutoModelForSeq2SeqLM": "seq2seq",
    "AutoModelForSequenceClassification": "labels",
    "AutoModelForTokenClassification": "labels",
    "AutoModelForQuestionAnswering": "questions",
    "AutoModelForMaskedLM": "masked",
    "AutoModelForPreTraining": "masked",
    "AutoModelForCausalLM": "causal",
}
NAMES = {
    "seq2seq": "an encoder-decoder",
    "labels": "a classifier or tagger",
    "questions": "a question answerer",
    "masked": "a masked language model",
    "causal": "a causal language model",
}
TAKES = {
    "num_beams": ["seq2seq"],
    "length_penalty": ["seq2seq"],
    "too_long": ["seq2seq"],
    "max_length": ["seq2seq"],
    "no_repeat_ngram_size": ["seq2seq"],
    "source_language": ["seq2seq"],
    "target_language": ["seq2seq"],
    "source_prefix": ["seq2seq"],
    "task": ["seq2seq"],
    "source_field": ["seq2seq"],
    "target_field": ["seq2seq"],
    "text_field": ["labels", "masked", "causal"],
    "text_pair_field": ["labels"],
    "label_field": ["labels"],
    "label_separator": ["labels"],
    "documents": ["masked", "causal"],
    "context_field": ["questions"],
    "question_field": ["questions"],
    "answers_field": ["questions"],
    "answer_start_field": ["questions"],
    "null_score_diff_threshold": ["questions"],
    "output_name": ["seq2seq", "labels", "questions"],
    "dtype": ["seq2seq", "labels", "questions"],
    "allow_mismatch": ["seq2seq", "labels", "questions"],
}
FIELDS_OF_QUESTIONS = ("context_field", "question_field", "answers_field", "answer_start_field")
UNLESS_GIVEN = {"num_beams": 4, "length_penalty": 0.6, "max_length": 1024, "allow_mismatch": False}


@app.command()
@takes_translator_options()
def evaluate(
    model: Annotated[str, model_option("--model", help="Folder or Hub name of a trained model.")],
    data: Annotated[
        str,
        typer.Option(
            metavar="dates|FILE|FOLDER|NAME",
            help="Test data: dates (built in); a JSONL, JSON, CSV, TSV or Parquet file; a text file of "
            "sources, with TARGET_FILE after it; the folder or Hub name of a data set.",
        ),
    ],
    target_file: Annotated[
        str | None, typer.Argument(help="Text file of targets or labels, line by line.")
    ] = None,
    split: Split = "test",
    dataset_config: DatasetConfig = None,
    source_field: Annotated[
        str | None,
        typer.Option("--source_field", help="Source column; a dot selects a nested one. Default: source."),
    ] = None,
    target_field: Annotated[
        str | None,
        typer.Option("--target_field", help="Target column; a dot selects a nested one. Default: target."),
    ] = None,
    text_field: Annotated[
        str | None,
        typer.Option(
            "--text_field",
            help="Of other models, the column of the text or the words. Default: as in training, or text.",
        ),
    ] = None,
    text_pair_field: Annotated[
        str | None,
        typer.Option("--text_pair_field", help="Column of a second text. Default: as in training."),
    ] = None,
    label_field: Annotated[
        str | None,
        typer.Option(
            "--label_field",
            help="Column of the label, labels, number or tags. Default: as in training, or label.",
        ),
    ] = None,
    label_separator: Annotated[
        str | None,
        typer.Option(
            "--label_separator", help="Separates several labels. Default: as in training, or a comma."
        ),
    ] = None,
    context_field: Annotated[
        str | None,
        typer.Option(
            "--context_field",
            help="Of questions, the column of the text. Default: as in training, or context.",
        ),
    ] = None,
    question_field: Annotated[
        str | None,
        typer.Option(
            "--question_field", help="Column of the question. Default: as in training, or question."
        ),
    ] = None,
    answers_field: Annotated[
        str | None,
        typer.Option("--answers_field", help="Column of the answers. Default: as in training, or answers."),
    ] = None,
    answer_start_field: Annotated[
        str | None,
        typer.Option(
            "--answer_start_field", help="Column of the answer's first character. Default: as in training."
        ),
    ] = None,
    null_score_diff_threshold: Annotated[
        float | None,
        number(
            "--null_score_diff_threshold",
            help="Answer nothing if the score of no answer exceeds that of the best by more. Default: as in "
            "training.",
        ),
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option(
            "--documents",
            metavar="line|blank_line",
            help="In text files for language models, what a document is. Default: as in training, or line.",
        ),
    ] = None,
    max_rows: Annotated[
        int | None,
        number("--max_rows", help="Number of rows to evaluate on, evenly spread. Default: all.", at_least=1),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Of an encoder-decoder: translation (BLEU, chrF, exact match; default) or summarization "
            "(ROUGE)."
        ),
    ] = None,
    output_name: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="Write the outputs, one per line.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the scores as one JSON object on the last line.")
    ] = False,
    **options: Any,
) -> None:
    """Score a model on a corpus by what the model is.

    Encoder-decoders: BLEU, chrF and exact match, or ROUGE. Classifiers,
    regressors and taggers: accuracy, F1 or correlation. Models that answer
    questions: exact match and F1, as SQuAD does. Language models:
    perplexity, accuracy and, of causal ones, bits per byte.
    """
    from vaswani.evaluation.text_metrics import check_task
    from vaswani.files.line_files import check_not_input
    from vaswani.hub.checkpoint import local_folder

    check_task(task or "translation")
    check_standard_output()
    begin_work()
    files = [data] if target_file is None else [data, target_file]
    check_not_input(output_name or os.devnull, *files)
    folder = local_folder(model, options["revision"], weights=False)
    kind = _kind(folder)
    own: dict[str, Any] = {
        "source_field": source_field,
        "target_field": target_field,
        "text_field": text_field,
    }
    own |= {"text_pair_field": text_pair_field, "label_field": label_field, "documents": documents}
    own |= {"label_separator": label_separator, "task": task, "output_name": output_name}
    own |= {"context_field": context_field, "question_field": question_field, "answers_field": answers_field}
    own |= {"answer_start_field": answer_start_field, "null_score_diff_threshold": null_score_diff_threshold}
    _check_options(kind, {**own, **options})
    common: dict[str, Any] = {"dataset_config": dataset_config, "max_rows": max_rows}
    if kind == "seq2seq":
        fields: dict[str, Any] = {"source_field": source_field or "source"}
        fields["target_field"] = target_field or "target"
        record = _evaluate_pairs(
            model, files, split, output_name, task or "translation", {**common, **fields}, options
        )
    elif kind == "labels":
        names = ("text_field", "text_pair_field", "label_field", "label_separator")
        fields = {name: own[name] for name in names}
        record = _evaluate_labels(model, folder, files, split, output_name, {**common, **fields}, options)
    elif kind == "questions":
        fields = {**common, **{name: own[name] for name in FIELDS_OF_QUESTIONS}}
        options["null_score_diff_threshold"] = null_score_diff_threshold
        record = _evaluate_questions(model, folder, files, split, output_name, fields, options)
    else:
        fields = {"text_field": text_field, "documents": documents}
        whole = local_folder(model, options["revision"])
        record = _evaluate_texts(whole, kind, files, split, {**common, **fields}, options)
    if as_json:
        say(finite_json({"model": model, "data": files, **record}))


def _kind(folder: Path) -> str:
    """Return what the model of a folder is: one of `NAMES`."""
    from vaswani.hub.run_metadata import auto_class_of, read_config

    config = read_config(folder)
    name = auto_class_of(config).__name__
    # Checkpoints such as BART's name the class without a head, whose output layer is the embedding.
    kind = "seq2seq" if name == "AutoModel" and config.is_encoder_decoder else KINDS.get(name)
    if not config.architectures and kind != "seq2seq":
        raise UserError(
            f"{folder} holds a model of type {config.model_type!r}, and its config.json names no class of a "
            "model with a head (architectures), so that what it was trained for is unknown"
        )
    if kind is None:
        raise UserError(
            f"{folder} holds {', '.join(config.architectures or ())}, which cannot be evaluated; expected "
            f"{', '.join(NAMES.values())}"
        )
    return kind


def _check_options(kind: str, given: dict[str, Any]) -> None:
    """Raise `UserError` for an option that has no effect on a model of this kind."""
    for name, kinds in TAKES.items():
        if kind not in kinds and given[name] != UNLESS_GIVEN.get(name):
            flag = "output" if name == "output_name" else name
            of = " or ".join(NAMES[one] for one in kinds)
            raise UserError(f"--{flag} is for {of}, and the model is {NAMES[kind]}; leave it out")


def _evaluate_pairs(
    model: str,
    files: list[str],
    split: str,
    output_name: str | None,
    task: str,
    fields: dict[str, Any],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Translate or summarize pairs; print the scores and return them."""
    from vaswani.evaluation.confidence import resampled_scores
    from vaswani.evaluation.text_metrics import score_texts
    from vaswani.evaluation.translator import evaluate as evaluate_translator
    from vaswani.files.line_files import LineWriter
    from vaswani.inference.translate.files import as_text
    from vaswani.inference.translate.translation import Translator

    with LineWriter(output_name or os.devnull) as writer:
        split, rows = load_split(files, split, **fields)
        translator = Translator.from_pretrained(model, **options)
        scorers = partial(score_texts, task=task), partial(resampled_scores, task=task)
        with progress_bar(len(rows), " rows") as bar:
            evaluation = evaluate_translator(translator, rows, scorers[0], bar.update, scorers[1])
        for translation in evaluation.translations:
            writer.write(as_text(translation))
    say(str(evaluation))
    names = ("num_beams", "length_penalty", "max_source_length", "max_length")
    search = {name: options[name] for name in names}
    search["max_source_length"] = translator.max_source_length
    return {"split": split, **search, **evaluation.to_dict()}


def _evaluate_labels(
    model: str,
    folder: Path,
    files: list[str],
    split: str,
    output_name: str | None,
    fields: dict[str, Any],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Predict labels; print the scores and return them."""
    from vaswani.evaluation.labels import check_known, evaluate_labels
    from vaswani.files.line_files import LineWriter
    from vaswani.hub.run_metadata import read_config, read_settings
    from vaswani.inference.classify.classification import Classifier, names_of, task_of_checkpoint

    settings = read_settings(folder)
    task = task_of_checkpoint(folder)
    trained = settings if settings.get("task") == task else {}
    names = ("text_field", "text_pair_field", "label_field", "label_separator")
    fields |= {name: trained.get(name) for name in names if fields[name] is None}
    fields = {name: value for name, value in fields.items() if value is not None}
    with LineWriter(output_name or os.devnull) as writer:
        split, rows = load_labelled_split(files, split, task=task, **fields)
        check_known(
            rows["label"][:], names_of(read_config(folder)), task, f"{split} of {' and '.join(files)}"
        )
        limit = options["max_source_length"]
        if limit == "auto":  # of taggers every word is scored
            limit = None if task == "tagging" else trained.get("max_length")
        shared = ("max_tokens_per_batch", "revision", "device", "dtype", "allow_mismatch")
        classifier = Classifier.from_pretrained(
            model, max_length=limit, **{name: options[name] for name in shared}
        )
        with progress_bar(len(rows), " rows") as bar:
            evaluation = evaluate_labels(classifier, rows, bar.update)
        for row, prediction in zip(rows, evaluation.predictions, strict=True):
            answer = {"prediction": prediction.label, "probability": prediction.probability}
            writer.write(finite_json({**row, **answer}, ensure_ascii=False))
    say(str(evaluation))
    return {"split": split, "task": task, "max_length": classifier.max_length, **evaluation.to_dict()}


def _evaluate_questions(
    model: str,
    folder: Path,
    files: list[str],
    split: str,
    output_name: str | None,
    fields: dict[str, Any],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Answer questions; print the scores and return them."""
    from vaswani.evaluation.answers import evaluate_answers
    from vaswani.files.line_files import LineWriter
    from vaswani.hub.run_metadata import read_settings
    from vaswani.inference.answer.answering import QuestionAnswerer

    settings = read_settings(folder)
    settings = settings if settings.get("task") == "question_answering" else {}
    fields |= {name: settings.get(name) for name in FIELDS_OF_QUESTIONS if fields[name] is None}
    fields = {name: value for name, value in fields.items() if value is not None}
    with LineWriter(output_name or os.devnull) as writer:
        split, rows = load_question_split(files, split, **fields)
        limit = options["max_source_length"]
        shared = ("max_tokens_per_batch", "revision", "device", "dtype", "allow_mismatch")
        answerer = QuestionAnswerer.from_pretrained(
            model,
            max_length=None if limit == "auto" else limit,
            null_score_diff_threshold=options["null_score_diff_threshold"],
            **{name: options[name] for name in shared},
        )
        with progress_bar(len(rows), " rows") as bar:
            evaluation = evaluate_answers(answerer, rows, bar.update)
        for row, answer in zip(rows, evaluation.answers, strict=True):
            writer.write(finite_json({**row, "prediction": answer.text}, ensure_ascii=False))
    say(str(evaluation))
    search = {**vars(answerer.lengths), "max_answer_length": answerer.max_answer_length}
    search["null_score_diff_threshold"] = answerer.null_score_diff_threshold
    return {"split": split, "task": "question_answering", **search, **evaluation.to_dict()}


def _evaluate_texts(
    folder: Path,
    objective: str,
    files: list[str],
    split: str,
    fields: dict[str, Any],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Score a language model; print the scores and return them."""
    from vaswani.training.runs.evaluation import evaluate_language_model

    if len(files) == 2:
        raise UserError(f"a language model is evaluated on one file of texts, got {files[0]} and {files[1]}")
    if Path(files[0]).is_file():
        split, place = "test", {"test_file": files}
    else:
        split, place = located(files, split)
    length, device = options["max_source_length"], options["device"]
    max_rows = fields.pop("max_rows")
    settings = {
        **place,
        **fields,
        "max_length": None if length == "auto" else length,
        "max_tokens_per_batch": options["max_tokens_per_batch"],
        "use_cpu": True if device == "cpu" else None,
    }
    if device not in (None, "cpu", "cuda"):
        raise UserError(f"device {device!r} cannot be used for a language model; expected 'cpu' or 'cuda'")
    return evaluate_language_model(folder, objective, split, max_rows=max_rows, settings=settings, tell=warn)
