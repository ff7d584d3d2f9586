"""What a `Translator` returns: a translation of each sentence, with its hypotheses."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from vaswani.inference.translate.word_alignment import WordAlignment


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence.

    Args:
        text: the translation, without special tokens.
        complete: whether it ends with `</s>`, and not at the length limit.
        score: ranks hypotheses: `log_prob` / lp(Y), without the probability of a first token that the model
            forces (`forced_bos_token_id`); with `mbr_metric`, the expected utility, from 0 to 1; with
            `reverse_model`, the sum over both directions (see `noisy_channel`), or None if it cannot read the
            text; None without scores.
        log_prob: log P(Y|X), the sum of the natural log-probabilities of the tokens and `</s>`; or None.
        alignment: pairs of a source word and a word of the translation, both counted from 0; None without
            `alignments`, or if the words are not known (see `word_alignment`).
        reverse_log_prob: log P(X|Y) by the `reverse_model`, without a first token that it forces; None
            without such a model, or if it cannot read Y.
    """

    text: str
    complete: bool
    score: float | None = None
    log_prob: float | None = None
    alignment: WordAlignment | None = None
    reverse_log_prob: float | None = None


@dataclass(frozen=True)
class Translation:
    """The result for one sentence.

    Args:
        source: the sentence.
        hypotheses: hypotheses, best first; empty for an empty sentence or one with a problem.
        problem: why the sentence could not be translated; None if it could.
        source_cut_off: whether the sentence was truncated.
    """

    source: str
    hypotheses: tuple[Hypothesis, ...] = ()
    problem: str | None = None
    source_cut_off: bool = False

    @property
    def text(self) -> str:
        """The best hypothesis, or an empty text if there is none."""
        return self.hypotheses[0].text if self.hypotheses else ""

    @property
    def cut_off(self) -> bool:
        """Whether the best hypothesis ends at the length limit."""
        return any(not best.complete for best in self.hypotheses[:1])


def ranked_by_score(hypotheses: Iterable[Hypothesis]) -> tuple[Hypothesis, ...]:
    """Return hypotheses sorted by score, best first; those without a score come last, as they are given."""
    return tuple(sorted(hypotheses, key=lambda each: math.inf if each.score is None else -each.score))
