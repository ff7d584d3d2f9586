"""Texts as sequences of tokens for language models."""
