"""A model small enough to test exhaustively, and batches for it."""

from typing import Any

import torch

from vaswani import VaswaniConfig, VaswaniForConditionalGeneration

# A backend of `torch.compile` that makes inductor's graphs, forward and backward, and runs them without
# generating code, which takes a minute of C++. What our code must allow is the whole graph and its
# decompositions. Inductor itself compiles one dense model and each sparse operator, in their tests.
GRAPHS_ALONE = "aot_eager_decomp_partition"

TINY: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,  # not the encoder's number, so that a mix-up shows
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "dropout": 0.0,
}


def tiny_config(**fields: Any) -> VaswaniConfig:
    return VaswaniConfig(**{**TINY, **fields})


def tiny_model(implementation: str = "sdpa", **fields: Any) -> VaswaniForConditionalGeneration:
    """A model in evaluation mode with random biases and norms too, so that a missing one is noticed."""
    model = VaswaniForConditionalGeneration._from_config(
        tiny_config(**fields), attn_implementation=implementation
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def assert_sdpa_equals_eager(model: VaswaniForConditionalGeneration, data: dict[str, torch.Tensor]) -> None:
    """Check that outputs and gradients of both implementations are equal."""
    results = {}
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        output = model(**data)
        output.loss.backward()
        results[implementation] = (output.logits, [p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(results["sdpa"][0], results["eager"][0], rtol=1e-4, atol=1e-5)
    for actual, expected in zip(results["sdpa"][1], results["eager"][1], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-5)


def tokens(rows: int, length: int, vocab_size: int = TINY["vocab_size"]) -> torch.Tensor:
    """Random ordinary tokens [rows, length]."""
    return torch.randint(3, vocab_size, (rows, length))


def batch(rows: int = 3, source: int = 7, target: int = 5, **fields: Any) -> dict[str, torch.Tensor]:
    """Sources of different lengths, padded right, with labels padded by −100."""
    input_ids, labels = tokens(rows, source, **fields), tokens(rows, target, **fields)
    attention_mask = torch.ones_like(input_ids)
    for row in range(1, rows):
        attention_mask[row, source - row :] = 0
        labels[row, target - row :] = -100
    return {"input_ids": input_ids * attention_mask, "attention_mask": attention_mask, "labels": labels}


def enable_activation_checkpointing(model) -> None:
    """By the name of the method in this version of transformers."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()
