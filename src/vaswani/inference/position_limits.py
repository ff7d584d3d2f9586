"""How many tokens a model has positions for: the limits of texts, sources and targets."""

from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.text_codec import Side
from vaswani.data.tokenization import length_limit

DEFAULT_LENGTH = 4096  # tokens; attention takes seconds for such a text, and quadratic time

# LED has one field for each side; other models have one field for both sides.
_POSITIONS = {"source": "max_encoder_position_embeddings", "target": "max_decoder_position_embeddings"}


def position_limit(model: PreTrainedModel, side: Side = "target") -> int | None:
    """Return the longest sequence that the model has positions for, or None if there is no limit.

    Args:
        model: any model.
        side: for an encoder-decoder: its sources or its targets.
    """
    config = model.config
    if getattr(config, "position_embedding", "learned") != "learned":
        return None
    limit = getattr(config, _POSITIONS[side], getattr(config, "max_position_embeddings", None))
    if limit is None and not config.is_encoder_decoder:
        text = config.get_text_config()  # of a model that reads pictures too
        limit = getattr(text, "max_position_embeddings", getattr(text, "max_seq_len", None))  # MPT's name
    return None if limit is None or limit < 0 else limit  # XLNet has -1 for no limit


def token_limit(model: PreTrainedModel, side: Side = "target") -> int | None:
    """Return the most tokens of a text that the model has positions for, or None if there is no limit.

    Args:
        model: any model.
        side: for an encoder-decoder: its sources or its targets.
    """
    positions = position_limit(model, side)
    return None if positions is None else positions - _padded(model)


def source_limit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the longest text or source that the model has positions for, or None if there is no limit.

    The tokenizer may set a lower limit.
    """
    limit = token_limit(model, "source")
    return None if limit is None else min(limit, tokenizer.model_max_length)


def longest_text(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, asked: int | None, side: Side = "target"
) -> int:
    """Return the maximum tokens of a text: the requested number, limited by the model's positions."""
    limit = token_limit(model, side)
    if limit is None:
        return asked or length_limit(tokenizer) or DEFAULT_LENGTH
    return min(limit, asked or tokenizer.model_max_length)


def _padded(model: PreTrainedModel) -> int:
    """Return the number of positions before the first token: RoBERTa's begin after its padding index."""
    table: Any = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return 0 if padding is None else padding + 1
