"""Check that tokenizers belong to a model, by their vocabulary sizes and special tokens.

A model may have more embeddings than its tokenizer has tokens: libraries pad embeddings to a multiple, or
reserve rows. Fewer than m unused rows are accepted, where m is the largest power of two up to 128 that
divides the number of embeddings (T5 has 32,128 and 32,100 tokens), or `MOST_SPARE` of the rows, if that is
more (`MOST_SPARE_OF_OURS` for vaswani models).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from vaswani.errors import UserError
from vaswani.model.configuration_vaswani import VaswaniConfig, VaswaniFamilyConfig

logger = logging.get_logger(__name__)

LARGEST_MULTIPLE = 128
MOST_SPARE = 0.02  # Phi-2 embeds 51,200 and has 50,295 tokens
MOST_SPARE_OF_OURS = 0.001  # students may have the embeddings of their teacher


def check_vocabulary(
    directory: Path,
    model: PreTrainedModel,
    source: PreTrainedTokenizerBase,
    target: PreTrainedTokenizerBase | None = None,
    *,
    allow_mismatch: bool = False,
) -> None:
    """Check that tokenizers have the model's tokens.

    Args:
        directory: of the tokenizers, for messages.
        model: with or without a head.
        source: the tokenizer of inputs.
        target: the tokenizer of outputs; None for a model without outputs or with a new head.
        allow_mismatch: warn instead of raising where a tokenizer may belong to another model. More tokens
            than embeddings are always an error.

    Raises:
        UserError: a tokenizer has more tokens than the model, or far fewer, or other special tokens.
    """
    sides: list[tuple[str, str, PreTrainedTokenizerBase, Any]]
    sides = [("tokenizer", "embeds", source, model.get_input_embeddings())]
    if target is not None and model.get_output_embeddings() is not None:
        name = "tokenizer" if target is source else "target tokenizer"
        sides.append((name, "predicts", target, model.get_output_embeddings()))
    for name, does, tokenizer, embeddings in sides:
        rows = len(embeddings.weight)
        tokens = _num_tokens(tokenizer, is_target=does == "predicts")
        problem = f"the {name} in {directory} has {tokens} tokens but the model {does} {rows}"
        if tokens > rows:
            raise UserError(f"{problem}; they do not belong together: give a folder in which they do")
        if tokens < rows - most_spare(rows, isinstance(model.config, VaswaniFamilyConfig)):
            _object(f"{problem}; they do not belong together", allow_mismatch)
    _check_special_tokens(directory, model, target or source, allow_mismatch)
    if isinstance(model.config, VaswaniConfig) and target is not None:
        for tokenizer in dict.fromkeys((source, target)):
            _check_pads(directory, model, tokenizer, allow_mismatch)


def most_spare(rows: int, is_ours: bool) -> int:
    """Return how many rows of an embedding may be unused."""
    multiple = math.gcd(rows, LARGEST_MULTIPLE)
    return max(multiple - 1, int(rows * (MOST_SPARE_OF_OURS if is_ours else MOST_SPARE)))


def _num_tokens(tokenizer: PreTrainedTokenizerBase, is_target: bool) -> int:
    """Return the vocabulary size of one side; some library tokenizers have two vocabularies."""
    if is_target and (encoder := getattr(tokenizer, "target_encoder", None)):  # Marian's
        return len(encoder) if getattr(tokenizer, "separate_vocabs", False) else len(tokenizer)
    if is_target and (size := getattr(tokenizer, "tgt_vocab_size", None)):  # FSMT's
        return int(size)
    return len(tokenizer)


def _check_special_tokens(
    directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, allow_mismatch: bool
) -> None:
    """Check that the padding and end tokens of tokenizer and model agree, where both have them."""
    for name in ("pad_token_id", "eos_token_id"):
        of_model, of_tokenizer = getattr(model.config, name, None), getattr(tokenizer, name)
        known = of_model if isinstance(of_model, list) else [of_model]
        if None not in (of_model, of_tokenizer) and of_tokenizer not in known:
            _object(
                f"the tokenizer in {directory} has {name}={of_tokenizer} and the model {name}={of_model}; "
                "they do not belong together",
                allow_mismatch,
            )


def _check_pads(
    directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, allow_mismatch: bool
) -> None:
    """Check that a tokenizer has a padding token if the model has one."""
    if model.config.pad_token_id is not None and tokenizer.pad_token is None:
        file = Path(tokenizer.name_or_path or directory) / "tokenizer_config.json"
        problem = f"{file} names no pad_token and the model has pad_token_id={model.config.pad_token_id}"
        _object(f"{problem}; they do not belong together", allow_mismatch)


def _object(problem: str, allow_mismatch: bool) -> None:
    """Raise a UserError, or log a warning where the mismatch is allowed."""
    if not allow_mismatch:
        remedy = "give a folder in which they do, or --allow_mismatch where a command has it"
        raise UserError(f"{problem}: {remedy}")
    logger.warning(f"{problem}; allow_mismatch accepts them.")
