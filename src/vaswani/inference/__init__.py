"""Using trained models: loading, translating, scoring."""
