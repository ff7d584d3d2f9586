"""Texts with labels, and words with tags."""
