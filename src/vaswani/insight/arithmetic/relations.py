"""Latency and throughput of decoding in a few symbols, after kipply (2022).

"Transformer Inference Arithmetic", https://kipp.ly/transformer-inference-arithmetic/. The relations leave out
embeddings, norms, attention itself and the reading of the cache; `phases.py` counts them.

P weights of the layers, 12 · n_layers · d_model² in GPT · B batch · N devices · A_f operations per second ·
A_bm bytes per second of memory · A_c bytes per second of the link
"""

from __future__ import annotations

from dataclasses import dataclass

from vaswani.insight.arithmetic.devices import Device


@dataclass(frozen=True)
class Relations:
    """The relations of a model on N devices.

    Args:
        n_layers: of the stack that writes, or of the encoder.
        d_model: width.
        P: weights that one token is multiplied by in all layers.
        sums: between devices in a layer; each is two messages.
        device: with its rates.
        N: devices.
        dtype: of weights and products.
        number: bytes of a number.
    """

    n_layers: int
    d_model: int
    P: int
    sums: int
    device: Device
    N: int
    dtype: str
    number: int

    def flops_per_token(self) -> int:
        """2 P."""
        return 2 * self.P

    def cache_bytes_per_token(self) -> int:
        """2 · n_layers · d_model numbers: a key and a value in each layer."""
        return 2 * self.n_layers * self.d_model * self.number

    def cache_flops_per_token(self) -> int:
        """2 · 2 · n_layers · d_model²: the projections that the cache saves."""
        return 4 * self.n_layers * self.d_model**2

    def tokens_at_balance(self) -> float:
        """Tokens in one pass at which arithmetic takes as long as reading the weights."""
        return self.device.peak(self.dtype) / self.device.bandwidth * self.number / 2

    def flops_per_byte_sent(self) -> float | None:
        """A_f / A_c."""
        return (
            self.device.peak(self.dtype) / self.device.link_bandwidth if self.device.link_bandwidth else None
        )

    def tokens_in_memory(self, parameters: int) -> float:
        """Tokens whose keys and values fit beside all parameters into the memory of N devices."""
        free = self.N * self.device.memory - parameters * self.number
        return max(0.0, free / self.cache_bytes_per_token())

    def memory_seconds(self) -> float:
        """Reading all weights once, as each step does: P numbers / (N · A_bm)."""
        return self.P * self.number / (self.N * self.device.bandwidth)

    def arithmetic_seconds(self, tokens: int) -> float:
        """B · 2 P / (N · A_f)."""
        return tokens * 2 * self.P / (self.N * self.device.peak(self.dtype))

    def message_seconds(self) -> float:
        """The latency of a small batch's messages: 4 · n_layers of them in GPT."""
        return 0.0 if self.N == 1 else 2 * self.sums * self.n_layers * self.device.link_latency

    def transfer_seconds(self, tokens: int) -> float:
        """B · 4 · n_layers · d_model numbers / A_c in GPT, where (N − 1) / N is rounded to 1."""
        if self.N == 1 or not self.device.link_bandwidth:
            return 0.0
        sent = tokens * 2 * self.sums * self.n_layers * self.d_model * self.number
        return sent / self.device.link_bandwidth

    def of_batch(self, rows: int, parameters: int) -> dict[str, float | None]:
        """Return all of them for a step of B rows."""
        return {
            "P": self.P,
            "flops_per_token": self.flops_per_token(),
            "cache_bytes_per_token": self.cache_bytes_per_token(),
            "cache_flops_per_token": self.cache_flops_per_token(),
            "tokens_at_balance": self.tokens_at_balance(),
            "tokens_in_memory": self.tokens_in_memory(parameters),
            "flops_per_byte_sent": self.flops_per_byte_sent(),
            "memory_seconds": self.memory_seconds(),
            "arithmetic_seconds": self.arithmetic_seconds(rows),
            "message_seconds": self.message_seconds(),
            "transfer_seconds": self.transfer_seconds(rows),
        }
