"""From corpora to batches: sources of rows, tokenizers, examples and caches."""
