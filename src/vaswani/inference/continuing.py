"""How causal language models continue prompts: their texts, where they end, and whether padding matters.

R rows of a batch · T tokens of the longest · N generated tokens · V vocabulary
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessor, PreTrainedConfig, PreTrainedModel, StoppingCriteria

from vaswani.data.text_codec import TextCodec
from vaswani.inference.generation_options import GenerationOptions
from vaswani.interop.attention_interface import IMPLEMENTATION

TokenIds = tuple[int, ...]

_SPACES = ("\u0120", "\u2581", " ")  # how vocabularies write a space in front of a word
# Settings of generation that count the tokens of a prompt, with the values that do nothing.
_COUNTING: dict[str, Any] = {
    "repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "forced_bos_token_id": None,
}


class Prompt(NamedTuple):
    """A text to continue, as tokens.

    Args:
        token_ids: its tokens, at least one.
        before_space: whether the text ends with one more space. Tokenizers join it to the next word, so the
            continuation begins with it.
    """

    token_ids: TokenIds
    before_space: bool = False


class ContinuationTexts:
    """The texts that continuations add to those of their prompts.

    Args:
        codec: of the model's tokenizer.
        prompts: the prompts of a batch.
    """

    def __init__(self, codec: TextCodec, prompts: Sequence[Prompt]):
        self._codec = codec
        self._prompts = prompts

    @cached_property
    def _before(self) -> list[str]:
        return self._codec.decode([list(prompt.token_ids) for prompt in self._prompts])

    def decode(self, rows: Iterable[int], continuations: Sequence[TokenIds]) -> list[str]:
        """Return the texts of the continuations of some rows."""
        rows = list(rows)
        whole = [
            [*self._prompts[row].token_ids, *tokens] for row, tokens in zip(rows, continuations, strict=True)
        ]
        found = []
        for row, tokens, text in zip(rows, continuations, self._codec.decode(whole), strict=True):
            before = self._before[row]
            if text.startswith(before):
                added = text.removeprefix(before)
            else:
                (added,) = self._codec.decode([list(tokens)])  # it may lack a space in front
            found.append(added.removeprefix(" ") if self._prompts[row].before_space else added)
        return found


class StopTexts(StoppingCriteria):
    """Ends a row once its continuation contains one of the texts.

    Args:
        texts: the texts of the rows.
        until_end: returns the rows of tokens [R, N] up to the end token of each.
        stop: texts that end a row.
        prompt_length: number of tokens of the prompts, with padding.

    Attributes:
        lengths: number of tokens with which each row that has ended here ended.
    """

    def __init__(
        self,
        texts: ContinuationTexts,
        until_end: Callable[[torch.Tensor], list[TokenIds]],
        stop: Sequence[str],
        prompt_length: int,
    ):
        self.texts = texts
        self.until_end = until_end
        self.stop = stop
        self.prompt_length = prompt_length
        self.lengths: dict[int, int] = {}

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Return which rows have ended: bool [R]."""
        rows = [row for row in range(len(input_ids)) if row not in self.lengths]
        written = self.until_end(input_ids[rows, self.prompt_length :])
        for row, tokens, text in zip(rows, written, self.texts.decode(rows, written), strict=True):
            if before_stop(text, self.stop) != text:
                self.lengths[row] = len(tokens)
        ended = [row in self.lengths for row in range(len(input_ids))]
        return torch.tensor(ended, device=input_ids.device)


def before_stop(text: str, stop: Sequence[str]) -> str:
    """Return the part of a text before the first of the stop texts."""
    return text[: min((text.find(end) for end in stop if end in text), default=len(text))]


def before_begun_stop(text: str, stop: Sequence[str]) -> str:
    """Return a text without the longest beginning of a stop text at its end."""
    begun = (length for end in stop for length in range(1, len(end)) if text.endswith(end[:length]))
    return text[: len(text) - max(begun, default=0)]


class BeginWithSpace(LogitsProcessor):
    """Excludes first tokens that do not begin with a space, where the prompt needs one.

    Args:
        rows: which rows need one: bool [R].
        tokens: the tokens that begin with a space or end a text.
        prompt_length: number of tokens of the prompts, with padding.
    """

    def __init__(self, rows: Sequence[bool], tokens: Sequence[int], prompt_length: int):
        self.rows = torch.tensor(rows)
        self.tokens = torch.tensor(tokens)
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return the scores [R, V], with minus infinity for excluded tokens."""
        if input_ids.shape[1] > self.prompt_length:
            return scores
        others = torch.ones(scores.shape[1], dtype=torch.bool)
        others[self.tokens[self.tokens < len(others)]] = False
        excluded = self.rows[:, None] & others
        masked: Any = scores.masked_fill(excluded.to(scores.device), -math.inf)
        return masked


def tokens_after_space(codec: TextCodec) -> list[int]:
    """Return the tokens that begin with a space; none if the vocabulary has no sign for a space."""
    names = codec.tokens(range(len(codec.tokenizer)))
    return [number for number, name in enumerate(names) if str(name).startswith(_SPACES)]


def counts_prompts(model: PreTrainedModel, options: GenerationOptions) -> bool:
    """Return whether the options, or the model's own settings, count the tokens of prompts.

    Padding on the left would then count as a part of a shorter prompt.
    """
    for name, neutral in _COUNTING.items():
        value = getattr(options, name, None)
        value = getattr(model.generation_config, name, None) if value is None else value
        if value not in (None, neutral):
            return True
    return False


@torch.inference_mode()
def reads_padding(model: PreTrainedModel) -> bool:
    """Return whether padding on the left changes what a model predicts, in spite of the attention mask.

    It moves positions that a model counts from the first column, and the blocks of sparse attention; a
    recurrence reads it; and one long row changes the frequencies of some rotary positions in all rows. The
    model is run, because a configuration does not always say so.
    """
    arguments = inspect.signature(model.forward).parameters
    if "position_ids" not in arguments or _is_sparse(model.config) or has_dynamic_positions(model.config):
        return True
    tokens = torch.tensor([[4, 5, 6, 1, 2, 3]], device=model.device)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1]], device=model.device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    options = {"use_cache": False} if "use_cache" in arguments else {}
    padded = model(input_ids=tokens, attention_mask=mask, position_ids=positions, **options).logits[0, -1]
    alone = model(input_ids=tokens[:, 3:], attention_mask=mask[:, 3:], **options).logits[0, -1]
    rounding = 1e-4 if alone.dtype in (torch.float32, torch.float64) else 5e-2
    return bool((padded - alone).abs().max() > rounding * (alone.max() - alone.min()))


def _is_sparse(config: PreTrainedConfig) -> bool:
    """Return whether layers have sparse attention, in a vaswani model or added to another model."""
    ours = getattr(config, "decoder_attention", "full")  # one value for all layers, or one for each
    return "sparse" in ours or config._attn_implementation == IMPLEMENTATION


def has_dynamic_positions(config: PreTrainedConfig) -> bool:
    """Return whether rotary frequencies depend on the longest row of a batch."""
    text = config.get_text_config()
    scaling = [getattr(text, name, None) for name in ("rope_parameters", "rope_scaling")]
    return any(kind in str(scaling) for kind in ("longrope", "dynamic"))
