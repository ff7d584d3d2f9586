"""Maximum and minimum lengths of translations."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vaswani.bounds import Bounds
from vaswani.errors import UserError, check_positive
from vaswani.inference.decoding import EXTRA_LENGTH

_ROUNDING = 1e-9  # as a minimum, 1.1 · 10 is 11 tokens, not 12; as a maximum, 1.4 · 45 is 63, not 62


@dataclass(frozen=True, kw_only=True)
class TargetLengths:
    """Length limits of translations, in tokens. Lengths of both sides include the end token.

    A translation has at most 50 tokens more than its source (Vaswani et al., 2017, section 6.1), or the
    minimum if that is more. With `max_length_ratio`, the maximum is this ratio times the length of the source
    instead, even if a minimum is more. A translation never has more than `max_length` tokens.

    Args:
        max_length: maximum tokens.
        min_length: minimum tokens.
        max_length_ratio: maximum tokens per source token.
        min_length_ratio: minimum tokens per source token.

    Raises:
        UserError: a limit is out of range, or a minimum exceeds its maximum.
    """

    max_length: int = 1024
    min_length: int | None = None
    max_length_ratio: float | None = None
    min_length_ratio: float | None = None

    def __post_init__(self) -> None:
        check_positive(max_length=self.max_length, min_length=self.min_length)
        for name in ("max_length_ratio", "min_length_ratio"):
            if (ratio := getattr(self, name)) is not None:
                Bounds(above=0).check(name, ratio)
        for least, most in (("min_length", "max_length"), ("min_length_ratio", "max_length_ratio")):
            given = getattr(self, least), getattr(self, most)
            if None not in given and given[0] > given[1]:
                raise UserError(
                    f"{least}={given[0]} is more than {most}={given[1]}; lower {least} or raise {most}"
                )

    def max_tokens(self, source_length: int) -> int:
        """Return the maximum tokens of a translation for a source of this length, at least 1."""
        max_tokens = max(source_length + EXTRA_LENGTH, self._requested_minimum(source_length))
        if self.max_length_ratio is not None:
            max_tokens = math.floor(self.max_length_ratio * source_length + _ROUNDING)
        return max(min(max_tokens, self.max_length), 1)

    def min_tokens(self, source_length: int) -> int:
        """Return the minimum tokens of a translation for a source of this length; 0 without a minimum."""
        return min(self._requested_minimum(source_length), self.max_tokens(source_length))

    def _requested_minimum(self, source_length: int) -> int:
        """Return the larger of the two minimums for a source of this length."""
        min_tokens = self.min_length or 0
        if self.min_length_ratio is not None:
            min_tokens = max(min_tokens, math.ceil(self.min_length_ratio * source_length - _ROUNDING))
        return min_tokens
