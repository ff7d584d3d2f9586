"""Attention maps of made-up texts, with weights as a model would give them."""

from dataclasses import dataclass

import torch

ENGLISH = ("Two", "young", "men", "are", "out", "side", ".", "</s>")
GERMAN = ("<s>", "Zwei", "junge", "Männer", "sind", "im", "Fre", "ien", ".")
CHINESE = (*"两个年轻男子在户外。", "</s>")
ARABIC = ("<s>", "رجلان", "شابان", "في", "الخارج", "بالقرب", "من", "العديد", "الشجيرات", ".")


WORDS = {"out": "outside", "Fre": "Freien"}  # by their first tokens
CONTINUED = ("side", "ien")


@dataclass(frozen=True)
class AttentionMap:
    """A stand-in for what models give."""

    kind: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: torch.Tensor  # [layers, heads, Q, K]

    def words(self) -> "AttentionMap":
        """The mean over the queries of a word, and the sum over its keys."""
        rows, columns = _groups(self.queries), _groups(self.keys)
        weights = (rows / rows.sum(dim=1, keepdim=True)) @ self.weights @ columns.T
        return AttentionMap(self.kind, _joined(self.queries), _joined(self.keys), weights)


def _groups(tokens: tuple[str, ...]) -> torch.Tensor:
    """1 where a token belongs to a word: float32 [words, tokens]."""
    starts = torch.tensor([token not in CONTINUED for token in tokens])
    return torch.nn.functional.one_hot(starts.cumsum(0) - 1).T.float()


def _joined(tokens: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(WORDS.get(token, token) for token in tokens if token not in CONTINUED)


def attention_map(
    kind: str, queries: tuple[str, ...], keys: tuple[str, ...], layers: int = 2, heads: int = 3
) -> AttentionMap:
    """Random weights, in a decoder those of a causal one."""
    scores = 3 * torch.randn(layers, heads, len(queries), len(keys))
    if kind == "decoder":
        scores = scores.masked_fill(torch.ones(len(queries), len(keys)).triu(1).bool(), float("-inf"))
    return AttentionMap(kind, queries, keys, scores.softmax(dim=-1))


def maps_of_pair(source: tuple[str, ...], target: tuple[str, ...]) -> tuple[AttentionMap, ...]:
    """All three kinds; the decoder has a layer more, to tell them apart."""
    return (
        attention_map("encoder", source, source),
        attention_map("decoder", target, target, layers=3),
        attention_map("cross", target, source, layers=3),
    )
