"""The scales of scores that are not percentages. This module imports nothing, so that options can read it."""

CORRELATIONS = ("matthews", "pearson", "spearman")  # −1 to 1
LOWER_IS_BETTER = ("mse", "perplexity", "bits_per_byte")  # at least 0, as losses
