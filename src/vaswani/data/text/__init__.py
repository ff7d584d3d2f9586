"""Sequences of tokens for language models."""
