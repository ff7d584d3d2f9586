"""Evaluate a model on texts, or on completions of prompts, as its training does at the end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from datasets import Dataset
from transformers import AutoModelForPreTraining, PrinterCallback

from vaswani.data.evenly_spread import limit_rows
from vaswani.data.given_tokenizers import prepare_for_scoring
from vaswani.data.text.sequences import SequenceBuilder, SlidingParts
from vaswani.errors import UserError
from vaswani.files.run_settings import read_settings
from vaswani.hub.run_metadata import auto_class_of, read_config
from vaswani.model.configuration_vaswani import VaswaniDecoderConfig
from vaswani.training.config.completion_arguments import CompletionConfig
from vaswani.training.config.config_file import load_config
from vaswani.training.config.options import BaseConfig
from vaswani.training.config.pretraining_arguments import PretrainingConfig
from vaswani.training.runs.base import BaseRun
from vaswani.training.runs.completion import CompletionRun
from vaswani.training.runs.language_modelling import PretrainingRun, report_scores
from vaswani.training.runs.models import Pretrained, open_pretrained
from vaswani.training.runs.pretraining import RUNS, CausalLMRun

# Fields of the training that the scores depend on.
SETTINGS_OF_TRAINING = ("text_field", "documents", "max_length", "seed")
SETTINGS_OF_OBJECTIVE: dict[str, tuple[str, ...]] = {
    "masked": ("mask_probability", "whole_word_masking", "next_sentence"),
    "causal": ("pack",),
    "span_denoising": ("noise_density", "mean_noise_span_length"),
    "gap_sentences": ("gap_sentence_ratio", "gap_sentence_strategy", "gap_sentence_kept"),
}
LIMITED_BY_MODEL = {"causal": ("pack",), "masked": ("next_sentence",)}  # settings that do not suit all models
SETTINGS_OF_COMPLETIONS = ("prompt_field", "completion_field", "messages_field", "max_length", "seed")
USUAL_LENGTH = 512  # default tokens of a sequence, if neither a training nor positions decide it

Config = TypeVar("Config", bound=BaseConfig)


class _CausalEvaluation(CausalLMRun):
    """A run that only evaluates, for any causal model.

    Attributes:
        stride: the stride of overlapping sequences (see `SlidingParts`); None for sequences as in training.
    """

    stride: int | None = None

    @cached_property
    def pretrained(self) -> Pretrained:
        """The model that is evaluated."""
        return open_pretrained(str(self.config.model.model), self.auto_class, prepare_for_scoring)

    @property
    def sequence_builder(self) -> SequenceBuilder:
        if self.stride is None:
            return super().sequence_builder
        return SlidingParts(self.config.data.max_length, self.stride)

    def check(self) -> None:
        super().check()
        longest = self.config.data.max_length
        if self.stride is not None and self.stride >= longest:
            raise UserError(
                f"stride={self.stride} must be less than max_length={longest}, or tokens would be left out"
            )

    def _check_pretrained(self, pretrained: Pretrained) -> None:
        if isinstance(pretrained.config, VaswaniDecoderConfig):
            super()._check_pretrained(pretrained)
            return
        pretrained.check_length(self.config.data.max_length)
        self.check_tokenizer(pretrained.tokenizer, pretrained.folder)


def evaluate_language_model(
    folder: Path,
    objective: str,
    split: str,
    *,
    max_rows: int | None = None,
    stride: int | None = None,
    settings: Mapping[str, Any],
    report: Callable[[str], object] = lambda message: None,
) -> dict[str, Any]:
    """Score a language model on the texts of a split; print the scores.

    Settings that are not given are those of the training recorded in the folder, so the scores are those of
    that training. Sequences are as long as in that training or, without one, as the model's positions allow,
    up to `max_tokens_per_batch` (default 512).

    Args:
        folder: folder of the model.
        objective: objective of a pre-training, one of `SETTINGS_OF_OBJECTIVE`.
        split: split of the corpus.
        max_rows: number of sequences to evaluate on, evenly spread; None means all.
        stride: of a causal model: sequences overlap, each document by itself, and begin this many tokens
            apart; each token is scored once. None: sequences as in training.
        report: called with the counts of the rows that were read.
        settings: fields of a `PretrainingConfig`, such as the corpus; None means not given.

    Returns:
        The content of `evaluation.json`, with `perplexity`, `accuracy` and, of a causal model,
        `bits_per_byte` if its tokenizer is one of bytes; and `max_length` and `stride`, which they depend on.

    Raises:
        UserError: the model or its tokenizer cannot be evaluated, or the corpus cannot be read.
    """
    with tempfile.TemporaryDirectory() as output:
        run = _run(folder, objective, {"output_dir": output, **settings}, stride)
        run.check()
        trainer, rows = _prepared(run, split, max_rows, report)
        trainer.evaluate(rows, metric_key_prefix=split)
        found = {**report_scores(trainer, split, rows), "max_length": run.config.data.max_length}
        return found if stride is None else {**found, "stride": stride}


def evaluate_completions(
    folder: Path,
    split: str,
    *,
    max_rows: int | None = None,
    settings: Mapping[str, Any],
    report: Callable[[str], object] = lambda message: None,
) -> dict[str, Any]:
    """Score a causal language model on the completions of prompts, or on the answers in chats.

    Arguments and errors are as in `evaluate_language_model`; `settings` are fields of a `CompletionConfig`.

    Returns:
        The content of `evaluation.json`, with `perplexity` and `accuracy` of the tokens of the completions,
        and `examples` of what the model writes; and `max_length`.
    """
    with tempfile.TemporaryDirectory() as output:
        run = _completion_run(folder, {"output_dir": output, **settings})
        run.check()
        trainer, rows = _prepared(run, split, max_rows, report)
        trainer.evaluate(rows, metric_key_prefix=split)
        return {**run.show_scores(trainer, split, rows), "max_length": run.config.data.max_length}


@contextmanager
def prepared_alike(
    folders: Sequence[Path],
    trained: Path,
    kind: str,
    split: str,
    *,
    max_rows: int | None = None,
    stride: int | None = None,
    settings: Mapping[str, Any],
    report: Callable[[str], object] = lambda message: None,
) -> Iterator[tuple[list[tuple[Any, Dataset]], dict[str, Any]]]:
    """Prepare the evaluation of several language models on the same sequences or completions.

    Settings that are not given are those of one training, as far as all models allow: sequences are no longer
    than the positions of each, and packed, or pairs of texts, only if that suits each.

    Args:
        folders: folders of the models.
        trained: folder with the settings of the training.
        kind: objective of a pre-training, one of `SETTINGS_OF_OBJECTIVE`, or "completions".
        split, max_rows, stride, settings, report: as in `evaluate_language_model`.

    Yields:
        For each model a trainer, which predicts as long as the context lasts, and the tokenized rows; and the
        options of all models that the scores depend on.

    Raises:
        UserError: as in `evaluate_language_model`, or the models make different tokens of the texts.
    """
    with tempfile.TemporaryDirectory() as output:
        given = {"output_dir": output, **settings}
        runs: list[BaseRun] = [
            _completion_run(folder, given, trained)
            if kind == "completions"
            else _run(folder, kind, given, stride, trained)
            for folder in folders
        ]
        longest = min(run.config.data.max_length for run in runs)
        for name in LIMITED_BY_MODEL.get(kind, ()):
            shared = {name: all(getattr(run.config.task, name) for run in runs)}
            for run in runs:
                run.config.task = replace(run.config.task, **shared)
        for run in runs:
            run.config.data = replace(run.config.data, max_length=longest)
            run.check()
        found: list[tuple[Any, Dataset]] = []
        for run, folder in zip(runs, folders, strict=True):
            trainer, rows = _prepared(run, split, max_rows, lambda line: None if found else report(line))
            if found:
                _check_same_rows(found[0][1], rows, folders[0], folder)
            found.append((trainer, rows))
        config, settings_of_kind = runs[0].config, SETTINGS_OF_OBJECTIVE.get(kind, ())
        options = {"max_length": longest} | {name: getattr(config.task, name) for name in settings_of_kind}
        if kind not in ("causal", "completions"):  # the others choose what is predicted at random
            options["seed"] = config.training.seed
        yield found, options if stride is None else {**options, "stride": stride}


def _check_same_rows(first: Dataset, rows: Dataset, *folders: Path) -> None:
    """Raise `UserError` unless two models read the same tokens, and the same of them are scored."""
    names = " and ".join(map(str, folders))
    if rows["input_ids"][:] != first["input_ids"][:]:
        raise UserError(
            f"the tokenizers of {names} make different tokens of the texts, so their scores cannot be "
            "compared; give models with the same tokenizer"
        )
    if "labels" in rows.column_names and rows["labels"][:] != first["labels"][:]:
        raise UserError(
            f"the tokenizers of {names} locate the answers differently in the same tokens, so other tokens "
            "would be scored; give models with the same tokenizer and chat template"
        )


def _completion_run(folder: Path, given: Mapping[str, Any], trained: Path | None = None) -> CompletionRun:
    values = _settings(folder, trained, "task", "completion", SETTINGS_OF_COMPLETIONS, given)
    run = CompletionRun(_config(values, CompletionConfig))
    if given.get("max_length") is None:
        _fit_length(run, run.pretrained, values.get("max_length"), USUAL_LENGTH)
    return run


def _fit_length(run: BaseRun, model: Pretrained, recorded: int | None, most: int) -> None:
    """Set the length of a run to that of a training, or else to `most`, as far as the model allows."""
    longest = model.longest or recorded or USUAL_LENGTH
    run.config.data = replace(run.config.data, max_length=min(longest, recorded or most))


def _prepared(
    run: BaseRun, split: str, max_rows: int | None, report: Callable[[str], object]
) -> tuple[Any, Dataset]:
    """Load the model of a run and the rows of a split; return the trainer and the tokenized rows."""
    corpus = run.read([split])
    corpus.split(split)  # raises if it is missing
    data = run.config.data
    tokenizers = run.build_tokenizers(corpus)
    model = run.build_model(tokenizers)
    rows = limit_rows(run.tokenize(corpus, tokenizers)[split], max_rows)
    used = run.rows_in_words(split, rows, corpus.reports[split])  # which tokenizing has completed
    report(f"{split} of {data.dataset or ' and '.join(data.test_file)}: {used}")
    trainer: Any = run.build_trainer({"train": rows}, tokenizers, model)
    trainer.remove_callback(PrinterCallback)
    return trainer, rows


def _settings(
    folder: Path,
    trained: Path | None,
    field: str,
    expected: str,
    names: Sequence[str],
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the given settings and, if the recorded training has the expected `field`, its settings.

    The training is the one recorded in `trained`, or in the model's folder.
    """
    recorded = read_settings(trained or folder)
    kept = recorded if recorded.get(field, "masked") == expected else {}
    values = {name: kept[name] for name in names if kept.get(name) is not None}
    values |= {name: value for name, value in given.items() if value is not None}
    return values | {"model": folder, field: expected, "eval_strategy": "no", "disable_tqdm": True}


def _run(
    folder: Path, objective: str, given: dict[str, Any], stride: int | None, trained: Path | None = None
) -> PretrainingRun:
    names = (*SETTINGS_OF_TRAINING, *SETTINGS_OF_OBJECTIVE[objective])
    values = _settings(folder, trained, "objective", objective, names, given)
    shape = read_config(folder)
    # Only models of ours separate packed documents, and a new head for pairs of texts would guess.
    attention = getattr(shape, "decoder_attention", ("sparse",))
    if objective == "causal" and (stride is not None or "sparse" in attention):
        values["pack"] = False
    if objective == "masked" and auto_class_of(shape) is not AutoModelForPreTraining:
        values["next_sentence"] = False
    run_class = _CausalEvaluation if objective == "causal" else RUNS[objective]
    run = run_class(_config(values, PretrainingConfig))
    assert run.pretrained is not None  # the configuration names a model
    if given.get("max_length") is None:
        most = values.get("max_tokens_per_batch", USUAL_LENGTH)
        _fit_length(run, run.pretrained, values.get("max_length"), most)
    if isinstance(run, _CausalEvaluation):
        run.stride = stride
    return run


def _config(values: Mapping[str, Any], config_class: type[Config]) -> Config:
    flags = []
    for name, value in values.items():
        flags += [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    return load_config(None, flags, config_class)
