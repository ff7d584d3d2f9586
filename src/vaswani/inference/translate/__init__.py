"""Translation, scoring and ensembles."""
