"""The attention weights of a model for one text or pair, with readable tokens.

An encoder-decoder has three maps; an encoder or a causal decoder has one:

- "encoder": each token of the source attends to the tokens of the source;
- "decoder": each token that the decoder reads, from its start token on, attends to itself and earlier tokens;
- "cross": for each token of the target, the step that predicts it attends to the tokens of the source.

Q queries · K keys
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.text_codec import TextCodec, Tokenizers, for_languages
from vaswani.errors import UserError, one_line
from vaswani.hub.checkpoint import load_checkpoint, serves
from vaswani.inference.cross_attention import takes_output_attentions, with_attention_weights
from vaswani.inference.decoding import EXTRA_LENGTH
from vaswani.inference.finite_scores import check_finite_scores
from vaswani.inference.pairs import PairEncoder
from vaswani.inference.position_limits import longest_text, position_limit
from vaswani.inference.translate.engine import SearchOptions
from vaswani.inference.translate.torch_engine import TorchEngine
from vaswani.insight.token_texts import TokenTexts, token_texts

MAX_TOKENS = 1024  # on a side; the weights of 12 layers with 12 heads are then 600 MB

OneOrTwoTokenizers = PreTrainedTokenizerBase | Tokenizers


@dataclass(frozen=True)
class AttentionMap:
    """Attention weights of one kind for one text or pair.

    Args:
        kind: "encoder", "decoder" or "cross".
        queries: readable tokens or words of the rows.
        keys: readable tokens or words of the columns.
        weights: float32 [layers, heads, Q, K] on the CPU; a row sums to 1 over the keys that it sees.
        query_words: the words that the queries form; None if the queries are words.
        key_words: the words that the keys form; None if the keys are words.
    """

    kind: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: torch.Tensor
    query_words: TokenTexts | None = None
    key_words: TokenTexts | None = None

    def words(self) -> AttentionMap:
        """Return the attention of words: summed over the keys of a word, averaged over its queries."""
        weights, queries, keys = self.weights, self.queries, self.keys
        if self.key_words is not None:
            keys = self.key_words.words
            weights = _summed(weights, self.key_words, dim=3)
        if self.query_words is not None:
            queries = self.query_words.words
            counts = torch.bincount(torch.tensor(self.query_words.word_of, dtype=torch.long))
            weights = _summed(weights, self.query_words, dim=2) / counts[:, None]
        return AttentionMap(self.kind, queries, keys, weights)


def _summed(weights: torch.Tensor, texts: TokenTexts, dim: int) -> torch.Tensor:
    """Sum the weights of each word's tokens along a dimension."""
    shape = [*weights.shape]
    shape[dim] = len(texts.words)
    return weights.new_zeros(shape).index_add_(dim, torch.tensor(texts.word_of, dtype=torch.long), weights)


def load_attention_model(
    name: str | Path, languages: Mapping[str, str | None] | None = None, **loading: Any
) -> tuple[PreTrainedModel, OneOrTwoTokenizers]:
    """Load a model of any kind with its tokenizer, or its two tokenizers, for `read_attention`.

    Args:
        name: a folder, or a name on the Hub.
        languages: `source_language`, `target_language` and `source_prefix` of a multilingual
            encoder-decoder (see `for_languages`); None uses the saved languages.
        loading: options of `load_checkpoint`: `device`, `dtype`, `revision` and `allow_mismatch`.

    Raises:
        UserError: the model cannot be loaded (see `load_checkpoint`) or does not support the languages.
    """
    model, source, target = load_checkpoint(name, auto_class=None, **loading)
    given = {option: value for option, value in (languages or {}).items() if value is not None}
    if given and not model.config.is_encoder_decoder:
        option, value = next(iter(given.items()))
        raise UserError(f"{option}={value} is for an encoder-decoder, and {name} holds none; leave it out")
    source, target = for_languages(source, target, **given)
    return model, source if source is target else (source, target)


@torch.inference_mode()
def read_attention(
    model: PreTrainedModel, tokenizer: OneOrTwoTokenizers, source: str, target: str | None = None
) -> tuple[AttentionMap, ...]:
    """Return the attention weights of a model for a text or pair.

    Args:
        model: a model of vaswani or transformers; it is put into evaluation mode. The call replaces a fused
            attention kernel without changing the model, which other threads may use.
        tokenizer: the model's tokenizer; or its source tokenizer and its target tokenizer.
        source: a text of at most 1,024 tokens; the target has the same limit.
        target: for an encoder-decoder, the text that the decoder reads; None means the model's own
            translation by greedy search. For an encoder, the second text of a pair. Not for a causal decoder.

    Returns:
        The maps "encoder", "decoder" and "cross" for an encoder-decoder, "encoder" for an encoder, "decoder"
        for a causal decoder.

    Raises:
        UserError: a text is empty or too long, or the model takes no target or returns no weights.
        RunError: the weights are not finite.
    """
    tokenizers = tokenizer if isinstance(tokenizer, tuple) else (tokenizer, tokenizer)
    if not takes_output_attentions(model):
        raise _returns_no_weights(model)
    if model.config.is_encoder_decoder:
        return _of_pair(model.eval(), tokenizers, source, target)
    return (_of_text(model.eval(), tokenizers[0], source, target),)


def _of_pair(
    model: Any,
    tokenizers: Tokenizers,
    source: str,
    target: str | None,
) -> tuple[AttentionMap, ...]:
    """Return the maps of an encoder-decoder."""
    if not model.can_generate():
        raise UserError(
            f"{type(model).__name__} is an encoder-decoder that does not generate; use a checkpoint with an "
            "output projection"
        )
    pairs = PairEncoder(model, *tokenizers, too_long="skip")
    source_ids = pairs.encode_sources([source])[0].token_ids
    _check_length("source", source, source_ids, position_limit(model, "source"))
    if target is None:
        target_ids = _translated(model, pairs, source_ids)
    else:
        target_ids = pairs.encode_targets([target], [True])[0].token_ids
        _check_length("target", target, target_ids, position_limit(model, "target"))
    read_ids = [pairs.start_token_id, *target_ids[:-1]]
    row = torch.tensor([source_ids], device=model.device)
    outputs = _call(
        model,
        input_ids=row,
        attention_mask=torch.ones_like(row),
        decoder_input_ids=torch.tensor([read_ids], device=model.device),
        use_cache=False,
    )
    sources = token_texts(pairs.sources, source_ids)
    read, predicted = token_texts(pairs.targets, read_ids), token_texts(pairs.targets, target_ids)
    return (
        _map(model, "encoder", outputs.get("encoder_attentions"), sources, sources),
        _map(model, "decoder", outputs.get("decoder_attentions"), read, read),
        _map(model, "cross", outputs.get("cross_attentions"), predicted, sources),
    )


def _translated(model: Any, pairs: PairEncoder, source_ids: list[int]) -> list[int]:
    """Return the token ids of the model's own translation, with the end token."""
    limits = [len(source_ids) + EXTRA_LENGTH, MAX_TOKENS, position_limit(model, "target") or MAX_TOKENS]
    options = SearchOptions(num_beams=1)
    found = TorchEngine(model).search([source_ids], [min(limits)], options, start_options=pairs.start_options)
    return found[0][0].token_ids


def _of_text(model: Any, tokenizer: PreTrainedTokenizerBase, text: str, other: str | None) -> AttentionMap:
    """Return the map of a model with one stack for a text or a pair of texts."""
    is_causal = serves(AutoModelForCausalLM, model.config)
    if is_causal and other is not None:
        raise UserError(f"{type(model).__name__} reads one text; leave the target out, or append it")
    codec = TextCodec(tokenizer)
    encoded = codec.encode(*([each] for each in (text, other) if each is not None))
    token_ids = encoded["input_ids"][0]
    _check_length("text", text, token_ids, longest_text(model, tokenizer, None))
    if other is not None:
        _check_length("second text", other, token_ids, None)
    known = inspect.signature(model.forward).parameters
    inputs = {
        name: torch.tensor(value, device=model.device) for name, value in encoded.items() if name in known
    }
    texts = token_texts(codec, token_ids)
    weights = _call(model, **inputs).get("attentions")
    return _map(model, "decoder" if is_causal else "encoder", weights, texts, texts)


def _check_length(side: str, text: str, token_ids: list[int], positions: int | None) -> None:
    """Raise a UserError if a text is empty or too long."""
    if not text.strip() or not token_ids:
        raise UserError(f"the {side} is empty; give a text")
    most = MAX_TOKENS if positions is None else min(positions, MAX_TOKENS)
    if len(token_ids) > most:
        raise UserError(
            f"the {side} has {len(token_ids):,} tokens, and attention is read for up to {most:,}; shorten it"
        )


def _call(model: Any, **inputs: Any) -> Any:
    """Return a model's outputs for one text or pair, with attention weights if it returns any."""
    try:
        return with_attention_weights(model)(**inputs, output_attentions=True, return_dict=True)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise UserError(f"{type(model).__name__} returns no attention weights: {one_line(error)}") from error


def _map(
    model: Any,
    kind: str,
    weights: Sequence[torch.Tensor | None] | None,
    queries: TokenTexts,
    keys: TokenTexts,
) -> AttentionMap:
    """Return the map of weights [1, heads, Q, K], given for each layer."""
    shape = len(queries.tokens), len(keys.tokens)
    of_layers = [each for each in weights or () if each is not None]
    if not of_layers:
        raise _returns_no_weights(model)
    if any(each.shape != of_layers[0].shape or tuple(each.shape[-2:]) != shape for each in of_layers):
        shapes = ", ".join(dict.fromkeys(str([*each.shape]) for each in of_layers))
        raise UserError(
            f"{type(model).__name__} returns attention weights of the shape {shapes}; expected "
            f"[1, heads, {shape[0]}, {shape[1]}] in every layer"
        )
    stacked = torch.cat(of_layers).float().cpu()
    check_finite_scores(stacked.isfinite().all(), model)
    return AttentionMap(kind, queries.tokens, keys.tokens, stacked, queries, keys)


def _returns_no_weights(model: Any) -> UserError:
    return UserError(
        f"{type(model).__name__} returns no attention weights; use a model that attends by softmax"
    )
