"""Questions on texts, and the windows of text in which a model looks for the answers."""
