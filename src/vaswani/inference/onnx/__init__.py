"""Models that ONNX Runtime computes, from the folders of `vaswani export --to onnx`."""
