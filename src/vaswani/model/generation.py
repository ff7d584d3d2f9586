# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""What `generate` does differently for our models: no source costs more than it must.

- The rows of one source (beams, samples) share one row of the encoder's output and of its keys and values,
  which are never repeated or moved, and its beams share one tree of self-attention states.
- The prompt, which is the same for all beams of a source, is computed once.
- A source whose result can no longer change leaves the batch, while the others go on.
- On the CPU, the decoder's weights are laid out once for the kernel that reads them in every step.

The results are those of transformers' own search: only the rows that it would ignore are not computed.

S sources · R rows of each (beams or samples) · V tokens in the vocabulary
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin, StoppingCriteriaList
from transformers.modeling_outputs import BaseModelOutput

from .beam_search_cache import BeamSearchCache
from .packed_linear import packed_linear_layers


class Search:
    """The rows of one running search that still need computing, and their cache."""

    def __init__(self, cache: EncoderDecoderCache, num_sources: int, num_rows: int, num_beams: int):
        cache.self_attention_cache = BeamSearchCache(num_beams)
        self.cache = cache
        self.num_sources = num_sources  # S
        self.num_rows = num_rows  # S·R
        self.rows_per_source = num_rows // num_sources
        self.sources: torch.Tensor | None = None  # places of those still open, int64; None means all
        self.rows: torch.Tensor | None = None  # theirs

    def narrow(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Reduce the model's inputs for all rows to those that need computing."""
        is_prompt = self.cache.get_seq_length() == 0
        if is_prompt:
            rows = slice(None, None, self.cache.self_attention_cache.num_beams)
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

    def widen(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [rows computed, T, V] -> [S·R, T, V], of zeros for sources that are done."""
        if self.rows is not None:
            return logits.new_zeros(self.num_rows, *logits.shape[1:]).index_copy_(0, self.rows, logits)
        if logits.shape[0] < self.num_rows:  # of a prompt, which is that of all beams
            return logits.repeat_interleave(self.num_rows // logits.shape[0], dim=0)
        return logits

    def reorder(self, beam_idx: torch.Tensor) -> None:
        """Let beams follow their hypotheses: row r continues row `beam_idx[r]`, [S·R]."""
        if self.rows is not None:
            first = torch.arange(0, len(self.rows), self.rows_per_source, device=beam_idx.device)
            within = beam_idx[self.rows] % self.rows_per_source
            beam_idx = within + first.repeat_interleave(self.rows_per_source)
        self.cache.self_attention_cache.reorder_cache(beam_idx)

    def drop(self, is_done: torch.Tensor) -> None:
        """Compute sources no further that are done, bool [S].

        The cache is copied for it, so wait until that saves an eighth of the rows.
        """
        if self.sources is not None:
            is_done = is_done[self.sources]
        kept = (~is_done).nonzero()[:, 0]
        if len(kept) == 0 or 8 * len(kept) > 7 * len(is_done):
            return
        self.sources = kept if self.sources is None else self.sources[kept]
        self.rows = self._rows_of(self.sources, self.rows_per_source)
        self.cache.cross_attention_cache.batch_select_indices(kept)
        tree = self.cache.self_attention_cache
        tree.batch_select_indices(self._rows_of(kept, self.rows_per_source // tree.num_beams))

    @staticmethod
    def _rows_of(sources: torch.Tensor, rows_per_source: int) -> torch.Tensor:
        within = torch.arange(rows_per_source, device=sources.device)
        return (sources[:, None] * rows_per_source + within).flatten()


# transformers' search keeps what it knows of finished sources in local variables, and shows it to a function
# that knows nothing of the cache. This is where the two meet: one search per thread.
_running_search: ContextVar[Search | None] = ContextVar("running_search", default=None)


class _DropFinished(StoppingCriteriaList):
    """The stopping criteria of a greedy search or of sampling, which also tell it which sources are done."""

    def __init__(self, criteria: StoppingCriteriaList, search: Search):
        super().__init__(criteria)
        self.search = search
        self.is_finished: torch.Tensor | None = None

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
        stops = super().__call__(input_ids, scores, **kwargs)
        self.is_finished = stops if self.is_finished is None else self.is_finished | stops
        self.search.drop(self.is_finished.view(-1, self.search.rows_per_source).all(dim=1))
        return stops


class SharedSourceMixin(GenerationMixin):
    """`GenerationMixin` for an encoder-decoder model whose decoder takes several rows to each source."""

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

    def _start_search(self, input_ids: torch.Tensor, generation_config, model_kwargs) -> Search | None:
        """A search that computes as little as it can, where neither caller nor kernel needs every row."""
        cache = model_kwargs.get("past_key_values")
        is_ours_to_choose = (
            isinstance(cache, EncoderDecoderCache)
            and type(cache.self_attention_cache) is DynamicCache
            and not getattr(cache, "_is_user_defined", False)
            and generation_config.cache_implementation in (None, "dynamic")
            and generation_config.prefill_chunk_size is None
        )
        shows_every_row = generation_config.return_dict_in_generate and (
            generation_config.output_attentions
            or generation_config.output_hidden_states
            or generation_config.num_beams == 1  # a cache that a caller may want to go on from
        )
        # A sparse layer asks for the place of each key, which a tree does not have.
        is_sparse = "sparse" in self.config.layer_attention("decoder")
        takes_a_tree = self.get_decoder().takes_additive_masks and not is_sparse
        if not is_ours_to_choose or shows_every_row or not takes_a_tree:
            return None
        num_sources = model_kwargs["encoder_outputs"][0].shape[0]
        return Search(cache, num_sources, input_ids.shape[0], generation_config.num_beams)

    def _packed_decoder(self, num_rows: int) -> AbstractContextManager[None]:
        """Pack the weights that every step multiplies by; a source's keys and values are computed once."""
        if self._compiled_call_impl is not None or "forward" in vars(self):
            return nullcontext()  # a compiled model would be compiled again for each search
        once = ("encoder_attn.k_proj", "encoder_attn.v_proj")
        layers = [module for name, module in self.get_decoder().named_modules() if not name.endswith(once)]
        return packed_linear_layers([*layers, self.get_output_embeddings()], num_rows)

    @contextmanager
    def _searching(self, input_ids, generation_config, model_kwargs) -> Iterator[Search | None]:
        """Run one search, on no more than it needs where that can be had."""
        search = self._start_search(input_ids, generation_config, model_kwargs)
        token = _running_search.set(search)
        try:
            with self._packed_decoder(input_ids.shape[0]):
                yield search
        finally:
            _running_search.reset(token)

    def _beam_search(
        self, input_ids, logits_processor, stopping_criteria, generation_config, *args, **model_kwargs
    ):
        with self._searching(input_ids, generation_config, model_kwargs):
            return super()._beam_search(
                input_ids, logits_processor, stopping_criteria, generation_config, *args, **model_kwargs
            )

    def _sample(
        self, input_ids, logits_processor, stopping_criteria, generation_config, *args, **model_kwargs
    ):
        # Finished rows are padded only where there is an end of sequence. On a GPU asking would cost a wait.
        pads_finished_rows = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
        may_drop = pads_finished_rows and input_ids.device.type == "cpu"
        with self._searching(input_ids, generation_config, model_kwargs) as search:
            if search is not None and search.num_sources > 1 and may_drop:
                stopping_criteria = _DropFinished(stopping_criteria, search)
            return super()._sample(
                input_ids, logits_processor, stopping_criteria, generation_config, *args, **model_kwargs
            )

    def prepare_inputs_for_generation(self, *args, **kwargs) -> dict[str, Any]:
        """The model's inputs for one step, reduced to the rows that need computing."""
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        search = _running_search.get()
        return inputs if search is None else search.narrow(inputs)

    @staticmethod
    def create_masks_for_generate(
        config, inputs_embeds, attention_mask, past_key_values, **kwargs
    ) -> torch.Tensor | None:
        """The mask of a step for a cache of fixed size, [B, its size]: the model makes the rest itself.

        The library would make it [B, 1, T, size], from which neither a token's position nor what a sparse
        layer wants to know can be told.
        """
        if attention_mask is None:
            return None
        size = past_key_values.self_attention_cache.get_max_length()
        return torch.nn.functional.pad(attention_mask, (0, size - attention_mask.shape[1]))

    def _update_model_kwargs_for_generation(self, outputs, model_kwargs, **kwargs) -> dict[str, Any]:
        """Give transformers' search the rows of logits that it expects."""
        search = _running_search.get()
        if search is not None:
            outputs.logits = search.widen(outputs.logits)
        return super()._update_model_kwargs_for_generation(outputs, model_kwargs, **kwargs)

    def _reorder_cache(
        self, past_key_values: EncoderDecoderCache, beam_idx: torch.Tensor
    ) -> EncoderDecoderCache:
        """Let beams follow their hypotheses. The source's keys and values are common to them and stay."""
        search = _running_search.get()
        if search is None:
            past_key_values.self_attention_cache.reorder_cache(beam_idx)
        else:
            search.reorder(beam_idx)
        return past_key_values

    @staticmethod
    def _beam_search_has_unfinished_sequences(
        can_improve: torch.Tensor, is_finished: torch.Tensor, hits_stop: torch.Tensor, early_stopping: Any
    ) -> torch.Tensor:
        """Whether to go on; drop the sources whose best hypotheses [S, R] can no longer change."""
        search = _running_search.get()
        if search is not None:
            is_done = ~can_improve[:, 0]
            if early_stopping is True:
                is_done = is_done | is_finished.all(dim=1)
            search.drop(is_done)
        return GenerationMixin._beam_search_has_unfinished_sequences(
            can_improve, is_finished, hits_stop, early_stopping
        )
