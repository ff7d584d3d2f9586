"""Checks that the scores of a search are numbers: a model that overflows must not answer with nothing."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LogitsProcessor, PreTrainedModel

from vaswani.errors import RunError


class FiniteScores(LogitsProcessor):
    """Remembers whether `generate` has met NaN or infinity, and changes nothing.

    Give it as the last of the `logits_processor`s, and call `check` when the search has ended: to look at
    each step would make a GPU wait. Minus infinity is the score of tokens that a search leaves out.

    Args:
        num_beams: of the search. Beam search hands over log-probabilities: where a row of logits holds NaN or
            infinity, all of them are NaN, so one token of each row is enough to look at.
    """

    def __init__(self, num_beams: int = 1) -> None:
        self._are_log_probs = num_beams > 1
        self._looked_at: list[torch.Tensor] = []  # of each step, one score of each row

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Look at the scores of a step: float [rows, V]."""
        self._looked_at.append(scores[:, 0].clone() if self._are_log_probs else scores.amax(dim=-1))
        return scores

    def check(self, model: PreTrainedModel) -> None:
        """Raise a RunError if one of the steps had scores that are NaN, infinite or all minus infinity."""
        if not self._looked_at:
            return
        scores = torch.cat(self._looked_at)
        are_finite = ~scores.isnan() if self._are_log_probs else scores.isfinite()
        check_finite_scores(are_finite.all(), model)


def check_finite_scores(are_finite: torch.Tensor | Any, model: PreTrainedModel) -> None:
    """Raise a RunError unless the scores that a model gave are finite."""
    if bool(are_finite):
        return
    dtype = str(model.dtype).removeprefix("torch.")
    raise RunError(
        f"the model's scores are not finite numbers in {dtype}; try dtype float32, or use another checkpoint"
    )
