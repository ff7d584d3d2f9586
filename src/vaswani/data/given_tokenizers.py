"""Prepare existing tokenizers for encoder-decoders and decoders."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from tokenizers import processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from vaswani.data.sentencepiece_models import sentencepiece_tokenizer
from vaswani.data.text_codec import PLAIN_TEXTS, Side, TextCodec, Tokenizers, begin_token_id, end_token_id
from vaswani.data.tokenization import PAD_TOKEN, load_tokenizers
from vaswani.errors import UserError


def is_sentencepiece(name: str) -> bool:
    """Return True for the name of a SentencePiece model: an existing file that ends in .model or .spm."""
    return Path(name).is_file() and Path(name).suffix in (".model", ".spm")


def open_tokenizers(path: Path) -> Tokenizers:
    """Return the source and target tokenizers in a folder, or a SentencePiece model's tokenizer for both.

    Raises:
        UserError: a tokenizer is missing or cannot be read.
    """
    if is_sentencepiece(str(path)):
        tokenizer = sentencepiece_tokenizer(path)
        return tokenizer, tokenizer
    return load_tokenizers(path)


def prepare_for_pairs(tokenizer: PreTrainedTokenizerBase, name: str) -> PreTrainedTokenizerBase:
    """Return a tokenizer that has a padding token and ends each text, as an encoder-decoder needs.

    A tokenizer that does both is returned unchanged, except that it pads on the right. A fast tokenizer that
    does not (GPT-2's, most SentencePiece models) is copied. The copy ends texts with the end token. Without a
    padding token, it pads with the beginning token if no text has it (as in most SentencePiece models), else
    with a new token.

    Args:
        tokenizer: a tokenizer of transformers.
        name: its name in error messages.

    Raises:
        UserError: the tokenizer has no end token, or needs changes but is slow.
    """
    return _ending_texts(tokenizer, name, pads=tokenizer.pad_token_id is not None)


def prepare_for_classification(tokenizer: PreTrainedTokenizerBase, name: str) -> PreTrainedTokenizerBase:
    """Return a tokenizer that ends each text: a decoder classifies the last state (Radford et al., 2018).

    Like `prepare_for_pairs`, but the padding token differs from the end token, because models of transformers
    classify the last token that is not padding. A pair of texts is `<s> A </s> B </s>`, without `<s>` if the
    tokenizer adds none.

    Raises:
        UserError: as `prepare_for_pairs`.
    """
    return _ending_texts(tokenizer, name, pads=tokenizer.pad_token_id not in (None, end_token_id(tokenizer)))


def prepare_for_tagging(tokenizer: PreTrainedTokenizerBase, _: str) -> PreTrainedTokenizerBase:
    """Return a tokenizer that pads; without a padding token, it pads with its end token.

    Padding is masked, so nothing attends to it.
    """
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def prepare_for_completion(tokenizer: PreTrainedTokenizerBase, name: str) -> PreTrainedTokenizerBase:
    """Return a tokenizer whose prompts a model can continue.

    Without a padding token, it pads with its end token.

    Raises:
        UserError: the tokenizer has no end token, or it ends each text, so nothing can follow a prompt.
    """
    if tokenizer.eos_token is None:
        raise UserError(f"the tokenizer {name} has no token that ends a text; give it an eos_token")
    if _is_ready(tokenizer):
        raise UserError(
            f"the tokenizer {name} ends each text with {tokenizer.eos_token}, so that nothing can follow a "
            "prompt; give that of a causal language model"
        )
    return prepare_for_tagging(tokenizer, name)


def prepare_for_scoring(tokenizer: PreTrainedTokenizerBase, name: str) -> PreTrainedTokenizerBase:
    """Return a tokenizer that frames texts: it begins and pads with its end token where it has no other."""
    if tokenizer.bos_token is None and tokenizer.eos_token is not None:
        tokenizer.bos_token = tokenizer.eos_token
    return prepare_for_tagging(tokenizer, name)


def _ending_texts(tokenizer: PreTrainedTokenizerBase, name: str, pads: bool) -> PreTrainedTokenizerBase:
    """Return a tokenizer that ends texts; it gets a padding token unless it `pads` already."""
    tokenizer.padding_side = "right"
    if end_token_id(tokenizer) is None:
        raise UserError(f"the tokenizer {name} has no token that ends a text; give it an eos_token")
    if pads and _is_ready(tokenizer):
        return tokenizer
    if not tokenizer.is_fast:
        lacks = "no end token behind each text" if pads else "no padding token"
        raise UserError(f"the tokenizer {name} has {lacks}, and it is a slow one; give a fast one")
    return _prepared(tokenizer, pads)


def _is_ready(tokenizer: PreTrainedTokenizerBase) -> bool:
    return TextCodec(tokenizer, "target").ends_sequences()


def _prepared(tokenizer: Any, pads: bool) -> PreTrainedTokenizerBase:
    """Return a changed copy of the plain fast class; some models' own classes undo the changes on loading."""
    named = tokenizer.special_tokens_map.items()
    special = {
        name: token for name, token in named if isinstance(token, str) and (pads or name != "pad_token")
    }
    frame = TextCodec(tokenizer, "target").frame()
    begin, end = tokenizer.bos_token_id, end_token_id(tokenizer)
    is_free = begin not in (None, end, *frame.leading)
    plain = {name: value for name, value in tokenizer.init_kwargs.items() if name == PLAIN_TEXTS}
    ready: Any = PreTrainedTokenizerFast(
        tokenizer_object=copy.deepcopy(tokenizer.backend_tokenizer),
        padding_side="right",
        model_max_length=tokenizer.model_max_length,
        split_special_tokens=tokenizer.split_special_tokens,
        clean_up_tokenization_spaces=False,
        model_input_names=tokenizer.model_input_names,
        **{"pad_token": tokenizer.bos_token if is_free else PAD_TOKEN, **special, **plain},
    )
    if not _is_ready(ready):
        before, ending = map(ready.convert_ids_to_tokens, (list(frame.leading), [*frame.trailing, end]))
        ready.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *ending],
            pair=[*before, "$A", *ending, "$B", *ending],
            special_tokens=[(name, ready.convert_tokens_to_ids(name)) for name in {*before, *ending}],
        )
    return ready


def vocabulary_size(tokenizer: PreTrainedTokenizerBase, side: Side) -> int:
    """Return the number of token ids of one side."""
    return 1 + max(TextCodec(tokenizer, side).vocabulary().values())


def special_tokens(source: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase) -> dict[str, int | None]:
    """Return the special tokens of a model for these tokenizers, by the names of the configuration's fields.

    Targets begin with the tokenizer's beginning token (`<s>`, BERT's `[CLS]`), else with the padding token,
    as in Marian.

    Raises:
        UserError: the two sides are padded with different tokens.
    """
    padding = source.pad_token_id
    if padding != target.pad_token_id:
        raise UserError(
            f"the source tokenizer pads with the token {padding}, and the target tokenizer with "
            f"{target.pad_token_id}; a model has one token for both: give tokenizers that agree"
        )
    begin = begin_token_id(target)
    return {
        "pad_token_id": padding,
        "bos_token_id": begin,
        "eos_token_id": end_token_id(target),
        "decoder_start_token_id": padding if begin is None else begin,
    }
