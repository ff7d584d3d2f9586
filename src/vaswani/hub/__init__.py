"""Opening checkpoints, model cards and pushing to the Hub."""
