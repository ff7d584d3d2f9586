"""Training: configuration, trainers, runs, and processes."""
