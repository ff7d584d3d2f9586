"""Training: configuration, trainer, schedule, losses and metrics."""
