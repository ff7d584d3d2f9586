"""Bounds of numeric options, declared with the option and checked before any work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real

from vaswani.errors import UserError

LARGEST = 2**31 - 1  # enough for every option that counts or measures something
LARGEST_SEED = 2**32 - 1  # numpy's limit
MAX_BEAMS = 1000
MAX_POSITIONS = 2**20  # of a table
LARGEST_ALPHA = 10  # of a length penalty


@dataclass(frozen=True)
class Bounds:
    """The numbers that an option accepts, never NaN or infinity.

    Args:
        at_least, above, below, at_most: the limits.
        also: numbers outside the limits with a special meaning, such as -1 for "not set".
        whole: accepts only whole numbers.
    """

    at_least: float = -LARGEST
    above: float = -math.inf
    below: float = math.inf
    at_most: float = LARGEST
    also: tuple[float, ...] = ()
    whole: bool = False

    def check(self, name: str, value: float) -> None:
        """Raise a `UserError` unless the option accepts this number."""
        if not isinstance(value, Integral if self.whole else Real):
            raise UserError(f"{name}={value!r} must be a {'whole ' if self.whole else ''}number")
        if value in self.also:
            return
        if not (self.at_least <= value <= self.at_most and self.above < value < self.below):
            raise UserError(f"{name}={value} must be {self._words(value)}")

    def _words(self, value: float) -> str:
        """Describe the accepted numbers; the default maximum is named only if it was exceeded."""
        words = {
            "at least": None if self.at_least == -LARGEST else self.at_least,
            "above": None if self.above == -math.inf else self.above,
            "below": None if self.below == math.inf else self.below,
            "at most": None if self.at_most == LARGEST and not value > LARGEST else self.at_most,
        }
        parts = [f"{word} {bound:,}" for word, bound in words.items() if bound is not None]
        return " and ".join(parts or ["a finite number"]) + "".join(f", or {number}" for number in self.also)
