"""Fixtures that whole runs share."""

from tiny_runs import datasets_cache, dates, tiny_run

__all__ = ["datasets_cache", "dates", "tiny_run"]
