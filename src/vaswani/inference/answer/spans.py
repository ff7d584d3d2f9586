"""The best spans of a text as answers, from the start and end logits of its windows.

The score of a span is the sum of its start logit and its end logit. The score of no answer in a window is the
sum of both logits of the token that stands for no answer. For a text it is the minimum over all windows, as
one window with an answer is enough (Devlin et al., 2019, section 4.3).

B windows of a batch · T tokens · N spans · A longest answer, in tokens
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from vaswani.data.questions.windows import Window

CANDIDATES = 20  # spans of each window to choose answers from


@dataclass(frozen=True)
class Span:
    """A part of a text, from character `start` to `end`, exclusive, with its score."""

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Answer:
    """A model's answer to a question.

    Args:
        spans: the best spans, best first; empty for a text without tokens.
        null_score: the score of no answer.
        threshold: give no answer if `null_score` exceeds the score of the best span by more than this; None
            always answers.
        cut_off: whether the question was truncated.
    """

    spans: list[Span] = field(default_factory=list)
    null_score: float = 0.0
    threshold: float | None = None
    cut_off: bool = False

    @property
    def null_odds(self) -> float:
        """The score of no answer minus the score of the best span; infinite if there are no spans."""
        return self.null_score - self.spans[0].score if self.spans else float("inf")

    @property
    def best(self) -> Span | None:
        """The best span; None for no answer."""
        says_nothing = self.threshold is not None and self.null_odds > self.threshold
        return None if says_nothing or not self.spans else self.spans[0]

    @property
    def text(self) -> str:
        """The text of the answer; empty for no answer."""
        return self.best.text if self.best else ""


def best_spans(
    start_logits: torch.Tensor,
    end_logits: torch.Tensor,
    places: torch.Tensor,
    n_best: int,
    max_answer_length: int,
) -> torch.Tensor:
    """Return the best spans of each window.

    Args:
        start_logits: [B, T].
        end_logits: [B, T].
        places: int64 [B, 3], as from `WindowCollator`.
        n_best: number of spans that are wanted. N is at least `CANDIDATES`, because spans of tokens that are
            white space, or the same characters, are not answers of their own.
        max_answer_length: A.

    Returns:
        float32 [B, 1 + N, 3]: first the score of no answer and two zeros; then, for each span, its score and
        its first and last token, counted in the tokens of the text. A span that does not exist scores −∞.
    """
    n_best = max(n_best, CANDIDATES)
    starts, ends = start_logits.float(), end_logits.float()
    null, first, count = places.unsqueeze(-1).unbind(1)  # [B, 1] each
    positions = torch.arange(starts.shape[1], device=starts.device)
    outside = (positions < first) | (positions >= first + count)  # [B, T]
    longest = min(max_answer_length, starts.shape[1])
    reachable = F.pad(ends.masked_fill(outside, -torch.inf), (0, longest - 1), value=-torch.inf)
    sums = starts.masked_fill(outside, -torch.inf)[..., None] + reachable.unfold(1, longest, 1)  # [B, T, A]
    scores, found = sums.flatten(1).topk(min(n_best, sums[0].numel()))
    begin = found // longest - first
    spans = torch.stack([scores, begin.float(), (begin + found % longest).float()], dim=-1)
    spans = F.pad(spans, (0, 0, 0, n_best - spans.shape[1]), value=-torch.inf)
    null_scores = starts.gather(1, null) + ends.gather(1, null)  # [B, 1]
    return torch.cat([F.pad(null_scores, (0, 2))[:, None], spans], dim=1)


def answers_of(
    contexts: list[str],
    windows: Iterable[Window],
    found: Iterable[np.ndarray],
    n_best: int,
    threshold: float | None = None,
) -> list[Answer]:
    """Return the answers to questions from the best spans of all of their windows.

    Args:
        contexts: the text of each question.
        windows: the windows of all questions, in any order.
        found: the best spans of each window, [1 + N, 3], as from `best_spans`.
        n_best: number of spans to keep for each question.
        threshold: see `Answer`.
    """
    nulls = [float("inf")] * len(contexts)
    cut_off = [False] * len(contexts)
    spans: list[dict[tuple[int, int], float]] = [
        {} for _ in contexts
    ]  # best score by first and last character
    for window, ((null_score, *_), *candidates) in zip(
        windows, (rows.tolist() for rows in found), strict=True
    ):
        nulls[window.row] = min(nulls[window.row], null_score)
        cut_off[window.row] = window.question_cut_off
        known, context = spans[window.row], contexts[window.row]
        for score, first, last in candidates:
            if score == -float("inf"):
                break
            place = _without_margins(context, window.offsets[int(first)][0], window.offsets[int(last)][1])
            if place[0] < place[1]:
                known[place] = max(score, known.get(place, score))
    return [
        Answer(_best(context, known, n_best), null_score, threshold, is_cut_off)
        for context, known, null_score, is_cut_off in zip(contexts, spans, nulls, cut_off, strict=True)
    ]


def _best(context: str, known: dict[tuple[int, int], float], n_best: int) -> list[Span]:
    """Return the spans with the highest scores; of spans with equal scores, the first and shortest."""
    best = sorted(known.items(), key=lambda item: (-item[1], item[0]))[:n_best]
    return [Span(context[start:end], start, end, score) for (start, end), score in best]


def _without_margins(context: str, start: int, end: int) -> tuple[int, int]:
    """Return a span without the white space around it that the tokens of some tokenizers include."""
    text = context[start:end]
    return start + len(text) - len(text.lstrip()), start + len(text.rstrip())
