"""Evaluate a trained language model on texts, as a pre-training does at its end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PrinterCallback

from vaswani.data.evenly_spread import at_most
from vaswani.data.sources.corpus import load_corpus
from vaswani.hub.run_metadata import read_settings
from vaswani.model.configuration_vaswani import VaswaniDecoderConfig
from vaswani.training.config.config_file import load_config
from vaswani.training.config.pretraining_arguments import PretrainingConfig
from vaswani.training.runs.models import Pretrained
from vaswani.training.runs.pretraining import CausalLMRun, MaskedLMRun, PretrainingRun, tell_scores

# Fields of the training that its scores depend on.
SETTINGS_OF_TRAINING = (
    *("text_field", "documents", "max_length", "seed"),
    *("mask_probability", "whole_word_masking", "next_sentence", "pack"),
)
OF_OBJECTIVE = {"masked": ("mask_probability", "whole_word_masking", "next_sentence"), "causal": ("pack",)}
USUAL_LENGTH = 512  # tokens of a sequence, where no training and no positions tell


class _CausalEvaluation(CausalLMRun):
    """A run of any causal model, which only evaluates."""

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
    settings: Mapping[str, Any],
    tell: Callable[[str], object] = lambda message: None,
) -> dict[str, Any]:
    """Score a language model on the texts of a split; print the scores.

    Settings of the training that is recorded in the folder hold where none are given, so that the scores are
    those of that training. Sequences are as long as there, or as the model's positions.

    Args:
        folder: of the model.
        objective: "masked" or "causal".
        split: of the corpus.
        max_rows: number of sequences to evaluate on, evenly spread; None means all.
        tell: is called with the counts of the rows that were read.
        settings: fields of a `PretrainingConfig`, such as the corpus; None means not given.

    Returns:
        The content of `evaluation.json`, with `perplexity`, `accuracy` and, of a causal model,
        `bits_per_byte`.

    Raises:
        UserError: the model or its tokenizer cannot be evaluated, or the corpus cannot be read.
    """
    with tempfile.TemporaryDirectory() as output:
        run = _run(folder, objective, {"output_dir": output, **settings})
        corpus = load_corpus(run.config.data.corpus, [split])
        corpus.split(split)  # raises where there is none
        tell(f"{split} of {run.config.data.dataset or run.config.data.test_file[0]}: {corpus.reports[split]}")
        run.check()
        tokenizers = run.build_tokenizers(corpus)
        model = run.build_model(tokenizers)
        rows = at_most(run.tokenize(corpus, tokenizers)[split], max_rows)
        trainer = run.build_trainer({"train": rows}, tokenizers, model)
        trainer.remove_callback(PrinterCallback)
        trainer.evaluate(rows, metric_key_prefix=split)
        return tell_scores(trainer, split, rows)


def _run(folder: Path, objective: str, given: dict[str, Any]) -> PretrainingRun:
    recorded = read_settings(folder)
    kept = recorded if recorded.get("objective", "masked") == objective else {}
    names = [name for name in SETTINGS_OF_TRAINING if name not in OF_OBJECTIVE[_other(objective)]]
    values = {name: kept[name] for name in names if kept.get(name) is not None}
    values |= {name: value for name, value in given.items() if value is not None}
    values |= {"model": folder, "objective": objective, "eval_strategy": "no", "disable_tqdm": True}
    run = (MaskedLMRun if objective == "masked" else _CausalEvaluation)(_config(values))
    config, pretrained = run.config, run.pretrained
    assert pretrained is not None  # as there is a model
    if "max_length" not in values:
        most = values.get("max_tokens_per_batch", USUAL_LENGTH)
        config.data = replace(config.data, max_length=min(pretrained.longest or USUAL_LENGTH, most))
    attention = getattr(pretrained.config, "decoder_attention", None)
    if objective == "causal" and "pack" not in values and (attention is None or "sparse" in attention):
        config.task = replace(config.task, pack=False)
    return run


def _other(objective: str) -> str:
    return "causal" if objective == "masked" else "masked"


def _config(values: Mapping[str, Any]) -> PretrainingConfig:
    flags = []
    for name, value in values.items():
        flags += [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    return load_config(None, flags, PretrainingConfig)
