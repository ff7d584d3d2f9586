"""Attention maps of made-up texts, with weights as a model would give them."""

import torch

from vaswani.insight.attention import AttentionMap
from vaswani.insight.token_texts import TokenTexts

ENGLISH = ("Two", "young", "men", "are", "out", "side", ".", "</s>")
GERMAN = ("<s>", "Zwei", "junge", "Männer", "sind", "im", "Fre", "ien", ".")
CHINESE = (*"两个年轻男子在户外。", "</s>")
ARABIC = ("<s>", "رجلان", "شابان", "في", "الخارج", "بالقرب", "من", "العديد", "الشجيرات", "</s>")


WORDS = {"out": "outside", "Fre": "Freien"}  # by their first tokens
CONTINUED = ("side", "ien")


def joined(tokens: tuple[str, ...]) -> TokenTexts:
    """The words that tokens form."""
    words = [WORDS.get(token, token) for token in tokens if token not in CONTINUED]
    starts = torch.tensor([token not in CONTINUED for token in tokens])
    return TokenTexts(tokens, tuple(words), tuple((starts.cumsum(0) - 1).tolist()))


def attention_map(
    kind: str, queries: tuple[str, ...], keys: tuple[str, ...], layers: int = 2, heads: int = 3
) -> AttentionMap:
    """Random weights; causal ones for a decoder."""
    scores = 3 * torch.randn(layers, heads, len(queries), len(keys))
    if kind == "decoder":
        scores = scores.masked_fill(torch.ones(len(queries), len(keys)).triu(1).bool(), float("-inf"))
    return AttentionMap(kind, queries, keys, scores.softmax(dim=-1), joined(queries), joined(keys))


def maps_of_pair(source: tuple[str, ...], target: tuple[str, ...]) -> tuple[AttentionMap, ...]:
    """All three kinds; the decoder has a layer more, to tell them apart."""
    return (
        attention_map("encoder", source, source),
        attention_map("decoder", target, target, layers=3),
        attention_map("cross", target, source, layers=3),
    )
