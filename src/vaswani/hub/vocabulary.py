"""Whether tokenizers belong to a model: by the numbers of their tokens, and by their special tokens.

A model may embed more tokens than its tokenizer has: libraries pad embeddings to a multiple, or keep rows for
tokens to come. As padding count fewer than m rows, where m is the largest power of two up to 128 that divides
the number of embeddings (T5 embeds 32,128 and has 32,100 tokens), and otherwise `MOST_SPARE` of the rows, of
models of ours `MOST_SPARE_OF_OURS`.
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
MOST_SPARE_OF_OURS = 0.001  # of students that have the embeddings of their teacher


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
        directory: where they are, for messages.
        model: with or without a head.
        source: the tokenizer of what the model reads.
        target: of what it writes; None for a model that writes nothing, or is given a new head.
        allow_mismatch: warn of tokenizers that may be another model's. More tokens than embeddings are
            always an error.

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
    """How many of so many embeddings may be of no token."""
    multiple = math.gcd(rows, LARGEST_MULTIPLE)
    return max(multiple - 1, int(rows * (MOST_SPARE_OF_OURS if is_ours else MOST_SPARE)))


def _num_tokens(tokenizer: PreTrainedTokenizerBase, is_target: bool) -> int:
    """The tokens of one side; some library tokenizers serve two vocabularies."""
    if is_target and (encoder := getattr(tokenizer, "target_encoder", None)):  # Marian's
        return len(encoder) if getattr(tokenizer, "separate_vocabs", False) else len(tokenizer)
    if is_target and (size := getattr(tokenizer, "tgt_vocab_size", None)):  # FSMT's
        return int(size)
    return len(tokenizer)


def _check_special_tokens(
    directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, allow_mismatch: bool
) -> None:
    """Check that a tokenizer pads and ends texts with the model's tokens, where both know such tokens."""
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
    """Check that a tokenizer names its padding, as the file does that is saved with our translators."""
    if model.config.pad_token_id is not None and tokenizer.pad_token is None:
        file = Path(tokenizer.name_or_path or directory) / "tokenizer_config.json"
        problem = f"{file} names no pad_token and the model has pad_token_id={model.config.pad_token_id}"
        _object(f"{problem}; they do not belong together", allow_mismatch)


def _object(problem: str, allow_mismatch: bool) -> None:
    """Raise a UserError, or warn of what was allowed."""
    if not allow_mismatch:
        remedy = "give a folder in which they do, or --allow_mismatch where a command has it"
        raise UserError(f"{problem}: {remedy}")
    logger.warning(f"{problem}; allow_mismatch takes them.")
