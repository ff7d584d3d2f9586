"""Training in several processes, and signals."""
