"""The states of one running search in an encoder-decoder, and the rows that must still be computed.

S sources · R rows of each (beams or samples) · V tokens in the vocabulary
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from transformers import Cache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from vaswani.kernels.beam_search_cache import BeamSearchCache
from vaswani.model.compatibility import CACHE_NAME

if TYPE_CHECKING:
    from vaswani.kernels.decoder_native import NativeStep
    from vaswani.kernels.decoder_step import DecoderStep

# The model's inputs in a step that `step` can compute.
STEP_INPUTS = {
    *("decoder_input_ids", CACHE_NAME, "encoder_outputs", "attention_mask"),
    *("use_cache", "return_dict", "logits_to_keep", "next_sequence_length"),
}


class SearchCache(EncoderDecoderCache):
    """The states of one running search, and the rows that must still be computed."""

    def __init__(
        self, cache: EncoderDecoderCache, num_sources: int, num_rows: int, tree: BeamSearchCache | None
    ):
        super().__init__(cache.self_attention_cache if tree is None else tree, cache.cross_attention_cache)
        self.tree = tree
        self.num_sources = num_sources  # S
        self.num_rows = num_rows  # S·R
        self.rows_per_source = num_rows // num_sources
        self.sources: torch.Tensor | None = None  # indices of the open sources, int64; None means all
        self.rows: torch.Tensor | None = None  # the rows of these sources
        self.step: DecoderStep | NativeStep | None = None  # computes every step after the prompt

    def steps_from(self, inputs: dict[str, Any]) -> bool:
        """Return whether `step` accepts these inputs: one more token for each row, and nothing unusual."""
        return self.step is not None and inputs.keys() <= STEP_INPUTS and self.get_seq_length() > 0

    def narrow(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Reduce the model's inputs for all rows to the rows that must be computed."""
        rows: Any
        if self.tree is not None and self.get_seq_length() == 0:
            rows = slice(None, None, self.tree.num_beams)  # the prompt of each source
        elif self.rows is not None:
            rows = self.rows
        else:
            return inputs
        of_target = {name: inputs.get(name) for name in ("decoder_input_ids", "decoder_attention_mask")}
        narrowed = {name: value[rows] for name, value in of_target.items() if value is not None}
        if self.sources is not None:
            encoded = inputs["encoder_outputs"][0][self.sources]
            narrowed["encoder_outputs"] = BaseModelOutput(last_hidden_state=encoded)
            if inputs.get("attention_mask") is not None:
                narrowed["attention_mask"] = inputs["attention_mask"][self.sources]
        return {**inputs, **narrowed}

    def widen(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores [rows computed, V] -> [S·R, V], uniform for sources that are done."""
        if self.rows is not None:
            all_alike = scores.new_full((self.num_rows, scores.shape[1]), -math.log(scores.shape[1]))
            return all_alike.index_copy_(0, self.rows, scores)
        if scores.shape[0] < self.num_rows:  # of a prompt, which all beams share
            return scores.repeat_interleave(self.num_rows // scores.shape[0], dim=0)
        return scores

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Let row r continue row `beam_idx[r]`, [S·R]. All rows of a source share its keys and values."""
        if self.rows is not None:
            first = torch.arange(0, len(self.rows), self.rows_per_source, device=beam_idx.device)
            within = beam_idx[self.rows] % self.rows_per_source
            beam_idx = within + first.repeat_interleave(self.rows_per_source)  # type: ignore[assignment]
        self.self_attention_cache.reorder_cache(beam_idx)

    def drop(self, is_done: torch.Tensor) -> None:
        """Stop computing the sources that are done, bool [S].

        This copies the cache, so it waits until it saves an eighth of the rows.
        """
        if self.tree is None:
            return
        if self.sources is not None:
            is_done = is_done[self.sources]
        kept = (~is_done).nonzero()[:, 0]
        if len(kept) == 0 or 8 * len(kept) > 7 * len(is_done):
            return
        self.sources = kept if self.sources is None else self.sources[kept]
        self.rows = self._rows_of(self.sources, self.rows_per_source)
        self.cross_attention_cache.batch_select_indices(kept)
        self.tree.batch_select_indices(self._rows_of(kept, self.rows_per_source // self.tree.num_beams))

    def with_all_rows(self) -> EncoderDecoderCache:
        """Return the library's cache of the same states, [S·R] rows, if no source was dropped.

        This cache is of no use afterwards.
        """
        own: Cache = self.self_attention_cache if self.tree is None else self.tree.with_all_rows()
        if self.rows_per_source > 1:
            self.cross_attention_cache.batch_repeat_interleave(self.rows_per_source)
        return EncoderDecoderCache(own, self.cross_attention_cache)

    @staticmethod
    def _rows_of(sources: torch.Tensor, rows_per_source: int) -> torch.Tensor:
        within = torch.arange(rows_per_source, device=sources.device)
        return (sources[:, None] * rows_per_source + within).flatten()

    def next_logits(
        self, model: Any, sequences: torch.Tensor, num_new: int, arguments: dict[str, Any]
    ) -> torch.Tensor:
        """Return the logits [rows computed, V] after the last of `num_new` tokens; update `arguments`."""
        is_first = self.get_seq_length() == 0
        inputs = model.prepare_inputs_for_generation(
            sequences,
            next_sequence_length=num_new,
            **({"is_first_iteration": True} if is_first else {}),
            **arguments,
        )
        if self.step is not None and self.steps_from(inputs):
            return self.step.logits(self, inputs["decoder_input_ids"], inputs.get("attention_mask"))
        outputs = model(**inputs, return_dict=True)
        arguments |= model._update_model_kwargs_for_generation(outputs, arguments, is_encoder_decoder=True)
        return outputs.logits[:, -1]
