"""Several processes and signals."""
