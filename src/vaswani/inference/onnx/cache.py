"""The keys and values of a model that runs in ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

PAST = "past_key_values."  # begins the names of inputs


@dataclass
class OnnxCache:
    """The keys and values of all layers.

    Args:
        states: keys and values by their names in the files. Those of self-attention, such as `0.decoder.key`
            or, in a model of one stack, `0.key`, are [B, H, P, D]; those of cross-attention, such as
            `0.encoder.key`, are [B, H, S, D].
    """

    states: dict[str, torch.Tensor]
    is_compileable: ClassVar[bool] = False  # `generate` reads it

    @classmethod
    def from_outputs(cls, outputs: dict[str, torch.Tensor]) -> OnnxCache:
        """Return the keys and values among the outputs of a file."""
        present = "present."
        found = ((name, states) for name, states in outputs.items() if name.startswith(present))
        return cls({name.removeprefix(present): states for name, states in found})

    def inputs(self) -> dict[str, torch.Tensor]:
        """Return the keys and values under the names of the inputs of a file."""
        return {f"{PAST}{name}": states for name, states in self.states.items()}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return P, the number of tokens in the cache."""
        return next((states.shape[2] for name, states in self.states.items() if _is_own(name)), 0)

    def crop(self, tokens: int) -> None:
        """Keep the first tokens, if the number is positive, or remove the last -`tokens`.

        Newer versions of transformers give the second kind only, and older ones both.
        """
        kept = tokens if tokens > 0 else self.get_seq_length() + tokens
        for name, states in self.states.items():
            if _is_own(name):
                self.states[name] = states[:, :, :kept]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Make row r continue row `beam_idx[r]`, another beam of the same source: int64 [B]."""
        for name, states in self.states.items():
            if _is_own(name):  # cross-attention is the same for all beams of a source
                self.states[name] = states.index_select(0, beam_idx)


def _is_own(name: str) -> bool:
    """Return whether keys or values are of self-attention, by their name."""
    return ".encoder." not in name


def given_cache(past_key_values: Any) -> OnnxCache:
    """Return the cache of earlier tokens; without states for None, and for the empty cache of `generate`.

    Raises:
        ValueError: another model has filled the cache.
    """
    if isinstance(past_key_values, OnnxCache):
        return past_key_values
    if past_key_values is not None and past_key_values.get_seq_length():
        kind = type(past_key_values).__name__
        raise ValueError(
            f"past_key_values is a {kind} of another model; give the cache that this model returned."
        )
    return OnnxCache({})
