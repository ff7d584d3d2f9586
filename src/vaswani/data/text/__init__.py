"""Texts: sequences for language models, completions, chats, sentences and n-gram scores."""
