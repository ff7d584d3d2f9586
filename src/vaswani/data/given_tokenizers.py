"""Tokenizers that a user gives to a training from new weights, made ready for an encoder-decoder."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from tokenizers import processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from vaswani.data.sentencepiece_models import sentencepiece_tokenizer
from vaswani.data.text_codec import Side, TextCodec
from vaswani.data.tokenization import PAD_TOKEN, load_tokenizers
from vaswani.errors import UserError

Tokenizers = tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]


def is_sentencepiece(name: str) -> bool:
    """Return whether a name is that of a SentencePiece model: a file that ends in .model or .spm."""
    return Path(name).is_file() and Path(name).suffix in (".model", ".spm")


def open_tokenizers(path: Path) -> Tokenizers:
    """Return the source and target tokenizers in a folder, or the one of a SentencePiece model, twice.

    Raises:
        UserError: it is missing or cannot be read.
    """
    if is_sentencepiece(str(path)):
        tokenizer = sentencepiece_tokenizer(path)
        return tokenizer, tokenizer
    return load_tokenizers(path)


def ready_for_pairs(tokenizer: PreTrainedTokenizerBase, name: str) -> PreTrainedTokenizerBase:
    """Return a tokenizer that pads and that ends each text, as an encoder-decoder needs it.

    A tokenizer that does is returned as it is, with padding on the right. A fast one that does not (GPT-2's,
    most SentencePiece models) is copied. It ends texts with its end token, and pads with its beginning token
    if no text has it, as in most SentencePiece models, or else with a new token.

    Args:
        tokenizer: of the library.
        name: for the message.

    Raises:
        UserError: it has no end token, or it is a slow one that cannot be changed.
    """
    tokenizer.padding_side = "right"
    if _end_token(tokenizer) is None:
        raise UserError(f"the tokenizer {name} has no token that ends a text; give it an eos_token")
    if tokenizer.pad_token_id is not None and _is_ready(tokenizer):
        return tokenizer
    if not tokenizer.is_fast:
        lacks = "no padding token" if tokenizer.pad_token_id is None else "no end token behind each text"
        raise UserError(f"the tokenizer {name} has {lacks}, and it is a slow one; give a fast one")
    return _made_ready(tokenizer)


def _end_token(tokenizer: PreTrainedTokenizerBase) -> Any:
    return tokenizer.sep_token if tokenizer.eos_token is None else tokenizer.eos_token


def _is_ready(tokenizer: PreTrainedTokenizerBase) -> bool:
    return TextCodec(tokenizer, "target").ends_sequences()


def _made_ready(tokenizer: Any) -> PreTrainedTokenizerBase:
    """A plain fast tokenizer: the classes of some models would undo the changes when they are loaded."""
    named = tokenizer.special_tokens_map.items()
    special = {name: token for name, token in named if isinstance(token, str)}
    frame = TextCodec(tokenizer, "target").frame()
    begin = tokenizer.bos_token
    is_free = begin not in (None, _end_token(tokenizer)) and tokenizer.bos_token_id not in frame.leading
    ready = PreTrainedTokenizerFast(
        tokenizer_object=copy.deepcopy(tokenizer.backend_tokenizer),
        padding_side="right",
        model_max_length=tokenizer.model_max_length,
        split_special_tokens=tokenizer.split_special_tokens,
        clean_up_tokenization_spaces=False,
        **{"pad_token": begin if is_free else PAD_TOKEN, **special},
    )
    if not _is_ready(ready):
        before, after = map(ready.convert_ids_to_tokens, (list(frame.leading), list(frame.trailing)))
        framed = [*before, "$A", *after, _end_token(ready)]
        ready.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=framed,
            special_tokens=[(name, ready.convert_tokens_to_ids(name)) for name in {*framed} - {"$A"}],
        )
    return ready


def vocabulary_size(tokenizer: PreTrainedTokenizerBase, side: Side) -> int:
    """Return the number of token ids of one side."""
    return 1 + max(TextCodec(tokenizer, side).vocabulary().values())


def special_tokens(source: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase) -> dict[str, int | None]:
    """Return the special tokens of a model for these tokenizers, by the names of the configuration's fields.

    Targets begin with the tokenizer's first token (`<s>`, BERT's `[CLS]`), or else with padding, as Marian's.

    Raises:
        UserError: the two sides are padded with different tokens.
    """
    padding = source.pad_token_id
    if padding != target.pad_token_id:
        raise UserError(
            f"the source tokenizer pads with the token {padding}, and the target tokenizer with "
            f"{target.pad_token_id}; a model has one token for both: give tokenizers that agree"
        )
    begin = target.cls_token_id if target.bos_token_id is None else target.bos_token_id
    return {
        "pad_token_id": padding,
        "bos_token_id": begin,
        "eos_token_id": target.convert_tokens_to_ids(_end_token(target)),
        "decoder_start_token_id": padding if begin is None else begin,
    }
