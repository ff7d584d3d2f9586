"""Sharing a model: its card, what travels with it, and the upload."""
