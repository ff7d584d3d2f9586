"""Alignments as sets of links between words: Pharaoh's format, symmetrization, error rates.

A link (i, j) joins word i of the source and word j of the target; both count from 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

import torch

from vaswani.errors import UserError
from vaswani.inference.align.words import Words

Link = tuple[int, int]
Links = frozenset[Link]

_GOLD_LINK = re.compile(r"(\d+)([-p])(\d+)", re.ASCII)
# Steps to the neighbours of a link in grow-diag: horizontal, vertical and diagonal.
_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def to_pharaoh(links: Iterable[Link]) -> str:
    """Return links as `0-0 1-2`, in order."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


@dataclass(frozen=True)
class GoldLinks:
    """The annotated links of a pair.

    Args:
        sure: the links written `i-j`.
        possible: the sure links and the links written `ipj`.
    """

    sure: Links
    possible: Links


def read_gold(line: str, place: str) -> GoldLinks:
    """Return the links of a line of Pharaoh's format, such as `0-0 1p2`.

    Args:
        line: the line.
        place: the place of the line for messages, such as "line 3 of FILE".

    Raises:
        UserError: the line holds something other than links.
    """
    sure, possible = set(), set()
    for word in line.split():
        found = _GOLD_LINK.fullmatch(word)
        if found is None:
            raise UserError(f"{place} holds {word!r}; expected links such as 0-0 (sure) and 1p2 (possible)")
        link = int(found[1]), int(found[3])
        possible.add(link)
        if found[2] == "-":
            sure.add(link)
    return GoldLinks(frozenset(sure), frozenset(possible))


def symmetrize(forward: Set[Link], backward: Set[Link], method: str) -> Links:
    """Combine the links of two directions (Koehn et al., 2003; Och and Ney, 2003, section 5).

    Args:
        forward: links (source, target) found by a model from source to target.
        backward: links (source, target) found by a model from target to source.
        method: one of `METHODS`.

    Raises:
        UserError: the method is unknown.
    """
    check_method(method)
    return METHODS[method](frozenset(forward), frozenset(backward))


def check_method(method: str) -> None:
    """Raise a UserError unless a method of symmetrization is known."""
    if method not in METHODS:
        raise UserError(f"symmetrize={method} is unknown; expected {', '.join(METHODS)}")


def _grow_diag(forward: Links, backward: Links) -> Links:
    """Grow the intersection by neighbouring links of the union that join at least one unlinked word.

    A link that is added grows in the same pass if its place comes later, as in the published pseudocode.
    """
    links, union = set(forward & backward), forward | backward
    grows = True
    while grows:
        grows = False
        for source, target in _in_order(union):
            if (source, target) not in links:
                continue
            for down, right in _NEIGHBOURS:
                link = source + down, target + right
                if link in union and link not in links and any(_free(link, links)):
                    links.add(link)
                    grows = True
    return frozenset(links)


def _final(*, both: bool) -> Callable[[Links, Links], Links]:
    """After grow-diag, add links of either direction that join an unlinked word; with `both`, two of them."""

    def combine(forward: Links, backward: Links) -> Links:
        links = set(_grow_diag(forward, backward))
        for link in [*_in_order(forward), *_in_order(backward)]:
            free = _free(link, links)
            if all(free) if both else any(free):
                links.add(link)
        return frozenset(links)

    return combine


def _in_order(links: Iterable[Link]) -> list[Link]:
    """Return links by target word, then by source word."""
    return sorted(links, key=lambda link: link[::-1])


def _free(link: Link, links: Set[Link]) -> tuple[bool, bool]:
    """Return whether the source word and whether the target word of a link is unlinked."""
    return all(link[0] != other[0] for other in links), all(link[1] != other[1] for other in links)


METHODS: dict[str, Callable[[Links, Links], Links]] = {
    "intersection": lambda forward, backward: forward & backward,
    "union": lambda forward, backward: forward | backward,
    "grow-diag": _grow_diag,
    "grow-diag-final": _final(both=False),
    "grow-diag-final-and": _final(both=True),
}


@dataclass
class AlignmentErrors:
    """Counts of found links A, sure links S and possible links P (Och and Ney, 2003, section 6).

    Args:
        found: |A|.
        sure: |S|.
        found_sure: |A ∩ S|.
        found_possible: |A ∩ P|; sure links are possible too.
    """

    found: int = 0
    sure: int = 0
    found_sure: int = 0
    found_possible: int = 0

    def add(self, links: Set[Link], gold: GoldLinks) -> None:
        """Count the links of one pair."""
        self.found += len(links)
        self.sure += len(gold.sure)
        self.found_sure += len(links & gold.sure)
        self.found_possible += len(links & gold.possible)

    @property
    def precision(self) -> float:
        """|A ∩ P| / |A|; 1 without found links."""
        return self.found_possible / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """|A ∩ S| / |S|; 1 without sure links."""
        return self.found_sure / self.sure if self.sure else 1.0

    @property
    def error_rate(self) -> float:
        """1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|); 0 without links."""
        links = self.found + self.sure
        return 1 - (self.found_sure + self.found_possible) / links if links else 0.0

    def __str__(self) -> str:
        values = {"precision": self.precision, "recall": self.recall, "alignment error rate": self.error_rate}
        return ", ".join(f"{name} {100 * value:.2f}" for name, value in values.items())


def check_inside(gold: GoldLinks, num_source: int, num_target: int, place: str) -> None:
    """Raise a UserError if a link names a word that the pair does not have."""
    for source, target in sorted(gold.possible):
        if source >= num_source or target >= num_target:
            raise UserError(
                f"{place} links words {source} and {target}, and the pair has {num_source} and {num_target} "
                "words, which count from 0; give the links of these pairs"
            )


def aligned_words(weights: torch.Tensor, source_words: Words, target_words: Words) -> Links:
    """Link each target word of a pair to the source word that it attends to most.

    Args:
        weights: attention of the target tokens to the source tokens, float [T, S].
        source_words: the word of each source token [S]; None for tokens of no word.
        target_words: the word of each target token [T or more]; None for tokens of no word.
    """
    sources = sorted({word for word in source_words if word is not None})
    if not sources:
        return frozenset()
    columns = torch.stack(
        [weights[:, [at for at, each in enumerate(source_words) if each == word]].sum(1) for word in sources]
    )  # [source words, T]
    links = set()
    for word in sorted({word for word in target_words[: len(weights)] if word is not None}):
        rows = [at for at, each in enumerate(target_words[: len(weights)]) if each == word]
        links.add((sources[int(columns[:, rows].sum(1).argmax())], word))
    return frozenset(links)
