"""Latency and throughput of decoding as formulas of a few symbols, after kipply (2022).

"Transformer Inference Arithmetic", https://kipp.ly/transformer-inference-arithmetic/. The relations do not
include embeddings, norms, attention itself and reading the cache; `phases.py` counts these.

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
        n_layers: layers of the decoder, or of the encoder if there is no decoder.
        d_model: width of the model.
        key_value_width: width of the keys and values of all heads, 2 · d_model in GPT.
        P: weights that one token is multiplied by in all layers.
        sums: sums between devices per layer; each takes two messages.
        device: one of the devices, with its rates.
        N: number of devices.
        dtype: dtype of weights and products.
        number: bytes of a number.
    """

    n_layers: int
    d_model: int
    key_value_width: int
    P: int
    sums: int
    device: Device
    N: int
    dtype: str
    number: int

    def flops_per_token(self) -> int:
        """Return 2 P."""
        return 2 * self.P

    def cache_bytes_per_token(self) -> int:
        """Return 2 · n_layers · d_model numbers in bytes in GPT: a key and a value in each layer."""
        return self.n_layers * self.key_value_width * self.number

    def cache_flops_per_token(self) -> int:
        """Return 2 · 2 · n_layers · d_model² in GPT: the projections that the cache saves."""
        return 2 * self.n_layers * self.d_model * self.key_value_width

    def tokens_at_balance(self) -> float:
        """Return the tokens in one pass for which arithmetic takes as long as reading the weights."""
        return self.device.peak(self.dtype) / self.device.bandwidth * self.number / 2

    def flops_per_byte_sent(self) -> float | None:
        """Return A_f / A_c, or None without a link."""
        return (
            self.device.peak(self.dtype) / self.device.link_bandwidth if self.device.link_bandwidth else None
        )

    def tokens_in_memory(self, parameters: int) -> float:
        """Return the tokens whose keys and values fit into the memory of N devices beside all parameters."""
        free = self.N * self.device.memory - parameters * self.number
        return max(0.0, free / self.cache_bytes_per_token())

    def memory_seconds(self) -> float:
        """Return the time of reading all weights once, as each step does: P numbers / (N · A_bm)."""
        return self.P * self.number / (self.N * self.device.bandwidth)

    def arithmetic_seconds(self, tokens: int) -> float:
        """Return the time of a step's operations: B · 2 P / (N · A_f)."""
        return tokens * 2 * self.P / (self.N * self.device.peak(self.dtype))

    def message_seconds(self) -> float:
        """Return the latency of a small batch's messages: 4 · n_layers messages in GPT."""
        return 0.0 if self.N == 1 else 2 * self.sums * self.n_layers * self.device.link_latency

    def transfer_seconds(self, tokens: int) -> float:
        """Return B · 4 · n_layers · d_model numbers / A_c in GPT, with (N − 1) / N rounded to 1."""
        if self.N == 1 or not self.device.link_bandwidth:
            return 0.0
        sent = tokens * 2 * self.sums * self.n_layers * self.d_model * self.number
        return sent / self.device.link_bandwidth

    def for_batch(self, rows: int, parameters: int, *, has_cache: bool = True) -> dict[str, float | None]:
        """Return all relations for a step of B rows; without those of a cache if there is none."""
        cache: dict[str, float | None] = {
            "cache_bytes_per_token": self.cache_bytes_per_token(),
            "cache_flops_per_token": self.cache_flops_per_token(),
            "tokens_in_memory": self.tokens_in_memory(parameters),
        }
        return {
            "P": self.P,
            "flops_per_token": self.flops_per_token(),
            **(cache if has_cache else {}),
            "tokens_at_balance": self.tokens_at_balance(),
            "flops_per_byte_sent": self.flops_per_byte_sent(),
            "memory_seconds": self.memory_seconds(),
            "arithmetic_seconds": self.arithmetic_seconds(rows),
            "message_seconds": self.message_seconds(),
            "transfer_seconds": self.transfer_seconds(rows),
        }
