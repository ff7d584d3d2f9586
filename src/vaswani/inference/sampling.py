"""Sampling with separate random numbers for each row, so that a row has the same result in every batch.

    generator = LogitsProcessorList([SeededSampling([(0, 1), (0, 2)], 20, Sampling(temperature=0.8))])
    model.generate(input_ids=input_ids, do_sample=False, max_new_tokens=20, logits_processor=generator)

draws row 0 with seed (0, 1) and row 1 with seed (0, 2), with any model of transformers. `do_sample=True` uses
one generator for all rows instead.

R rows of a batch · N generated tokens · V vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessor, TopKLogitsWarper, TopPLogitsWarper


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Args:
        temperature: divides the logits, above 0.
        top_p: draw from the likeliest tokens that together have this probability (Holtzman et al., 2020,
            arXiv:1904.09751).
        top_k: draw from this many of the likeliest tokens (Fan et al., 2018, arXiv:1805.04833); applied
            before `top_p`.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None


class SeededSampling(LogitsProcessor):
    """Draws the next token of each row with the row's own random numbers, and excludes all other tokens.

    Use it as the last of the `logits_processor`s, with `do_sample=False` (see the module for an example).

    Args:
        seeds: the seed of each row.
        most: maximum number of tokens to draw for each row.
        sampling: how tokens are drawn.
        prompt_length: number of decoder tokens that are given, the start token included.
    """

    def __init__(
        self, seeds: Sequence[tuple[int, ...]], most: int, sampling: Sampling, prompt_length: int = 1
    ):
        numbers = [np.random.default_rng(seed).random(most) for seed in seeds]  # each in [0, 1)
        self.numbers = torch.from_numpy(np.stack(numbers))  # float64 [R, N]
        self.sampling = sampling
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return scores [R, V]: 0 for the drawn token of each row, and minus infinity for all others."""
        if scores.is_cuda and torch.are_deterministic_algorithms_enabled():  # CUDA's cumsum would raise
            return self._drawn(input_ids.cpu(), scores.cpu()).to(scores.device)
        return self._drawn(input_ids, scores)

    def _drawn(self, input_ids: Any, scores: Any) -> Any:
        precision = torch.float32 if scores.device.type == "mps" else torch.float64
        relative: Any = (scores - scores.amax(dim=-1, keepdim=True)).to(precision)  # at most 0
        relative = relative / self.sampling.temperature
        if self.sampling.top_k is not None:
            relative = TopKLogitsWarper(self.sampling.top_k)(input_ids, relative)
        if self.sampling.top_p < 1:
            relative = TopPLogitsWarper(self.sampling.top_p)(input_ids, relative)
        cumulative = relative.softmax(dim=-1).cumsum(dim=-1)
        numbers = self.numbers[:, input_ids.shape[1] - self.prompt_length, None].to(cumulative)
        drawn = torch.searchsorted(cumulative, numbers * cumulative[:, -1:], right=True)
        drawn = drawn.clamp(max=scores.shape[1] - 1)  # for rows that are not finite; they raise later
        excluded: Any = torch.full_like(scores, -math.inf)
        return excluded.scatter(1, drawn, 0.0)
