"""Fast paths of the models. Each one is optional: without it, `vaswani.model` computes the same result."""
