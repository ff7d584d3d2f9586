"""Check that tokenizers belong to a model, by their vocabulary sizes and special tokens.

A model may have more embeddings than its tokenizer has tokens: libraries pad embeddings to a multiple, or
reserve rows. Fewer than m unused rows are accepted, where m is the largest power of two up to 128 that
divides the number of embeddings (T5 has 32,128 embeddings and 32,100 tokens). If the share `MAX_UNUSED` of
the rows (`MAX_UNUSED_OF_OURS` for vaswani models) is more, as many unused rows are accepted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from vaswani.errors import UserError
from vaswani.model.configuration_vaswani import VaswaniConfig, VaswaniFamilyConfig

logger = logging.get_logger(__name__)

LARGEST_MULTIPLE = 128
MAX_UNUSED = 0.02  # Phi-2 embeds 51,200 and has 50,295 tokens
MAX_UNUSED_OF_OURS = 0.001  # students may have the embeddings of their teacher


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
        directory: folder of the tokenizers, for messages.
        model: a model with or without a head.
        source: the tokenizer of inputs.
        target: the tokenizer of outputs; None for a model without outputs or with a new head.
        allow_mismatch: warn instead of raising if a tokenizer may belong to another model. More tokens than
            embeddings are always an error.

    Raises:
        UserError: a tokenizer has more tokens than the model, or far fewer, or other special tokens.
    """
    for problem in _mismatches(directory, model, source, target):
        if not allow_mismatch:
            raise UserError(
                f"{problem}; they do not belong together: give a folder in which they do, or "
                "--allow_mismatch where a command has it"
            )
        logger.warning(f"{problem}; they do not belong together; allow_mismatch accepts them.")


def _mismatches(
    directory: Path,
    model: PreTrainedModel,
    source: PreTrainedTokenizerBase,
    target: PreTrainedTokenizerBase | None,
) -> Iterator[str]:
    """Yield the signs that a tokenizer belongs to another model; raise a UserError for too many tokens."""
    sides: list[tuple[str, str, int, Any]]
    sides = [("tokenizer", "embeds", len(source), model.get_input_embeddings())]
    if target is not None and model.get_output_embeddings() is not None:
        name = "tokenizer" if target is source else "target tokenizer"
        sides.append((name, "predicts", _num_target_tokens(target), model.get_output_embeddings()))
    for name, does, tokens, embeddings in sides:
        rows = len(embeddings.weight)
        problem = f"the {name} in {directory} has {tokens} tokens but the model {does} {rows}"
        if tokens > rows:
            raise UserError(f"{problem}; they do not belong together: give a folder in which they do")
        if tokens < rows - max_unused_rows(rows, isinstance(model.config, VaswaniFamilyConfig)):
            yield problem
    for name in ("pad_token_id", "eos_token_id"):
        of_model, of_tokenizer = getattr(model.config, name, None), getattr(target or source, name)
        known = of_model if isinstance(of_model, list) else [of_model]
        if None not in (of_model, of_tokenizer) and of_tokenizer not in known:
            yield f"the tokenizer in {directory} has {name}={of_tokenizer} and the model {name}={of_model}"
    if isinstance(model.config, VaswaniConfig) and target is not None:
        pad = model.config.pad_token_id
        for tokenizer in dict.fromkeys((source, target)):
            if pad is not None and tokenizer.pad_token is None:
                file = Path(tokenizer.name_or_path or directory) / "tokenizer_config.json"
                yield f"{file} names no pad_token and the model has pad_token_id={pad}"


def max_unused_rows(rows: int, is_ours: bool) -> int:
    """Return the number of rows of an embedding that may be unused."""
    multiple = math.gcd(rows, LARGEST_MULTIPLE)
    return max(multiple - 1, int(rows * (MAX_UNUSED_OF_OURS if is_ours else MAX_UNUSED)))


def _num_target_tokens(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the size of the target vocabulary; some library tokenizers have two vocabularies."""
    if encoder := getattr(tokenizer, "target_encoder", None):  # Marian's
        return len(encoder) if getattr(tokenizer, "separate_vocabs", False) else len(tokenizer)
    return int(getattr(tokenizer, "tgt_vocab_size", None) or len(tokenizer))  # FSMT has `tgt_vocab_size`
