"""Require phrases in every output, with any search.

    phrase = Phrase([tokenizer(" Ada Lovelace", add_special_tokens=False).input_ids])
    required = RequiredPhrases([[phrase]] * len(input_ids), limits, model.generation_config.eos_token_id)
    model.generate(
        input_ids,
        num_beams=4,
        max_length=1 + int(limits.max()),
        stopping_criteria=StoppingCriteriaList([LengthLimits(limits)]),
        logits_processor=LogitsProcessorList([required]),
    )

`RequiredPhrases` works with any model of transformers, in greedy search, beam search and sampling.

S sources · K rows of each (beams or samples) · T tokens so far · V vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessor

from vaswani.errors import UserError

Spelling = Sequence[int]  # the tokens of a phrase
# The next token of a begun phrase exceeds the likeliest one by this. Less would be rounded off when a beam
# search adds the scores of the tokens before.
_MARGIN = 1e-3


@dataclass(frozen=True)
class Phrase:
    """A phrase that an output must contain.

    Args:
        spellings: token sequences that spell the phrase. The first is written at the beginning of an output,
            the last after other tokens.
        is_in: returns whether the tokens of an output contain the phrase in another spelling.
    """

    spellings: Sequence[Spelling]
    is_in: Callable[[Sequence[int]], bool] | None = None

    def occurs(self, output: Sequence[int]) -> bool:
        """Return whether the tokens of an output contain the phrase."""
        found = any(_occurs(spelling, output) for spelling in self.spellings)
        return found or (self.is_in is not None and self.is_in(output))


class _PartialPhrase(NamedTuple):
    """A phrase that an output has begun: the output ends with the first `tokens` tokens of `spelling`."""

    spelling: Spelling
    tokens: int

    @property
    def next_token(self) -> int:
        return self.spelling[self.tokens]


class RequiredPhrases(LogitsProcessor):
    """Prevents an output from ending before it contains the phrases of its source.

    - The end token is excluded while a phrase is missing. If it would be the likeliest token, the next token
      of the missing phrase is forced instead.
    - The next token of a phrase that has begun becomes the likeliest token.
    - When there is only room for the missing phrases and the end token, the missing phrases are forced.

    A forced token gets the score of the likeliest token, so that beams with and without it are compared by
    the rest of their tokens. Rank the outputs again by the model's scores.

    Args:
        phrases: the phrases of each source.
        limits: int64 [S], the most tokens to generate for each source, the end token included.
        end_token_ids: the token, or tokens, that end an output.
        prompt_length: number of decoder tokens that are given, the start token included.

    Raises:
        UserError: the phrases of a source do not fit into its limit.
    """

    def __init__(
        self,
        phrases: Sequence[Sequence[Phrase]],
        limits: torch.Tensor,
        end_token_ids: int | list[int],
        prompt_length: int = 1,
    ):
        self.phrases = phrases
        self.limits = limits.tolist()
        self.end_token_ids = [end_token_ids] if isinstance(end_token_ids, int) else end_token_ids
        self.prompt_length = prompt_length
        for of_source, limit in zip(phrases, self.limits, strict=True):
            if (needed := tokens_needed(of_source)) >= limit > 0 and needed:
                raise UserError(
                    f"the required phrases take {needed} tokens and the end token, and an output may have "
                    f"{limit}; raise the limit, or require less"
                )

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return the scores [S·K, V] of K adjacent rows for each source."""
        if input_ids.shape[1] < self.prompt_length:
            return scores
        changed: Any = scores.clone()
        rows_per_source = len(scores) // len(self.phrases)
        outputs = input_ids[:, self.prompt_length :].tolist()
        for row, output in enumerate(outputs):
            source = row // rows_per_source
            is_done = any(token in output for token in self.end_token_ids)
            missing = [] if is_done else missing_phrases(output, self.phrases[source])
            if missing:
                room = self.limits[source] - len(output) - 1  # one token is reserved for the end token
                self._push(changed[row], output, missing, tokens_needed(missing) >= room)
        return changed

    def _push(self, scores: torch.Tensor, output: list[int], missing: list[Phrase], is_last: bool) -> None:
        """Change the scores of one row, [V], towards the missing phrases."""
        partial = _longest_partial_phrase(output, missing)
        next_token = missing[0].spellings[-1 if output else 0][0] if partial is None else partial.next_token
        best = scores.max()
        likely = int(scores.argmax())
        scores[self.end_token_ids] = -math.inf
        if is_last or likely in self.end_token_ids:
            scores.fill_(-math.inf)
            scores[next_token] = best
        elif partial is not None:
            scores[next_token] = best + _MARGIN


def tokens_needed(phrases: Sequence[Phrase]) -> int:
    """Return how many tokens phrases take in their longest spellings."""
    return sum(max(map(len, phrase.spellings)) for phrase in phrases)


def missing_phrases(output: Sequence[int], phrases: Sequence[Phrase]) -> list[Phrase]:
    """Return the phrases that do not occur in an output."""
    return [phrase for phrase in phrases if not phrase.occurs(output)]


def _occurs(spelling: Spelling, output: Sequence[int]) -> bool:
    wanted, length = list(spelling), len(spelling)
    return any(list(output[at : at + length]) == wanted for at in range(len(output) - length + 1))


def _longest_partial_phrase(output: list[int], missing: list[Phrase]) -> _PartialPhrase | None:
    """Return the spelling with the most tokens at the end of an output, or None if none has begun."""
    partial = [
        _PartialPhrase(spelling, tokens)
        for phrase in missing
        for spelling in phrase.spellings
        for tokens in range(1, min(len(spelling) - 1, len(output)) + 1)
        if output[-tokens:] == list(spelling[:tokens])
    ]
    return max(partial, key=lambda each: each.tokens, default=None)
