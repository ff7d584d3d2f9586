"""The options of `vaswani evaluate` and `compare`: about the rows, and which models take which of them."""

from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from vaswani.cli.options import (
    TRANSLATOR_DEFAULTS,
    AsJson,
    DatasetConfig,
    DocStride,
    MaxAnswerLength,
    MaxQuestionLength,
    NullThreshold,
    Threshold,
    column,
    number,
)
from vaswani.errors import UserError

# The kind of a model by its Auto class, and the name of each kind in messages.
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
    "completions": "a causal language model with prompts",
    "denoising": "an encoder-decoder that was pre-trained on texts",
}
# The fields of the rows on which each kind is evaluated. `ACCEPTED_BY` lists the kinds that take an option.
FIELDS: dict[str, tuple[str, ...]] = {
    "seq2seq": ("source_field", "target_field"),
    "labels": ("text_field", "text_pair_field", "label_field", "label_separator"),
    "masked": ("text_field", "documents"),
    "causal": ("text_field", "documents"),
    "denoising": ("text_field", "documents"),
    "completions": ("prompt_field", "completion_field", "messages_field"),
    "questions": ("context_field", "question_field", "answers_field", "answer_start_field"),
}
SEARCH_OPTIONS = (
    *("num_beams", "length_penalty", "too_long", "max_length", "min_length", "max_length_ratio"),
    *("min_length_ratio", "no_repeat_ngram_size", "repetition_penalty", "coverage_penalty", "mbr_metric"),
    *("reverse_model", "reverse_weight", "reverse_source_prefix", "temperature", "top_k", "top_p", "seed"),
    *("replace_unknown", "banned_phrases", "required_phrases"),
)
ANSWER_OPTIONS = ("null_score_diff_threshold", "doc_stride", "max_question_length", "max_answer_length")
ENSEMBLE_OPTIONS = ("ensemble_weights", "ensemble_average")
ENGINE_OPTIONS = ("engine", "quantization", "dtype")
LANGUAGE_OPTIONS = ("source_language", "target_language", "source_prefix")
ACCEPTED_BY = {
    **dict.fromkeys((*SEARCH_OPTIONS, *LANGUAGE_OPTIONS, *ENSEMBLE_OPTIONS, "task"), ("seq2seq",)),
    **{
        name: tuple(kind for kind, fields in FIELDS.items() if name in fields)
        for name in chain.from_iterable(FIELDS.values())
    },
    **dict.fromkeys(ANSWER_OPTIONS, ("questions",)),
    "threshold": ("labels",),
    "stride": ("causal",),
    **dict.fromkeys((*ENGINE_OPTIONS, "output_name", "allow_mismatch"), ("seq2seq", "labels", "questions")),
}
FLAGS = {"output_name": "output", "banned_phrases": "ban", "required_phrases": "require"}


def declare_rows(
    dataset_config: DatasetConfig = None,
    source_field: Annotated[
        str | None,
        column("source_field", "Source column; a dot selects a nested one", "as in training, or source"),
    ] = None,
    target_field: Annotated[
        str | None,
        column("target_field", "Target column; a dot selects a nested one", "as in training, or target"),
    ] = None,
    text_field: Annotated[
        str | None,
        column(
            "text_field", "For other models: column of the text or of the words", "as in training, or text"
        ),
    ] = None,
    text_pair_field: Annotated[str | None, column("text_pair_field", "Column of a second text")] = None,
    label_field: Annotated[
        str | None,
        column("label_field", "Column of the label, labels, number or tags", "as in training, or label"),
    ] = None,
    label_separator: Annotated[
        str | None,
        typer.Option(
            "--label_separator", help="Separates several labels. Default: as in training, or a comma."
        ),
    ] = None,
    context_field: Annotated[
        str | None,
        column("context_field", "For question answering: column of the text", "as in training, or context"),
    ] = None,
    question_field: Annotated[
        str | None, column("question_field", "Column of the question", "as in training, or question")
    ] = None,
    answers_field: Annotated[
        str | None, column("answers_field", "Column of the answers", "as in training, or answers")
    ] = None,
    answer_start_field: Annotated[
        str | None, column("answer_start_field", "Column of the answer's first character")
    ] = None,
    prompt_field: Annotated[
        str | None,
        column("prompt_field", "For completions: column of the prompt", "as in training, or prompt"),
    ] = None,
    completion_field: Annotated[
        str | None,
        column(
            "completion_field", "Column of the completion, which is scored", "as in training, or completion"
        ),
    ] = None,
    messages_field: Annotated[
        str | None, column("messages_field", "Column of chats, whose answers are scored, in place of prompts")
    ] = None,
    null_score_diff_threshold: NullThreshold = None,
    doc_stride: DocStride = None,
    max_question_length: MaxQuestionLength = None,
    max_answer_length: MaxAnswerLength = None,
    threshold: Threshold = None,
    documents: Annotated[
        str | None,
        typer.Option(
            "--documents",
            metavar="line|blank_line",
            help="For language models: what a document is in text files. Default: as in training, or line.",
        ),
    ] = None,
    stride: Annotated[
        int | None,
        number(
            "--stride",
            help="For causal models: score each document in overlapping sequences that begin this many "
            "tokens apart, each token once, with a long context. Default: without overlap.",
            at_least=1,
        ),
    ] = None,
    max_rows: Annotated[
        int | None,
        number("--max_rows", help="Number of rows to evaluate on, evenly spread. Default: all.", at_least=1),
    ] = None,
) -> None:
    """Declare the options about the rows and what is scored of them, for models of all kinds."""


def declare(
    max_length: Annotated[
        int | None,
        number(
            "--max_length",
            help="For an encoder-decoder: maximum number of tokens of an output. Default: as in training, or "
            "1024.",
            at_least=1,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="translation|summarization",
            help="For an encoder-decoder: translation (BLEU, chrF, exact match) or summarization (ROUGE). "
            "Default: as in training, or translation.",
        ),
    ] = None,
    output_name: Annotated[
        str | None,
        typer.Option("--output", metavar="FILE", help="Write the outputs, one line for each scored row."),
    ] = None,
    save_scores: Annotated[
        bool,
        typer.Option(
            "--save_scores",
            help="Write the scores into the model's folder (evaluation.json), from which vaswani card and "
            "vaswani push make the card.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Declare the options of `vaswani evaluate` that are neither about rows nor those of a translator."""


def kind_of(folder: Path, options: dict[str, Any]) -> str:
    """Return the kind of the model in a folder, a key of `NAMES`, and of the rows that it is evaluated on."""
    if options["engine"] == "ctranslate2":
        return "seq2seq"
    kind = _kind_of_class(folder)
    if kind == "causal" and _evaluates_completions(folder, options):
        return "completions"
    if kind == "seq2seq" and _evaluates_denoising(folder, options):
        return "denoising"
    return kind


def _kind_of_class(folder: Path) -> str:
    """Return the kind of the model in a folder by its class alone."""
    from vaswani.hub.run_metadata import auto_class_of, read_config

    config = read_config(folder)
    name = auto_class_of(config).__name__
    # Checkpoints such as BART's name the class without a head, whose output layer is the embedding.
    kind = "seq2seq" if name == "AutoModel" and config.is_encoder_decoder else KINDS.get(name)
    if not config.architectures and kind != "seq2seq":
        raise UserError(
            f"{folder} holds a model of type {config.model_type!r}, and its config.json names no class of a "
            "model with a head (architectures), so its task is unknown"
        )
    if kind is None:
        raise UserError(
            f"{folder} holds {', '.join(config.architectures or ())}, which cannot be evaluated; expected "
            f"{', '.join(NAMES.values())}"
        )
    return kind


def _evaluates_completions(folder: Path, options: dict[str, Any]) -> bool:
    """Return True if the options or the training of a causal model select evaluation on completions."""
    from vaswani.files.run_settings import read_settings

    if any(options[name] is not None for name in FIELDS["completions"]):
        return True
    as_text = any(options[name] is not None for name in (*FIELDS["causal"], "stride"))
    return not as_text and read_settings(folder).get("task") == "completion"


def _evaluates_denoising(folder: Path, options: dict[str, Any]) -> bool:
    """Return True if an encoder-decoder is evaluated on texts, as in pre-training, and not on pairs."""
    from vaswani.files.run_settings import read_settings

    if any(options[name] is not None for name in (*FIELDS["seq2seq"], "task")):
        return False
    return "objective" in read_settings(folder)


def check_options(kind: str, given: dict[str, Any]) -> None:
    """Raise `UserError` for an option that has no effect on a model of this kind."""
    for name, kinds in ACCEPTED_BY.items():
        if kind not in kinds and given.get(name) not in (None, TRANSLATOR_DEFAULTS.get(name)):
            flag = FLAGS.get(name, name)
            of = " or ".join(NAMES[one] for one in kinds)
            raise UserError(f"--{flag} is for {of}, and the model is {NAMES[kind]}; leave it out")
