# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""What `generate` does differently for our models: nothing of the source is ever repeated or moved.

The rows of one source (beams, samples) share one row of the encoder's output and of its keys and values, and
the beams of one source share one tree of self-attention states.
"""

import torch
from transformers import EncoderDecoderCache

from .beam_search_cache import BeamSearchCache


class SharedSourceMixin:
    """Stands before `GenerationMixin` among the bases of an encoder-decoder model."""

    def _expand_inputs_for_generation(
        self, expand_size: int = 1, is_encoder_decoder: bool = False, **model_kwargs
    ):
        """Repeat what belongs to the target `expand_size` times, and leave the source alone."""
        source = {
            name: model_kwargs.pop(name)
            for name in ("encoder_outputs", "attention_mask")
            if name in model_kwargs
        }
        input_ids, model_kwargs = super()._expand_inputs_for_generation(expand_size, False, **model_kwargs)
        return input_ids, {**model_kwargs, **source}

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs) -> None:
        """Give beam search a cache of its own, where the attention implementation takes any mask."""
        is_default = (
            model_kwargs.get("past_key_values") is None
            and generation_config.cache_implementation in (None, "dynamic")
            and not generation_config.output_attentions  # which would show the tree, not each beam's past
        )
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        cache = model_kwargs.get("past_key_values")
        takes_any_mask = self.config._attn_implementation in ("eager", "sdpa")
        if generation_config.num_beams > 1 and cache is not None and is_default and takes_any_mask:
            cache.self_attention_cache = BeamSearchCache(generation_config.num_beams)

    def _reorder_cache(
        self, past_key_values: EncoderDecoderCache, beam_idx: torch.Tensor
    ) -> EncoderDecoderCache:
        """Let beams follow their hypotheses. The source's keys and values are common to them and stay."""
        past_key_values.self_attention_cache.reorder_cache(beam_idx)
        return past_key_values
