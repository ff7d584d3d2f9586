"""Values with confidence intervals by bootstrap resampling of rows (Koehn, 2004, W04-3250).

A seed draws the same rows for every model and metric, so that differences and ratios of scores are paired:
rows that are easy or hard for all models do not widen their intervals.

S rows · R resamples
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

RESAMPLES = 1000
PERCENTILES = (2.5, 97.5)  # a 95 % confidence interval


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @classmethod
    def from_resamples(cls, value: float, resampled: np.ndarray) -> Estimate:
        """Return a value with the interval of its resamples [R]; NaN if one of them is NaN."""
        # Between infinities, interpolation would compute inf - inf.
        is_finite = np.isfinite(resampled).all()
        low, high = np.percentile(resampled, PERCENTILES, method="linear" if is_finite else "nearest")
        return cls(value, float(low), float(high))

    @property
    def interval(self) -> str:
        """The interval as text."""
        return f"(95 % interval {self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Difference(Estimate):
    """The difference of two models' scores, with its 95 % confidence interval."""

    p_value: float  # of the paired bootstrap test

    @classmethod
    def between(cls, score: float, resampled: np.ndarray, other: float, others: np.ndarray) -> Difference:
        """Return a score minus another, from both scores on the same resamples [R]."""
        with np.errstate(invalid="ignore"):  # inf - inf
            value, resampled_values = score - other, resampled - others
        p_value = bootstrap_p_value(value, resampled_values)
        return cls(**vars(Estimate.from_resamples(value, resampled_values)), p_value=p_value)


def bootstrap_p_value(difference: float, resampled: np.ndarray) -> float:
    """Return the p-value of a difference of scores, as `sacrebleu --paired-bs` defines it.

    It is the share of resamples whose absolute difference exceeds the mean absolute difference by more than
    the difference on all rows; both counts are one larger, so that it is never 0. Unlike in sacreBLEU, it is
    1 for models whose scores are equal in every resample, and NaN if a difference is infinite or NaN.

    Args:
        difference: of the scores on all rows.
        resampled: differences on the same resamples of the rows for both models [R].
    """
    if not (np.isfinite(difference) and np.isfinite(resampled).all()):
        return float("nan")
    if difference == 0 and not resampled.any():
        return 1.0
    sizes = np.abs(resampled)
    exceeding = np.count_nonzero(sizes - sizes.mean() > abs(difference))
    return (exceeding + 1) / (len(sizes) + 1)


def resampled_rows(count: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield the rows of each resample of `count` rows: int64 [S]."""
    generator = np.random.default_rng(seed)
    return (generator.integers(count, size=count) for _ in range(RESAMPLES))
