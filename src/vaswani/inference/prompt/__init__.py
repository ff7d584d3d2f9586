"""Few-shot prompting."""
