"""Files: atomic writes, JSON, YAML and lines; and the Hub's client."""
