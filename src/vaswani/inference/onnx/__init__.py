"""Models that run in ONNX Runtime, from the folders of `vaswani export --to onnx`."""
