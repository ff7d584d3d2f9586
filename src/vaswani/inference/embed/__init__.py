"""Vectors of texts, tokens and words."""
