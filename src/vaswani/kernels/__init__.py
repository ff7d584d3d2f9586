"""Fast kernels of the models. Each is optional: without it, `vaswani.model` computes the same result."""
