"""Gap sentences: predict the sentences that were removed from a text.

As in PEGASUS (Zhang et al., 2020, arXiv:1912.08777, section 3.1). A mask replaces each removed sentence in
the source; the removed sentences, in their order, are the target. There are three strategies. `ind_orig`
removes the sentences that best summarize the rest: each sentence is scored independently, by the ROUGE-1 F1
between it and all other sentences, and repeated words count. `random` draws new sentences in each epoch.
`lead` removes the first sentences.

A share of the chosen sentences can stay in the source as well. The target still has them, so that the model
learns to copy, which a summarizer needs (PEGASUS keeps 20 %, section 6.2). Each epoch draws them anew.

N tokens of a text · S sentences
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import regex
from datasets import Features, List, Value
from transformers import PreTrainedTokenizerBase

from vaswani.data.collation import Example
from vaswani.data.text.denoising import LENGTHS, Integers, frames
from vaswani.data.text.scripts import HAN, KANA
from vaswani.data.text.sequences import TOKENS, Document, SequenceBuilder

Strategy = Literal["ind_orig", "random", "lead"]

PEGASUS_MASK = "<mask_1>"  # replaces a sentence; <mask_2> replaces words
# In Chinese and Japanese each character counts as a word.
_WORD = regex.compile(rf"[{HAN}{KANA}]|[^\W{HAN}{KANA}]+")
_SENTENCES = {"sentence_starts": List(Value("int32")), "gaps": List(Value("int32"))}


@dataclass(frozen=True)
class GapChoice:
    """Chooses the sentences that are removed from a text.

    Args:
        ratio: share of the sentences to choose, above 0 and below 1; at least one is chosen and one is not.
        strategy: see the module's docstring.
        kept: probability that a chosen sentence stays in the source, from 0 to 1.
    """

    ratio: float = 0.3
    strategy: Strategy = "ind_orig"
    kept: float = 0.0

    def count(self, sentences: int) -> int:
        """Return how many of two or more sentences are chosen."""
        return min(max(round(sentences * self.ratio), 1), sentences - 1)

    def fixed(self, sentences: Sequence[str]) -> Integers:
        """Return the sorted indices of the sentences that every epoch chooses; empty for `random`."""
        if self.strategy == "random":
            return np.array([], dtype=np.int64)
        if self.strategy == "lead":
            return np.arange(self.count(len(sentences)))
        best = np.argsort(-rouge1_with_rest(sentences), kind="stable")  # the first of equal scores
        return np.sort(best[: self.count(len(sentences))])

    def drawn(self, sentences: int, generator: np.random.Generator) -> Integers:
        """Draw the indices of the chosen sentences, sorted."""
        return np.sort(generator.choice(sentences, self.count(sentences), replace=False))

    def most(self, lengths: Integers, gaps: Integers) -> tuple[int, int]:
        """Return the maximum lengths of source and target for sentences of these lengths [S].

        `gaps` are the sentences that every epoch chooses; empty for `random`.
        """
        count, whole = self.count(len(lengths)), lengths.sum()
        ordered = np.sort(lengths[gaps] if len(gaps) else lengths)
        source = whole if self.kept else whole - ordered[:count].sum() + count  # all may be kept
        return int(source), int(ordered[-count:].sum())


def rouge1_with_rest(sentences: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return the ROUGE-1 F1 between each sentence and all the others together: float64 [S].

    Words are lower-cased and not stemmed; each Chinese or Japanese character counts as a word.
    """
    words = [Counter(_WORD.findall(sentence.lower())) for sentence in sentences]
    of_all: Counter[str] = Counter()
    for own in words:
        of_all.update(own)
    total = of_all.total()
    scores = np.zeros(len(sentences))
    for number, own in enumerate(words):
        common = sum(min(count, of_all[word] - count) for word, count in own.items())
        scores[number] = 2 * common / max(total, 1)  # F1 = 2PR / (P + R); `total` counts both sides' words
    return scores


@dataclass(frozen=True)
class GapSentences:
    """Removes sentences from a row.

    Args:
        choice: chooses the sentences.
        mask: token id that replaces each removed sentence.
    """

    choice: GapChoice
    mask: int

    def __call__(self, row: Example, generator: np.random.Generator) -> tuple[Integers, Integers]:
        """Return the source and the target of a row with `input_ids`, `sentence_starts` and `gaps`."""
        sentences = np.split(row["input_ids"], row["sentence_starts"][1:])
        gaps = np.asarray(row["gaps"])
        if self.choice.strategy == "random":
            gaps = self.choice.drawn(len(sentences), generator)
        removed = set(gaps[generator.random(len(gaps)) >= self.choice.kept].tolist())
        source = [[self.mask] if number in removed else part for number, part in enumerate(sentences)]
        return np.concatenate(source), np.concatenate([sentences[number] for number in gaps])


def sentence_mask(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id of the token for a removed sentence: PEGASUS's, else the mask token; None if neither."""
    return tokenizer.get_vocab().get(PEGASUS_MASK, tokenizer.mask_token_id)


@dataclass(frozen=True)
class GapPieces(SequenceBuilder):
    """Pieces of documents for gap sentences; a piece of one sentence has no gaps and a `source_length` of 0.

    Args:
        choice: chooses the sentences that will be removed.
    """

    choice: GapChoice = GapChoice()

    features: ClassVar[Features] = Features(TOKENS | LENGTHS | _SENTENCES)

    def sequences(
        self, documents: list[Document], numbers: list[int], tokenizer: PreTrainedTokenizerBase
    ) -> Iterator[dict[str, Any]]:
        """Yield the token ids and sentences of each piece, and the maximum lengths of source and target."""
        of_source, of_target = map(len, frames(tokenizer))
        for document in documents:
            for part in document.parts(self.max_length - of_source):
                starts = np.union1d([0], np.flatnonzero(part.sentence_starts))
                if len(starts) < 2:
                    nothing = {"gaps": np.array([], dtype=np.int64), "source_length": 0, "target_length": 0}
                    yield {"input_ids": part.ids, "sentence_starts": starts, **nothing}
                    continue
                lengths = np.diff(starts, append=len(part.ids))
                gaps = self.choice.fixed(_texts(part, starts))
                source, target = self.choice.most(lengths, gaps)
                yield {
                    "input_ids": part.ids,
                    "sentence_starts": starts,
                    "gaps": gaps,
                    "source_length": source + of_source,
                    "target_length": target + of_target,
                }


def _texts(part: Document, starts: Integers) -> list[str]:
    """Return the texts of the sentences that begin at these tokens [S]."""
    begins, ends = part.characters[starts, 0], part.characters[[*starts[1:] - 1, -1], 1]
    return [part.text[begin:end] for begin, end in zip(begins, ends, strict=True)]
