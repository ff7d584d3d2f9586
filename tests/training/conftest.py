"""Fixtures that whole runs share."""

from tiny_runs import cache_of_its_own, dates, tiny_run

__all__ = ["cache_of_its_own", "dates", "tiny_run"]
