"""Force each output to begin with given tokens, which may differ between sources.

    prefixes = [tokenizer(text_target=text, add_special_tokens=False).input_ids for text in beginnings]
    model.generate(input_ids, num_beams=4, logits_processor=LogitsProcessorList([ForcedPrefixes(prefixes)]))

`ForcedPrefixes` works with any model of transformers, in greedy search, beam search and sampling. Prefixes
may differ in length, unlike the decoder inputs of a batch. Forced tokens keep their scores.

S sources · K rows of each (beams or samples) · T tokens so far · V vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor


class ForcedPrefixes(LogitsProcessor):
    """Excludes all tokens except the next token of the source's prefix, until the prefix ends.

    All beams of a source are equal until its prefix ends, so the search begins there. If the vocabulary then
    offers fewer choices than there are beams, the search returns some outputs several times.

    Args:
        prefixes: the tokens of each source's prefix, without the start token; empty for no prefix.
        prompt_length: number of decoder tokens that are given, the start token included.
    """

    def __init__(self, prefixes: Sequence[Sequence[int]], prompt_length: int = 1):
        self.prefixes = prefixes
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return the scores [S·K, V] of K adjacent rows for each source."""
        step = input_ids.shape[1] - self.prompt_length
        forced = {
            source: tokens[step] for source, tokens in enumerate(self.prefixes) if 0 <= step < len(tokens)
        }
        if not forced:
            return scores
        rows_per_source = len(scores) // len(self.prefixes)
        rows = [source * rows_per_source + row for source in forced for row in range(rows_per_source)]
        tokens = [token for token in forced.values() for _ in range(rows_per_source)]
        own = scores[rows, tokens]
        changed: Any = scores.clone()
        changed[rows] = -math.inf
        changed[rows, tokens] = own.masked_fill(
            own == -math.inf, 0.0
        )  # another processor may have excluded it
        return changed
