"""Answer questions by spans of texts."""
