"""Configurations and models, which are copied to the Hub. They import nothing else of this package."""
