"""Text, token and word vectors, and search."""
