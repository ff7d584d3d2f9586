"""`torch.export` of whole models takes any batch and length."""

from typing import Any

import pytest
import torch
from torch.export import Dim

from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.model.compatibility import CACHE_NAME

LONGEST = {"sinusoidal": 1100, "learned": 40, "none": 1100}  # beyond the table of sinusoids


@pytest.mark.exhaustive(after=2)
@pytest.mark.slow
@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("positions", LONGEST)
def test_an_encoder_decoder_takes_any_length(positions: str, use_cache: bool) -> None:
    if use_cache:
        exporter = pytest.importorskip(
            "transformers.exporters.exporter_dynamo", reason="transformers 5.12 has no exporters of caches"
        )
    config = VaswaniConfig(
        vocab_size=31,
        d_model=16,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=16,
        position_embedding=positions,
        max_position_embeddings=LONGEST["learned"],
    )
    model = VaswaniForConditionalGeneration(config).eval()
    if use_cache:
        exporter.register_cache_pytrees_for_model(model)
    axes = {"input_ids": "source", "attention_mask": "source", "decoder_input_ids": "target"}
    shapes: dict[str, Any] = {name: {0: Dim("batch"), 1: Dim(axis)} for name, axis in axes.items()}
    example = {
        name: torch.ones(2, 9 if axis == "source" else 7, dtype=torch.long) for name, axis in axes.items()
    }
    program = torch.export.export(
        model, (), {**example, "use_cache": use_cache}, dynamic_shapes={**shapes, "use_cache": None}
    )
    sizes = {"source": LONGEST[positions], "target": 20}
    inputs = {name: torch.randint(3, 31, (3, sizes[axis])) for name, axis in axes.items()}
    inputs["attention_mask"] = inputs["attention_mask"].gt(9).long()
    found = program.module()(**inputs, use_cache=use_cache)
    with torch.no_grad():
        expected = model(**inputs, use_cache=use_cache)
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-4, rtol=0)
    assert (CACHE_NAME in found) == use_cache
    if use_cache:
        keys = [each[CACHE_NAME].self_attention_cache.layers[0].keys for each in (found, expected)]
        torch.testing.assert_close(*keys, atol=1e-4, rtol=0)
