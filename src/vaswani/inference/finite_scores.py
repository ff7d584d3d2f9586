"""Check that the scores of a search are finite: a model that overflows must not return empty texts."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LogitsProcessor, PreTrainedModel

from vaswani.errors import RunError


class FiniteScores(LogitsProcessor):
    """Records whether `generate` meets NaN or infinity; does not change the scores.

    Use it as the last of the `logits_processor`s, and call `check` after the search: a check in each step
    would make a GPU wait. Minus infinity is valid: the score of excluded tokens.

    Args:
        num_beams: number of beams of the search. Beam search passes log-probabilities. If a row of logits
            holds NaN or infinity, all its log-probabilities are NaN, so checking one token per row suffices.
    """

    def __init__(self, num_beams: int = 1) -> None:
        self._are_log_probs = num_beams > 1
        self.takes_best_tokens = self._are_log_probs  # then our beam search computes only the best tokens
        self._checked: list[torch.Tensor] = []  # one score of each row and step

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Record scores of a step: float [rows, V]."""
        self._checked.append(scores[:, 0].clone() if self._are_log_probs else scores.amax(dim=-1))
        return scores

    def check(self, model: PreTrainedModel) -> None:
        """Raise a RunError if a step had scores that are NaN, infinite or all minus infinity."""
        if not self._checked:
            return
        scores = torch.cat(self._checked)
        are_finite = ~scores.isnan() if self._are_log_probs else scores.isfinite()
        check_finite_scores(are_finite.all(), model)


def check_finite_scores(are_finite: torch.Tensor | Any, model: PreTrainedModel) -> None:
    """Raise a RunError unless the scores of a model are finite."""
    if bool(are_finite):
        return
    dtype = str(model.dtype).removeprefix("torch.")
    raise RunError(
        f"the model's scores are not finite numbers in {dtype}; try dtype float32, or use another checkpoint"
    )
