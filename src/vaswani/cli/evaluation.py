"""`vaswani evaluate`."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaswani.cli.app import app
from vaswani.cli.evaluation_options import (
    ANSWER_OPTIONS,
    ENGINE_OPTIONS,
    ENSEMBLE_OPTIONS,
    FIELDS,
    LANGUAGE_OPTIONS,
    NAMES,
    SEARCH_OPTIONS,
    check_options,
    declare,
    declare_rows,
    kind_of,
)
from vaswani.cli.options import (
    TRANSLATOR_DEFAULTS,
    Split,
    check_text_file,
    model_option,
    takes_options_of,
    takes_translator_options,
)
from vaswani.cli.screen import begin_work, check_standard_output, print_line, progress_bar, warn
from vaswani.cli.splits import as_in_training, check_columns, files_in, load_split, located
from vaswani.errors import UserError
from vaswani.files.json_files import finite_json

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedConfig

QUESTION_ANSWERING = "question_answering"  # the task in the settings of a training
REMEDY = "search with num_beams in place of temperature"  # for an option that ranks several samples
LOADING = (*ENGINE_OPTIONS, "max_tokens_per_batch", "revision", "device", "allow_mismatch")


@dataclass(frozen=True)
class EvaluationRequest:
    """A requested evaluation.

    Args:
        models: folders or names on the Hub; several encoder-decoders predict together.
        folder: folder with the configuration and the tokenizers of the first model.
        kind: kind of the model, a key of `NAMES`.
        files: the data files, or the name of the data set.
        split: split of the data.
        options: options of the command; None for those that are not given.
    """

    models: list[str]
    folder: Path
    kind: str
    files: list[str]
    split: str
    options: dict[str, Any]

    @cached_property
    def config(self) -> "PreTrainedConfig":
        """The configuration of the model."""
        from vaswani.hub.run_metadata import read_config

        return read_config(self.folder)

    @property
    def fields(self) -> dict[str, Any]:
        """The options for fields of the rows; None for those that are not given."""
        return {name: self.options[name] for name in FIELDS[self.kind]}

    @property
    def max_length(self) -> int | None:
        """The maximum number of tokens of a text; None if it is not given."""
        length = self.options["max_source_length"]
        return None if length == "auto" else length

    @property
    def engine_options(self) -> dict[str, Any]:
        """The engine and, if they are given, the types of the weights."""
        return {name: self.options[name] for name in ENGINE_OPTIONS if self.options[name] is not None}

    @property
    def data(self) -> str:
        """The files without their folders, because others read what holds it, or the name on the Hub."""
        return " and ".join(Path(file).name if Path(file).exists() else file for file in self.files)

    def training_settings(self, *tasks: str) -> dict[str, Any]:
        """Return the settings of the model's training; empty if its task is not one of these."""
        from vaswani.files.run_settings import read_settings

        settings = read_settings(self.folder)
        return settings if settings.get("task") in tasks else {}

    def load_rows(
        self, load: Callable[..., Any], spec_class: Callable[..., Any], trained: dict[str, Any], **more: Any
    ) -> tuple[str, "Dataset"]:
        """Load the rows (see `load_split`) with the fields that are given, else those of a training."""
        fields = as_in_training(self.fields, trained)
        if trained.get("directions") and len(self.files) == 1 and not any(self.fields.values()):
            fields = self._all_directions(trained["directions"])
        more |= {name: self.options[name] for name in ("max_rows", "dataset_config")}
        output = self.options["output_name"]
        return load_split(load, spec_class, self.files, self.split, output=output, **fields, **more)

    def _all_directions(self, directions: list[str]) -> dict[str, Any]:
        """Return the directions of a training as the fields of a table."""
        from vaswani.data.sources.directions import parse_directions

        first = parse_directions(directions)[0]
        columns = f"--source_field {first.source} --target_field {first.target}"
        if (prefix := self.options.get("source_prefix")) is not None:
            raise UserError(
                f"--source_prefix={prefix!r} is for one direction of the model, which was trained with "
                f"directions={' '.join(directions)}; name its columns too, such as {columns}"
            )
        warn(
            f"all directions of the training together ({', '.join(directions)}); for one, give {columns} "
            f"--source_prefix '{first.tag} '"
        )
        return {"directions": directions}

    def load_model(self, model_class: Any, **more: Any) -> Any:
        """Load the model with a class for inference."""
        return model_class.from_pretrained(
            self.models[0], **{name: self.options[name] for name in LOADING}, **more
        )


@app.command()
@takes_translator_options("max_length", length_penalty=None)
@takes_options_of(declare)
@takes_options_of(declare_rows)
def evaluate(
    model: Annotated[
        list[str],
        model_option(
            "--model",
            help="Folder or Hub name of a trained model. Several encoder-decoders predict together.",
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            metavar="dates|FILE|FOLDER|NAME",
            help="Test data: dates (built in); a JSONL, JSON, CSV, TSV or Parquet file; a text file of "
            "sources, with TARGET_FILE after it; the folder or Hub name of a data set.",
        ),
    ],
    target_file: Annotated[
        str | None,
        typer.Argument(help="Text file of targets or labels, line by line.", callback=check_text_file),
    ] = None,
    split: Split = "test",
    **options: Any,
) -> None:
    """Score a model on a corpus with the metrics of its task.

    Encoder-decoders: BLEU, chrF and exact match, or ROUGE. Beams and length
    penalty default to those of the evaluations in training. An
    encoder-decoder that was pre-trained on texts: perplexity and accuracy of
    the removed text.
    Classifiers, regressors and taggers: accuracy, F1 or correlation.
    Question answering: exact match and F1, as for SQuAD. Language models:
    perplexity, accuracy and, for causal models, bits per byte. After
    training on completions, or with --prompt_field, only completions count.
    """
    from vaswani.evaluation.text_metrics import check_task
    from vaswani.files.line_files import check_not_input, check_not_json
    from vaswani.hub.checkpoint import local_folder

    output_name, as_json = options["output_name"], options.pop("as_json")
    if options["save_scores"]:
        _check_saving(model, options)
    check_task(options["task"] or "translation")
    check_standard_output()
    begin_work()
    files = [data] if target_file is None else [data, target_file]
    check_not_input(output_name or os.devnull, *files, *files_in(data))
    folder = local_folder(model[0], options["revision"], weights=False)
    kind = kind_of(folder, options)
    check_options(kind, options)
    if kind != "seq2seq" and len(model) > 1:
        raise UserError(
            f"only encoder-decoders predict together, and the first model is {NAMES[kind]}; give one model"
        )
    if kind == "seq2seq" and output_name is not None:
        check_not_json(output_name, "run vaswani translate --scores --output FILE.jsonl for lines of JSON")
    record = _score(EvaluationRequest(model, folder, kind, files, split, options))
    if as_json:
        print_line(finite_json({"model": model if len(model) > 1 else model[0], "data": files, **record}))


def _score(request: EvaluationRequest) -> dict[str, Any]:
    """Evaluate a model: write its outputs, print the scores, and return them."""
    from vaswani.files.line_files import LineWriter

    if request.kind not in EVALUATIONS:
        record = _evaluate_texts(request)
        search = {name: record[name] for name in ("max_length", "stride") if name in record}
        content = {name: value for name, value in record.items() if name not in search}
        _save(request, {**content, "search": search})
        return record
    with LineWriter(request.options["output_name"] or os.devnull) as writer:
        result, lines, record = EVALUATIONS[request.kind](request)
        for line in lines:
            writer.write(line)
    print_line(str(result))
    fields = result.to_dict()
    _save(request, _content(request, record, result.metrics(), fields["rows"]))
    return record | fields


def _check_saving(models: list[str], options: dict[str, Any]) -> None:
    """Raise `UserError` if the scores cannot be saved as those of the model on the whole split."""
    from vaswani.training.trainer.checkpoints import check_writable

    if len(models) > 1 or not Path(models[0]).is_dir():
        raise UserError("--save_scores writes into the folder of one model; give one --model FOLDER")
    if (reverse := options["reverse_model"]) is not None:
        raise UserError(
            f"--save_scores is for scores of one model; leave it out, or --reverse_model {reverse}"
        )
    if options["max_rows"] is not None:
        raise UserError("--save_scores is for scores of a whole split; leave out --max_rows")
    check_writable(Path(models[0]), "model")


def _content(
    request: EvaluationRequest, record: dict[str, Any], metrics: dict[str, Any], rows: int
) -> dict[str, Any]:
    """Return what `evaluation.json` holds, from the record of an evaluation and its scores."""
    from vaswani.evaluation import final
    from vaswani.evaluation.text_metrics import SCORING_PACKAGE

    unit = "questions" if request.kind == "questions" else "rows"
    package = SCORING_PACKAGE.get(record["task"])
    search = {name: value for name, value in record.items() if name not in ("split", "task")}
    if search.get("engine") == "torch":
        del search["engine"]
    return final.record(record["split"], rows, metrics, unit, package, search=search)


def _save(request: EvaluationRequest, content: dict[str, Any]) -> None:
    """Write `evaluation.json` with the name of the data, if this was asked for."""
    from vaswani.files.atomic_files import write_json
    from vaswani.files.run_files import EVALUATION_FILE

    if request.options["save_scores"]:
        of_data = {"data": request.data, "dataset_config": request.options["dataset_config"]}
        write_json(request.folder / EVALUATION_FILE, {**content, **of_data})
        warn(f"wrote the scores into {request.folder / EVALUATION_FILE}, for vaswani card and vaswani push")


# The scores of an evaluation, the lines of the output, and further entries of the record.
EvaluationOutcome = tuple[Any, Iterator[str], dict[str, Any]]


def _evaluate_pairs(request: EvaluationRequest) -> EvaluationOutcome:
    """Translate or summarize the sources of pairs, and score the outputs."""
    from vaswani.data.sources.corpus import load_corpus
    from vaswani.data.sources.corpus_spec import CorpusSpec
    from vaswani.evaluation.text_metrics import METRICS_OF_TASK, check_task
    from vaswani.evaluation.translator import evaluate as evaluate_translator
    from vaswani.inference.translate.files import as_text
    from vaswani.inference.translate.translation import Translator, check_search

    check_columns(request.files, request.fields)
    trained = request.training_settings(*METRICS_OF_TASK)
    task = request.options["task"] or trained.get("task", "translation")
    check_task(task)
    options = _as_in_training(request.options, trained)
    check_search(options, n_best=1, remedy=REMEDY)
    split, rows = request.load_rows(load_corpus, CorpusSpec, trained)
    translator = Translator.from_pretrained(request.models, **options)
    with progress_bar(len(rows), " rows") as bar:
        result = evaluate_translator(translator, rows, task, bar.update, with_intervals=True)
    names = (
        *(*ENSEMBLE_OPTIONS, *ENGINE_OPTIONS, "num_beams", "length_penalty", "max_source_length"),
        *("max_length", *SEARCH_OPTIONS, *LANGUAGE_OPTIONS),
    )
    search = {name: options[name] for name in names if options[name] is not None}
    search |= {name: column for name, column in request.fields.items() if column is not None}
    search |= {"num_beams": translator.options.num_beams, "max_source_length": translator.max_source_length}
    return result, map(as_text, result.translations), {"split": split, "task": task, **search}


def _as_in_training(options: dict[str, Any], trained: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a translator; those not given are as in the evaluations of the training."""
    given = {name: options[name] for name in TRANSLATOR_DEFAULTS if options[name] not in (None, "auto")}
    is_cut = trained.get("truncate") and given.get("too_long", "cut") == "cut"
    longest = trained.get("generation_max_length")  # counts the decoder's start token
    known: dict[str, Any] = {
        "max_source_length": trained["max_source_length"] if is_cut else None,
        "max_length": longest - 1 if longest else None,
        "length_penalty": trained.get("generation_length_penalty"),
    }
    if "temperature" not in given and "generation_num_beams" in trained:
        known["num_beams"] = trained["generation_num_beams"] or 1
    known = {name: value for name, value in known.items() if value is not None}
    if trained and not trained.get("truncate") and "too_long" not in given:
        known["max_source_length"] = None  # the limit is the model's number of positions
    return {**TRANSLATOR_DEFAULTS, "max_source_length": "auto", **known, **given}


def _evaluate_labels(request: EvaluationRequest) -> EvaluationOutcome:
    """Predict labels, and score them."""
    from vaswani.evaluation.labels import evaluate_labels

    split, rows = load_labelled_rows(request)
    classifier = load_classifier(request, split, rows)
    with progress_bar(len(rows), " rows") as bar:
        result = evaluate_labels(classifier, rows, bar.update)
    lines = (
        finite_json(
            {**row, "prediction": prediction.label, "probability": prediction.probability}, ensure_ascii=False
        )
        for row, prediction in zip(rows, result.predictions, strict=True)
    )
    search = {"max_length": classifier.max_length, **_given_threshold(request)}
    return result, lines, {"split": split, "task": classifier.task, **request.engine_options, **search}


def load_labelled_rows(request: EvaluationRequest) -> tuple[str, "Dataset"]:
    """Return the name of the split and its rows with labels, read as in the training of the model."""
    from vaswani.data.labels.labelled import LabelledSpec, load_labelled
    from vaswani.inference.classify.classification import task_of

    task = task_of(request.config)
    assert task is not None  # models of kind "labels" have a task
    return request.load_rows(load_labelled, LabelledSpec, request.training_settings(task), task=task)


def load_classifier(request: EvaluationRequest, split: str, rows: "Dataset") -> Any:
    """Load the `Classifier`; raise `UserError` if the rows have labels that it does not know."""
    from vaswani.inference.classify.classification import Classifier, names_of, task_of
    from vaswani.training.trainer.labels import TASKS

    labels = TASKS[str(task_of(request.config))](names_of(request.config))
    where = f"{split} of {' and '.join(request.files)}"
    labels.check_known(rows["label"][:], where, f"{request.models[0]} does not know; it knows")
    return request.load_model(Classifier, max_length=request.max_length, **_given_threshold(request))


def _given_threshold(request: EvaluationRequest) -> dict[str, float]:
    threshold = request.options["threshold"]
    return {} if threshold is None else {"threshold": threshold}


def _evaluate_questions(request: EvaluationRequest) -> EvaluationOutcome:
    """Answer questions, and score the answers."""
    from vaswani.evaluation.answers import evaluate_answers

    split, rows = load_question_rows(request)
    answerer = load_answerer(request)
    with progress_bar(len(rows), " rows") as bar:
        result = evaluate_answers(answerer, rows, bar.update)
    lines = (
        finite_json({**row, "prediction": answer.text}, ensure_ascii=False)
        for row, answer in zip(rows, result.answers, strict=True)
    )
    record = {"split": split, "task": QUESTION_ANSWERING, **request.engine_options}
    return result, lines, {**record, **answerer.options}


def load_question_rows(request: EvaluationRequest) -> tuple[str, "Dataset"]:
    """Return the name of the split and its rows with questions, read as in the training of the model."""
    from vaswani.data.questions.question_rows import QuestionSpec, load_questions

    trained = request.training_settings(QUESTION_ANSWERING)
    return request.load_rows(load_questions, QuestionSpec, trained)


def load_answerer(request: EvaluationRequest) -> Any:
    """Load the `QuestionAnswerer`."""
    from vaswani.inference.answer.answering import QuestionAnswerer

    given = {name: request.options[name] for name in ANSWER_OPTIONS}
    return request.load_model(QuestionAnswerer, max_length=request.max_length, **given)


EVALUATIONS: dict[str, Callable[[EvaluationRequest], EvaluationOutcome]] = {
    "seq2seq": _evaluate_pairs,
    "labels": _evaluate_labels,
    "questions": _evaluate_questions,
}


def _evaluate_texts(request: EvaluationRequest) -> dict[str, Any]:
    """Score a model on texts or completions; print the scores and return them."""
    from vaswani.files.run_settings import read_settings
    from vaswani.hub.checkpoint import local_folder
    from vaswani.training.runs.evaluation import evaluate_completions, evaluate_language_model

    folder = local_folder(request.models[0], request.options["revision"])
    split, more = how_to_evaluate_texts(request)
    with naming_max_length():
        if request.kind == "completions":
            return evaluate_completions(folder, split, **more)
        objective = read_settings(folder)["objective"] if request.kind == "denoising" else request.kind
        return evaluate_language_model(folder, objective, split, stride=request.options["stride"], **more)


def how_to_evaluate_texts(request: EvaluationRequest) -> tuple[str, dict[str, Any]]:
    """Return the split, and the arguments that all evaluations of language models take."""
    options, files = request.options, request.files
    if len(files) == 2 and request.kind != "completions":
        raise UserError(f"a language model is evaluated on one file of texts, got {files[0]} and {files[1]}")
    split, place = located(files, request.split)
    settings = {
        **place,
        "dataset_config": options["dataset_config"],
        **request.fields,
        "max_length": request.max_length,
        "max_tokens_per_batch": options["max_tokens_per_batch"],
        "use_cpu": True if options["device"] == "cpu" else None,
    }
    if options["device"] not in (None, "cpu", "cuda"):
        raise UserError(
            f"device {options['device']!r} cannot be used for a language model; expected 'cpu' or 'cuda'"
        )
    return split, {"max_rows": options["max_rows"], "settings": settings, "report": warn}


@contextmanager
def naming_max_length() -> Iterator[None]:
    """Add the name of the option to an error about `max_length`, which the command line calls differently."""
    try:
        yield
    except UserError as error:
        if "max_length" not in str(error):
            raise
        raise UserError(f"{error} (max_length is --max_source_length here)") from error
