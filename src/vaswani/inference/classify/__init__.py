"""Labels of texts and of their words."""
