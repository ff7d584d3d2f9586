"""Metrics with confidence intervals, and the evaluation of a finished model."""
