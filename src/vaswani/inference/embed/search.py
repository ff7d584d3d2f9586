"""What is most like what, of texts as vectors: exact, and in bounded memory.

Q queries · C rows of the corpus · K results · d width
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional as F

from vaswani.errors import UserError, check_positive

_QUERIES_AT_ONCE, _ROWS_AT_ONCE = 128, 1 << 16  # 32 MiB of scores


class SearchResults(NamedTuple):
    """What was found for each query, best first: cosines, float [Q, K], and rows of the corpus, int64."""

    scores: torch.Tensor
    indices: torch.Tensor


def cosine_similarity(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Cosine of each vector with each of the others: [N, d] and [M, d] -> [N, M]; 0 for vectors of zeros."""
    return F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T


def semantic_search(queries: torch.Tensor, corpus: torch.Tensor, top_k: int = 10) -> SearchResults:
    """Find the vectors of a corpus that are most like each query: all are compared, a chunk at a time.

    Args:
        queries: float [Q, d].
        corpus: float [C, d], of the same model.
        top_k: K, how many are found for each query; fewer where the corpus has fewer.

    Raises:
        UserError: `top_k` out of its range, or vectors of different models.
    """
    check_positive(top_k=top_k)
    if queries.shape[1] != corpus.shape[1]:
        raise UserError(
            f"queries are vectors of {queries.shape[1]} numbers and the corpus of {corpus.shape[1]}; "
            "embed both with one model"
        )
    found = [_search(some, corpus, top_k) for some in queries.split(_QUERIES_AT_ONCE)]
    return SearchResults(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _search(queries: torch.Tensor, corpus: torch.Tensor, top_k: int) -> SearchResults:
    best = SearchResults(queries.new_zeros(len(queries), 0), corpus.new_zeros(len(queries), 0).long())
    for start in range(0, len(corpus), _ROWS_AT_ONCE):
        scores = cosine_similarity(queries, corpus[start : start + _ROWS_AT_ONCE])
        rows = torch.arange(start, start + scores.shape[1], device=scores.device).expand_as(scores)
        candidates = torch.cat([best.scores, scores], dim=1), torch.cat([best.indices, rows], dim=1)
        scores, places = candidates[0].topk(min(top_k, candidates[0].shape[1]))
        best = SearchResults(scores, candidates[1].gather(1, places))
    return best
