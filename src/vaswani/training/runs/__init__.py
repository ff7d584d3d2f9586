"""Every kind of training run, top to bottom."""
