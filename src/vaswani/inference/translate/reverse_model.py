"""Load the model from target to source that ranks hypotheses; see `noisy_channel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import AutoModelForSeq2SeqLM

from vaswani.data.text_codec import Tokenizers
from vaswani.errors import UserError
from vaswani.inference.loading import LoadOptions, load_for_torch
from vaswani.inference.other_direction import Languages, check_other_direction, exchanged_languages
from vaswani.inference.score.scorer import Scorer, kind_of_checkpoint


def check_reverse_model(
    names: Sequence[str | Path],
    reverse: str | Path,
    source_prefix: str | None,
    load: LoadOptions,
    options: Mapping[str, Any],
) -> None:
    """Raise a UserError if a reverse model does not fit to the models, before they are loaded.

    Args:
        names: the models from source to target.
        reverse: the model from target to source.
        source_prefix: the prefix of the reverse model, if one is given.
        load: how to load the models.
        options: options of the `Translator`.
    """
    for name in names:
        prefixes = options.get("source_prefix"), source_prefix
        check_other_direction(name, reverse, _languages(options), prefixes, load.allow_mismatch)
    if (kind := kind_of_checkpoint(reverse)) != "seq2seq":
        raise UserError(f"reverse_model={reverse} is a {kind} language model; expected an encoder-decoder")


def load_reverse_model(
    reverse: str | Path,
    source_prefix: str | None,
    tokenizers: Tokenizers,
    load: LoadOptions,
    options: Mapping[str, Any],
) -> Scorer:
    """Return the scorer of a model from target to source.

    Args:
        reverse: the model.
        source_prefix: its prefix; None means the one saved with its tokenizer.
        tokenizers: those of the model from source to target.
        load: how to load the model; the revision is of the other one.
        options: options of the `Translator`. Those that the scorer has too apply to both, with the languages
            exchanged if both tokenizers mark languages.
    """
    model, *turned = load_for_torch(reverse, replace(load, revision=None), AutoModelForSeq2SeqLM)
    names = "length_penalty", "max_tokens_per_batch"
    common: dict[str, Any] = {name: options[name] for name in names if name in options}
    source, target = exchanged_languages(_languages(options), tokenizers, (turned[0], turned[1]))
    return Scorer(
        model,
        *turned,
        source_prefix=source_prefix,
        source_language=source,
        target_language=target,
        **common,
    )


def _languages(options: Mapping[str, Any]) -> Languages:
    return options.get("source_language"), options.get("target_language")
