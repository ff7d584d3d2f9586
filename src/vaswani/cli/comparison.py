"""The work of `vaswani compare`, which reads rows and loads models as `vaswani evaluate` does."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaswani.cli.evaluation import (
    REMEDY,
    EvaluationRequest,
    how_to_evaluate_texts,
    load_answerer,
    load_classifier,
    load_labelled_rows,
    load_question_rows,
    naming_max_length,
)
from vaswani.cli.evaluation_options import NAMES, check_options, kind_of
from vaswani.cli.options import TRANSLATOR_DEFAULTS
from vaswani.cli.screen import progress_bar
from vaswani.cli.splits import check_columns
from vaswani.errors import UserError

if TYPE_CHECKING:
    from vaswani.distillation.comparison import Candidate, Comparison
    from vaswani.distillation.stack_report import StackComparison
    from vaswani.distillation.task_comparison import Entry

# Options of an evaluation that a comparison does not have.
UNAVAILABLE = {"engine": "torch", "quantization": None, "revision": None, "output_name": None}


@dataclass(frozen=True)
class ComparisonRequest:
    """A requested comparison of models of one task.

    Args:
        evaluations: the evaluation of each model: of the first, of the others and, if there is one, of the
            baseline.
        task: the task of all models; for language models, their kind or objective.
        metric: the metric of the conclusions; None means the first of the task.
        has_baseline: whether the last model is a baseline.
    """

    evaluations: list[EvaluationRequest]
    task: str
    metric: str | None
    has_baseline: bool

    @property
    def kind(self) -> str:
        """Kind of the models, a key of `NAMES`."""
        return self.evaluations[0].kind

    @property
    def models(self) -> list[str]:
        """Folders or names on the Hub."""
        return [each.models[0] for each in self.evaluations]

    @property
    def trained(self) -> EvaluationRequest:
        """The evaluation whose model's training says how to read the rows: the second's, or the first's."""
        from vaswani.files.run_settings import read_settings

        first, second, *_ = self.evaluations
        return second if read_settings(second.folder) else first

    @property
    def is_distillation(self) -> bool:
        """Whether the report calls the models teacher and students."""
        from vaswani.distillation.comparison import were_distilled

        return self.has_baseline or were_distilled(each.folder for each in self.evaluations[1:])

    def data(self, split: str) -> str:
        """Return the name of the data for the report."""
        first = self.evaluations[0]
        config = first.options["dataset_config"]
        return f"{split} of {first.data}" + (f" ({config})" if config else "")


def comparison_request(
    models: Sequence[str],
    files: list[str],
    split: str,
    metric: str | None,
    has_baseline: bool,
    options: dict[str, Any],
) -> ComparisonRequest:
    """Return the request for a comparison of models, without loading any; arguments as in its class.

    Raises:
        UserError: a model is of another task than the first, or has no use for an option.
    """
    from vaswani.evaluation.text_metrics import METRICS, task_of_metric
    from vaswani.hub.checkpoint import local_folder

    folders = [local_folder(model, weights=False) for model in models]
    options = {**options, **UNAVAILABLE}
    text_task = task_of_metric(metric) if metric in METRICS else None
    kind, task = _task_of_all(models, folders, {**options, "task": text_task})
    check_options(kind, options)
    evaluations = [
        EvaluationRequest([model], folder, kind, files, split, options)
        for model, folder in zip(models, folders, strict=True)
    ]
    return ComparisonRequest(evaluations, task, metric, has_baseline)


def _task_of_all(models: Sequence[str], folders: Sequence[Path], options: dict[str, Any]) -> tuple[str, str]:
    """Return the kind and the task of the models; raise `UserError` if one is of another than the first."""
    first, *others = [_task_of(folder, options) for folder in folders]
    for model, other in zip(models[1:], others, strict=True):
        if other != first:
            raise UserError(
                f"{models[0]} is {_in_words(*first)}, and {model} is {_in_words(*other)}; compare models of "
                f"one task{_remedy({first[0], other[0]})}"
            )
    return first


def _task_of(folder: Path, options: dict[str, Any]) -> tuple[str, str]:
    from vaswani.evaluation.text_metrics import METRICS_OF_TASK
    from vaswani.files.run_settings import read_settings
    from vaswani.hub.run_metadata import read_config
    from vaswani.inference.classify.classification import task_of

    kind, settings = kind_of(folder, options), read_settings(folder)
    if kind == "labels":
        return kind, str(task_of(read_config(folder)))
    if kind == "seq2seq":
        trained = settings.get("task")
        return kind, options["task"] or (trained if trained in METRICS_OF_TASK else "translation")
    return kind, settings["objective"] if kind == "denoising" else kind


def _in_words(kind: str, task: str) -> str:
    return NAMES[kind] if task == kind else f"{NAMES[kind]} ({task})"


def _remedy(kinds: set[str]) -> str:
    """Name the options that select one task for models of these kinds."""
    if kinds == {"causal", "completions"}:
        return ", or give --prompt_field or --text_field"
    return ", or give --metric" if kinds in ({"seq2seq"}, {"seq2seq", "denoising"}) else ""


def compare_translators(request: ComparisonRequest) -> "Comparison":
    """Compare encoder-decoders on pairs."""
    from vaswani.data.sources.corpus import load_corpus
    from vaswani.data.sources.corpus_spec import CorpusSpec
    from vaswani.data.sources.directions import parse_directions, tags_of
    from vaswani.distillation.comparison import compare, load_candidates, sentences_to_decode
    from vaswani.evaluation.text_metrics import METRICS_OF_TASK, check_task, task_of_metric
    from vaswani.files.run_settings import read_settings
    from vaswani.inference.translate.translation import check_search

    trained, metric = request.trained, request.metric or next(iter(METRICS_OF_TASK[request.task]))
    check_task(task_of_metric(metric))
    check_columns(trained.files, trained.fields)
    search = {name: value for name, value in trained.options.items() if name in TRANSLATOR_DEFAULTS}
    check_search(search, n_best=1, remedy=REMEDY)
    if search["reverse_model"] is not None:
        search |= _loaded_reverse_model(request.models, search)
    first, *others = load_candidates(request.models, **search)
    baseline = others.pop() if request.has_baseline else None
    settings = read_settings(trained.folder)
    split, rows = trained.load_rows(load_corpus, CorpusSpec, settings)
    if "direction" in rows.column_names:
        for each in (first, *others, *([baseline] if baseline else [])):
            _check_has_tags(each, tags_of(parse_directions(settings["directions"])))
    with progress_bar(sentences_to_decode(len(request.models), len(rows)), " sentences") as bar:
        return compare(
            first,
            others,
            rows,
            data=request.data(split),
            baseline=baseline,
            metric=metric,
            progress=bar.update,
            is_distillation=request.is_distillation,
        )


def _check_has_tags(candidate: "Candidate", tags: Sequence[str]) -> None:
    """Raise `UserError` unless a model has the tags, with which the sources of directions begin."""
    known = candidate.translator.sides.sources.vocabulary()
    if missing := [tag for tag in tags if tag not in known]:
        raise UserError(
            f"the sources begin with the tags of a training's directions, and {candidate.name} has no token "
            f"{missing[0]}; compare models of the same directions"
        )


def _loaded_reverse_model(models: Sequence[str], search: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a search that name a reverse model with the model, loaded once for all models."""
    from vaswani.data.tokenization import load_tokenizers
    from vaswani.hub.checkpoint import local_folder
    from vaswani.inference.loading import LoadOptions
    from vaswani.inference.translate.reverse_model import check_reverse_model, load_reverse_model

    names = "device", "dtype", "quantization", "allow_mismatch"
    load = LoadOptions(**{name: search[name] for name in names})
    which = search["reverse_model"], search["reverse_source_prefix"]
    check_reverse_model(models, *which, load, search)
    tokenizers = load_tokenizers(local_folder(models[0], weights=False))
    scorer = load_reverse_model(*which, tokenizers, load, search)
    return {"reverse_model": scorer, "reverse_source_prefix": None}


def compare_others(request: ComparisonRequest) -> "StackComparison":
    """Compare classifiers, taggers, question answerers or language models."""
    from vaswani.distillation.comparison import names_in_report, roles_of, sentences_to_decode
    from vaswani.distillation.task_comparison import Entry, compare_answerers, compare_classifiers, metrics_of
    from vaswani.hub.checkpoint import local_folder

    metrics = metrics_of(request.kind, request.task)
    metric = request.metric or metrics[0]
    if metric not in metrics:
        of_task = _in_words(request.kind, request.task)
        raise UserError(f"metric={metric} is not for {of_task}; choose one of {', '.join(metrics)}")
    others = len(request.models) - 1 - request.has_baseline
    roles = roles_of(others, request.has_baseline, request.is_distillation)
    folders = map(local_folder, request.models)
    entries = [Entry(*each) for each in zip(names_in_report(request.models), roles, folders, strict=True)]
    if request.kind not in ("labels", "questions"):
        return _compare_language_models(request, entries, metric)
    compare: Any
    if request.kind == "labels":
        split, rows = load_labelled_rows(request.trained)
        models = [load_classifier(each, split, rows) for each in request.evaluations]
        compare = compare_classifiers
    else:
        split, rows = load_question_rows(request.trained)
        models = [load_answerer(each) for each in request.evaluations]
        compare = compare_answerers
    with progress_bar(sentences_to_decode(len(models), len(rows)), " rows") as bar:
        return compare(entries, models, rows, metric=metric, data=request.data(split), progress=bar.update)


def _compare_language_models(
    request: ComparisonRequest, entries: Sequence["Entry"], metric: str
) -> "StackComparison":
    from vaswani.distillation.task_comparison import compare_language_models
    from vaswani.training.runs.evaluation import prepared_alike

    trained, folders = request.trained, [entry.folder for entry in entries]
    split, how = how_to_evaluate_texts(trained)
    how["stride"] = trained.options["stride"]
    with naming_max_length(), prepared_alike(folders, trained.folder, request.task, split, **how) as prepared:
        models, options = prepared
        unit = "rows" if request.kind == "completions" else "sequences"
        told: dict[str, Any] = {"data": request.data(split), "unit": unit, "options": options}
        return compare_language_models(entries, models, metric=metric, **told)
