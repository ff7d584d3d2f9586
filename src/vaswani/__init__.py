"""The original Transformer as a Hugging Face model plugin."""

__version__ = "0.1.0"
