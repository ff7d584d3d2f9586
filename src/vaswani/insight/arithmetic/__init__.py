"""The arithmetic of a model: parameters, operations, memory, traffic, and the floor of its time.

After "Transformer Inference Arithmetic" (kipply, 2022, https://kipp.ly/transformer-inference-arithmetic/),
for encoder-decoders, encoders and decoders, dense and sparse. `estimate` combines all of it.
"""
