"""Dynamic masking for masked language modelling.

15 % of the tokens are chosen for prediction; of these, 80 % are masked, 10 % replaced by a random token and
10 % kept (Devlin et al., 2019, arXiv:1810.04805, section 3.1). They are drawn when a batch is made, so each
epoch differs (Liu et al., 2019, arXiv:1907.11692, section 4.1).

B rows of a batch · S tokens of its longest sequence · N tokens of a sequence
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from vaswani.data.collation import IGNORED_LABEL, Example, pad
from vaswani.data.columns import Integers
from vaswani.data.text.row_noise import RowNoise
from vaswani.errors import UserError

HIDDEN, REPLACED = 0.8, 0.1  # shares of the chosen tokens; the others are kept


class MaskingCollator(RowNoise):
    """Pad rows on the right to a batch and mask some of their tokens.

    The mask of a row is a pure function of the seed, the epoch and the row's tokens (see `RowNoise`). Special
    tokens are neither chosen nor used as replacements. At least one token of each row is chosen.

    Args:
        tokenizer: must have a mask token.
        probability: probability of choosing each token or, with `whole_words`, each word.
        whole_words: choose all tokens of a word or none; rows must have `word_starts`, which is True for
            tokens that begin a word.
        seed: not negative.

    Raises:
        UserError: the tokenizer has no mask token, or the probability is out of range.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        probability: float = 0.15,
        whole_words: bool = False,
        seed: int = 0,
    ):
        super().__init__(seed)
        if tokenizer.mask_token_id is None:
            raise UserError("the tokenizer has no mask token; give one of a masked language model")
        if not 0 < probability <= 1:
            raise UserError(f"mask_probability={probability} must be above 0 and at most 1; 0.15 is usual")
        self.pad_token_id = tokenizer.pad_token_id
        self.mask_token_id = tokenizer.mask_token_id
        self.special_tokens = np.unique(tokenizer.all_special_ids)
        self.ordinary_tokens = np.setdiff1d(np.arange(len(tokenizer)), self.special_tokens)
        self.probability = probability
        self.whole_words = whole_words

    def __call__(self, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
        """Mask and pad a batch.

        Args:
            examples: rows with `input_ids` and optionally `word_starts`, `token_type_ids` and
                `next_sentence_label`.

        Returns:
            int64 tensors: `input_ids`, `attention_mask` and `labels` [B, S], with −100 for tokens that are
            not predicted; `token_type_ids` [B, S] and `next_sentence_label` [B] if rows have them.
        """
        masked = [self.mask(row) for row in examples]
        input_ids, attention_mask = pad([ids for ids, _ in masked], self.pad_token_id)
        labels, _ = pad([labels for _, labels in masked], IGNORED_LABEL)
        arrays = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        if "token_type_ids" in examples[0]:
            arrays["token_type_ids"], _ = pad([row["token_type_ids"] for row in examples], 0)
        if "next_sentence_label" in examples[0]:
            arrays["next_sentence_label"] = np.array([row["next_sentence_label"] for row in examples])
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def mask(self, row: Example) -> tuple[Integers, Integers]:
        """Return a row's masked tokens [N] and its labels [N], −100 for tokens that are not predicted."""
        tokens = np.asarray(row["input_ids"], dtype=np.int64)
        generator = self.generator(tokens)
        may_be_chosen = ~np.isin(tokens, self.special_tokens)
        starts = np.asarray(row["word_starts"]) if self.whole_words else np.ones(len(tokens), dtype=bool)
        word = np.cumsum(starts | ~may_be_chosen)  # index of each token's word
        chosen = (generator.random(len(tokens) + 1) < self.probability)[word] & may_be_chosen
        if may_be_chosen.any() and not chosen.any():  # at least one per row
            chosen = (word == word[generator.choice(np.flatnonzero(may_be_chosen))]) & may_be_chosen
        fate = generator.random(len(tokens))
        seen = np.where(chosen & (fate < HIDDEN), self.mask_token_id, tokens)
        replaced = chosen & (fate >= HIDDEN) & (fate < HIDDEN + REPLACED)
        seen[replaced] = generator.choice(self.ordinary_tokens, replaced.sum())
        return seen, np.where(chosen, tokens, IGNORED_LABEL)
