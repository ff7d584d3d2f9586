"""Length limit and length penalty of the paper's beam search (section 6.1).

The paper uses 4 beams, the length penalty of Wu et al. (2016, arXiv:1609.08144, "GNMT") with α = 0.6, and at
most 50 tokens more than the source has. Both rules work with transformers' `generate`, for any model:

    limits = attention_mask.sum(dim=1) + EXTRA_LENGTH
    model.generate(
        input_ids=input_ids,
        attention_mask=attention_mask,
        num_beams=4,
        length_penalty=GNMTLengthPenalty(0.6),
        max_length=1 + int(limits.max()),  # the decoder's start token counts
        stopping_criteria=StoppingCriteriaList([LengthLimits(limits)]),
    )

`MinimumLengths`, a logits processor, is the counterpart of `LengthLimits`: a minimum length for each source.
"""

import math
from numbers import Real
from typing import Any, cast

import torch
from transformers import LogitsProcessor, StoppingCriteria

from vaswani.bounds import LARGEST_ALPHA

EXTRA_LENGTH = 50  # section 6.1: "maximum output length during inference to input length + 50"


class GNMTLengthPenalty(float):
    """An α for which `length**α` is GNMT's length penalty, lp(Y) = ((5 + |Y|) / 6)^α (their equation 14).

    transformers ranks hypotheses, and decides when to stop, by `log_probability / length**length_penalty`.
    With a plain float that divides by |Y|^α, which favours long outputs more. With this number the same
    search divides by GNMT's penalty. |Y| counts the generated tokens, the final `</s>` included.

    Raises:
        ValueError: unless α is from -10 to 10; outside, the penalty of a long output overflows.
    """

    def __new__(cls, alpha: float) -> "GNMTLengthPenalty":
        if not isinstance(alpha, Real) or not abs(alpha) <= LARGEST_ALPHA:
            raise ValueError(
                f"length_penalty={alpha!r} must be a number from {-LARGEST_ALPHA} to {LARGEST_ALPHA}; "
                "0.6 is usual"
            )
        return super().__new__(cls, alpha)

    def of(self, length: Any) -> Any:
        """Return lp(Y) for a length |Y| or a tensor of lengths."""
        return ((5 + length) / 6) ** float(self)

    def __rpow__(self, length: Any, _modulo: None = None) -> Any:
        return self.of(length)


class LengthLimits(StoppingCriteria):
    """Stop the hypotheses of each source at the source's own limit.

    So the output of a source does not depend on the batch; a common limit would depend on the longest source.

    Args:
        limits: int64 [S], the most tokens to generate for each source of the batch, `</s>` included.
        prompt_length: number of decoder tokens that are given, the start token included.
    """

    def __init__(self, limits: torch.Tensor, prompt_length: int = 1):
        self.limits = limits
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
        """Return which rows are full: [S·K, T] -> bool [S·K], with K adjacent rows for each source."""
        is_full = input_ids.shape[1] - self.prompt_length >= self.limits
        return cast(torch.BoolTensor, is_full.repeat_interleave(input_ids.shape[0] // len(is_full)))


class MinimumLengths(LogitsProcessor):
    """Prevent the hypotheses of each source from ending before the source's own minimum length.

        least = attention_mask.sum(dim=1) // 2
        minimum = MinimumLengths(least, model.generation_config.eos_token_id)
        model.generate(input_ids, num_beams=4, logits_processor=LogitsProcessorList([minimum]))

    Args:
        least: int64 [S], the minimum number of tokens to generate for each source, `</s>` included.
        end_token_ids: the token, or tokens, that end an output.
        prompt_length: number of decoder tokens that are given, the start token included.
    """

    def __init__(self, least: torch.Tensor, end_token_ids: int | list[int], prompt_length: int = 1):
        self.least = least
        self.end_token_ids = [end_token_ids] if isinstance(end_token_ids, int) else end_token_ids
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Exclude end tokens in rows that are too short: [S·K, V], with K adjacent rows for each source."""
        too_short = input_ids.shape[1] - self.prompt_length + 1 < self.least
        rows = too_short.repeat_interleave(input_ids.shape[0] // len(too_short))
        excluded: Any = scores.clone()
        excluded[:, self.end_token_ids] = excluded[:, self.end_token_ids].masked_fill(
            rows[:, None], -math.inf
        )
        return excluded
