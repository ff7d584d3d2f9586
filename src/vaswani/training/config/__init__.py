"""Training arguments and the YAML files that set them."""
