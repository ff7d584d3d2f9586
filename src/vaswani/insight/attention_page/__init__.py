"""A page in the browser that shows where tokens attend."""

from vaswani.insight.attention_page.page import AttentionPage, attention_page

__all__ = ["AttentionPage", "attention_page"]
