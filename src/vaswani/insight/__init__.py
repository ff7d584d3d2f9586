"""Insight: pictures of what a model does."""
