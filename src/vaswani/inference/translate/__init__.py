"""Translation, its engines, and ensembles."""
