"""A browser page that shows which tokens each token attends to."""

from vaswani.insight.attention_page.page import AttentionPage, attention_page

__all__ = ["AttentionPage", "attention_page"]
