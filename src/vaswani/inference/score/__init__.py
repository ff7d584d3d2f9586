"""Log-probabilities of given texts."""
