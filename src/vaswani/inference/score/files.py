"""Score the texts or pairs of an input, in bounded memory, as lines of JSON."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, tee
from typing import Any

from vaswani.inference.batches import BUFFERED_TEXTS
from vaswani.inference.inputs import LineReport, Texts
from vaswani.inference.pair_inputs import SOURCE, TARGET, NBestTarget, Pairs
from vaswani.inference.pairs import Pair
from vaswani.inference.score.scorer import Score, Scorer, perplexity_of

ADDED = ["log_prob", "num_tokens", "perplexity", "tokens", "problem", "source_cut_off"]  # added to a row


@dataclass
class CorpusScore:
    """The total score of an input; an n-best list counts with its best target.

    Args:
        report: counts of the texts.
        log_prob: the sum of the natural log-probabilities.
        num_tokens: the number of scored tokens.
    """

    report: LineReport
    log_prob: float = 0.0
    num_tokens: int = 0

    def add(self, score: Score) -> None:
        """Add the score of a text, if it has one."""
        if score.log_prob is not None:
            self.log_prob += score.log_prob
            self.num_tokens += score.num_tokens

    def __str__(self) -> str:
        perplexity = perplexity_of(self.log_prob, self.num_tokens)
        shown = "" if perplexity is None else f", perplexity {perplexity:.4f}"
        return f"{self.report}: log_prob {self.log_prob:.4f} of {self.num_tokens:,} tokens{shown}"


def score_inputs(
    scorer: Scorer,
    texts: Texts | Pairs,
    write: Callable[[str], None],
    *,
    target_field: str = TARGET,
    with_tokens: bool = False,
    buffer_size: int = BUFFERED_TEXTS,
    warn: Callable[[str], None],
    progress: Callable[[int], object] | None = None,
) -> CorpusScore:
    """Score each text or pair of an input.

    Args:
        scorer: the model with its options.
        texts: the texts of the input (see `open_texts`), or its pairs (see `open_pairs`).
        write: receives a JSON object for each text or pair, in order: its fields with `log_prob`,
            `num_tokens` and `perplexity`. For an n-best list, it is the row with the list of targets, best
            first, each with these fields and the `score` that ranks it. `problem` says why a text is not
            scored.
        target_field: the field of the n-best list.
        with_tokens: add the `tokens`, each with its log-probability.
        buffer_size: number of texts to read ahead; smaller at the beginning.
        warn: is called with a message for each text that is not scored.
        progress: is called with the number of rows of each finished batch.
    """
    corpus, report = CorpusScore(texts.report), texts.report
    given, kept = tee(texts)
    counts = _Counts(progress or (lambda count: None))
    found = scorer.stream(
        counts.flat(given), with_tokens=with_tokens, buffer_size=buffer_size, progress=counts.finish
    )
    for text in kept:
        scores = list(islice(found, len(_items(text))))
        if isinstance(text, tuple) and text[1] is None:
            scores = [Score(None, problem="it has no target")]
        texts.take()
        for problem in dict.fromkeys(score.problem for score in scores):
            if problem:
                report.not_scored += 1
                warn(f"{texts.place} is not scored: {problem}")
        report.source_cut_off += any(score.cut_off for score in scores)
        scored = text[1] if isinstance(text, tuple) else text
        if isinstance(scored, list):
            ranked = _ranked(scorer, scored, scores)
            report.empty += not ranked
            listed = [_candidate(scorer, candidate, score) for candidate, score in ranked]
            cut_off = {"source_cut_off": True} if any(score.cut_off for score in scores) else {}
            fields = {target_field: listed, **cut_off}
            best = [score for _, score in ranked[:1]]
        else:
            report.empty += scored is not None and not scored.strip()
            best = scores
            fields = {**_names(texts, text), **_fields(*scores)}
        for score in best:
            corpus.add(score)
        write(texts.record(**fields))
    return corpus


def _ranked(scorer: Scorer, candidates: list[Any], scores: list[Score]) -> list[tuple[Any, Score]]:
    """Return the candidates of an n-best list with their scores, best first."""
    pairs = zip(candidates, scores, strict=True)
    return sorted(pairs, key=lambda pair: scorer.rank_key(pair[1]), reverse=True)


def _items(text: Any) -> list[Any]:
    """Return the items to score for a text or pair; none for a source without a target."""
    if isinstance(text, str):
        return [text]
    source, target = text
    if target is None:
        return []
    if isinstance(target, list):
        return [Pair(source, candidate.text, candidate.complete) for candidate in target]
    return [Pair(source, target)]


class _Counts:
    """Counts finished rows; each row has any number of targets."""

    def __init__(self, progress: Callable[[int], object]):
        self._progress = progress
        self._waiting: deque[int] = deque()
        self._finished = 0

    def flat(self, texts: Iterable[Any]) -> Iterator[Any]:
        """Yield the items to score of all rows."""
        for text in texts:
            items = _items(text)
            self._waiting.append(len(items))
            yield from items

    def finish(self, count: int) -> None:
        """Add `count` finished targets, and report the rows whose targets are all finished."""
        self._finished += count
        rows = 0
        while self._waiting and self._waiting[0] <= self._finished:
            self._finished -= self._waiting.popleft()
            rows += 1
        self._progress(rows)


def _names(texts: Texts | Pairs, text: Any) -> dict[str, Any]:
    """Return the fields of an output line besides the results; none for a table, whose row has them."""
    if texts.row is not None:
        return {}
    return {"text": text} if isinstance(text, str) else {SOURCE: text[0], TARGET: text[1]}


def _fields(score: Score) -> dict[str, Any]:
    fields: dict[str, Any] = {"log_prob": score.log_prob, "num_tokens": score.num_tokens}
    fields["perplexity"] = score.perplexity
    if score.tokens is not None:
        fields["tokens"] = [{"token": token, "log_prob": log_prob} for token, log_prob in score.tokens]
    if score.problem is not None:
        fields["problem"] = score.problem
    if score.cut_off:
        fields["source_cut_off"] = True
    return fields


def _candidate(scorer: Scorer, candidate: NBestTarget, score: Score) -> dict[str, Any]:
    """Return a target of an n-best list with its score, which replaces any earlier score."""
    ranking = scorer.rank_key(score)
    kept = {name: value for name, value in candidate.fields.items() if name not in ADDED}
    fields = _fields(score)
    fields.pop("source_cut_off", None)
    return {"text": candidate.text, **kept, "score": ranking if math.isfinite(ranking) else None, **fields}
