"""Beam search, sampling and greedy search that compute no row twice, in encoder-decoder models.

- The rows of one source (beams, samples) share one row of the encoder's output and of its keys and values,
  which are never repeated or moved, and its beams share one tree of self-attention states.
- The prompt, which is the same for all beams of a source, is computed once.
- A source whose result can no longer change leaves the batch, while the others go on.
- On the CPU, the decoder's weights are packed once for the kernel that reads them in every step.
- A step runs the operators of the decoder without the calls of its modules, or is computed by C++.

The search itself is transformers' own, and so are the results: only rows that it would ignore are left out.

S sources · R rows of each (beams or samples) · V tokens in the vocabulary
"""

import inspect
import math
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any

import torch
from transformers import (
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteriaList,
)
from transformers.modeling_outputs import BaseModelOutput

from vaswani.kernels.beam_search_cache import BeamSearchCache
from vaswani.kernels.decoder_native import NativeStep, can_compute
from vaswani.kernels.decoder_step import DecoderStep, is_plain
from vaswani.kernels.onednn import packed_weights
from vaswani.model import stacks
from vaswani.model.attention import additive_mask
from vaswani.model.modeling_vaswani import VaswaniForConditionalGeneration

# The library's searches, and what they ask after each step, with the arguments that are used here.
OVERRIDDEN = {
    "_sample": ("input_ids", "logits_processor", "stopping_criteria", "generation_config"),
    "_beam_search": ("input_ids", "logits_processor", "stopping_criteria", "generation_config"),
    "_beam_search_has_unfinished_sequences": (
        *("is_early_stop_heuristic_unsatisfied", "is_sent_finished"),
        *("next_token_hits_stopping_criteria", "early_stopping"),
    ),
}

# Of the model, in a step that a `DecoderStep` computes.
STEP_INPUTS = {
    *("decoder_input_ids", "past_key_values", "encoder_outputs", "attention_mask"),
    *("use_cache", "return_dict", "logits_to_keep", "next_sequence_length"),
}


def unavailable() -> str | None:
    """The reason why transformers' searches cannot be used in this way, or None."""
    for name, arguments in OVERRIDDEN.items():
        method = getattr(GenerationMixin, name, None)
        if method is None:
            return f"this transformers has no GenerationMixin.{name}"
        found = inspect.signature(method).parameters
        if missing := [argument for argument in arguments if argument not in found]:
            return f"GenerationMixin.{name} of this transformers takes no {missing[0]}"
    return None


def hook_in() -> None:
    """Generate with `VaswaniForConditionalGeneration`."""
    model_class: Any = VaswaniForConditionalGeneration
    model_class.generate = _remembering_the_cache(model_class.generate)
    model_class._sample = _search_by(GenerationMixin._sample)
    model_class._beam_search = _search_by(GenerationMixin._beam_search)
    model_class._beam_search_has_unfinished_sequences = staticmethod(has_unfinished_sequences)
    model_class.prepare_inputs_for_generation = prepare_inputs_for_generation
    model_class.forward = _forward_by_steps(model_class.forward)
    stacks.self_attention_mask.kernel = self_attention_mask


class SearchCache(EncoderDecoderCache):
    """The states of one running search, and which of its rows still need computing."""

    def __init__(
        self, cache: EncoderDecoderCache, num_sources: int, num_rows: int, tree: BeamSearchCache | None
    ):
        super().__init__(cache.self_attention_cache if tree is None else tree, cache.cross_attention_cache)
        self.tree = tree
        self.num_sources = num_sources  # S
        self.num_rows = num_rows  # S·R
        self.rows_per_source = num_rows // num_sources
        self.sources: torch.Tensor | None = None  # places of those still open, int64; None means all
        self.rows: torch.Tensor | None = None  # theirs
        self.step: DecoderStep | NativeStep | None = None  # computes all after the prompt

    def steps_from(self, inputs: dict[str, Any]) -> bool:
        """Whether `step` takes these inputs: one more token of each row, and nothing unusual."""
        return self.step is not None and inputs.keys() <= STEP_INPUTS and self.get_seq_length() > 0

    def narrow(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Reduce the model's inputs for all rows to those that need computing."""
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
        """Scores [rows computed, V] -> [S·R, V], all alike for sources that are done."""
        if self.rows is not None:
            all_alike = scores.new_full((self.num_rows, scores.shape[1]), -math.log(scores.shape[1]))
            return all_alike.index_copy_(0, self.rows, scores)
        if scores.shape[0] < self.num_rows:  # of a prompt, which is that of all beams
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

        The cache is copied for it, so wait until that saves an eighth of the rows.
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

    @staticmethod
    def _rows_of(sources: torch.Tensor, rows_per_source: int) -> torch.Tensor:
        within = torch.arange(rows_per_source, device=sources.device)
        return (sources[:, None] * rows_per_source + within).flatten()


class _Widen(LogitsProcessor):
    """Comes before all others, which expect the scores of every row."""

    def __init__(self, cache: SearchCache):
        self.cache = cache

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> Any:
        return self.cache.widen(scores)


class _DropFinished(StoppingCriteriaList):
    """The stopping criteria of a greedy search or of sampling, which drop the sources that are done."""

    def __init__(self, criteria: StoppingCriteriaList, cache: SearchCache):
        super().__init__(criteria)
        self.cache = cache
        self.is_finished: torch.Tensor | None = None

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
        stops = super().__call__(input_ids, scores, **kwargs)
        self.is_finished = stops if self.is_finished is None else self.is_finished | stops
        self.cache.drop(self.is_finished.view(-1, self.cache.rows_per_source).all(dim=1))
        return stops


# Beam search keeps what it knows of finished sources in local variables, and shows it to a function that
# knows nothing of the cache. This is where the two meet: one search per thread.
_running_search: ContextVar[SearchCache | None] = ContextVar("running_search", default=None)


# The cache that the caller of `generate` gave, and finds filled after the search.
_given_cache: ContextVar[Cache | None] = ContextVar("given_cache", default=None)


def _remembering_the_cache(generate: Callable) -> Callable:
    """The `generate` of a model, which also remembers the caller's cache."""

    @wraps(generate)
    def remembering(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _given_cache.set(kwargs.get("past_key_values"))
        try:
            return generate(self, *args, **kwargs)
        finally:
            _given_cache.reset(token)

    return remembering


def _search_by(library_search: Callable) -> Callable:
    """One of the library's searches, on no more rows than it needs."""

    def search(
        self: Any,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **arguments: Any,
    ) -> Any:
        cache = _share_sources(self, input_ids, generation_config, arguments)
        if cache is not None and cache.tree is not None:
            logits_processor = LogitsProcessorList([_Widen(cache), *logits_processor])
            if generation_config.num_beams == 1 and _may_drop_finished(input_ids, stopping_criteria):
                stopping_criteria = _DropFinished(stopping_criteria, cache)
        token = _running_search.set(cache)
        try:
            rows = input_ids.shape[0]
            step_class = None if cache is None or cache.tree is None else _class_of_steps(self, arguments)
            with packed_weights([] if step_class is NativeStep else _modules_of_each_step(self), rows):
                if cache is not None and step_class is not None:
                    cache.step = step_class(self, rows, arguments.get("attention_mask"))
                return library_search(
                    self, input_ids, logits_processor, stopping_criteria, generation_config, **arguments
                )
        finally:
            _running_search.reset(token)

    return search


def _may_drop_finished(input_ids: torch.Tensor, stopping_criteria: StoppingCriteriaList) -> bool:
    """Whether the library pads finished rows: where there is an end of sequence. A GPU would wait for it."""
    pads_finished_rows = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
    return pads_finished_rows and input_ids.device.type == "cpu"


def _share_sources(
    model: Any, input_ids: torch.Tensor, generation_config: GenerationConfig, arguments: dict[str, Any]
) -> SearchCache | None:
    """Undo the repetition of the sources in the arguments of a search, and give it a cache that needs none.

    None where the caller's own cache is used, or none.
    """
    cache = arguments.get("past_key_values")
    is_users = cache is _given_cache.get()
    if not isinstance(cache, EncoderDecoderCache) or is_users or cache.get_seq_length():
        return None
    num_copies = max(generation_config.num_beams, generation_config.num_return_sequences)
    encoded = arguments["encoder_outputs"]
    if num_copies > 1:
        arguments["encoder_outputs"] = type(encoded)(
            **{name: _first_copies(value, num_copies) for name, value in encoded.items()}
        )
        arguments["attention_mask"] = _first_copies(arguments.get("attention_mask"), num_copies)
    num_rows = input_ids.shape[0]
    tree = (
        BeamSearchCache(generation_config.num_beams)
        if _may_use_tree(model, cache, generation_config)
        else None
    )
    shared = SearchCache(cache, num_rows // num_copies, num_rows, tree)
    arguments["past_key_values"] = shared
    return shared


def _first_copies(value: Any, num_copies: int) -> Any:
    """Of a tensor [S·R, ...] whose rows are R times the same, [S, ...]; anything else as it is."""
    return value[::num_copies].contiguous() if isinstance(value, torch.Tensor) else value


def _may_use_tree(model: Any, cache: EncoderDecoderCache, generation_config: GenerationConfig) -> bool:
    """Whether neither the caller nor the attention kernel needs every row of the self-attention states."""
    shows_every_row = generation_config.return_dict_in_generate and (
        generation_config.output_attentions
        or generation_config.output_hidden_states
        or generation_config.output_logits
        or generation_config.num_beams == 1  # a cache that a caller may want to go on from
    )
    # A sparse layer asks for the place of each key, which a tree does not have.
    is_sparse = "sparse" in model.config.layer_attention("decoder")
    return (
        type(cache.self_attention_cache) is DynamicCache
        and generation_config.cache_implementation in (None, "dynamic")  # not one that moves to the CPU
        and generation_config.prefill_chunk_size is None
        and not shows_every_row
        and not is_sparse
        and model.get_decoder().takes_additive_masks
    )


def _modules_of_each_step(model: Any) -> list[torch.nn.Module]:
    """All that every step computes; the keys and values of a source are computed once."""
    once = ("encoder_attn.k_proj", "encoder_attn.v_proj")
    layers = [module for name, module in model.get_decoder().named_modules() if not name.endswith(once)]
    return [*layers, model.get_output_embeddings()]


def _class_of_steps(model: Any, arguments: dict[str, Any]) -> type[DecoderStep] | type[NativeStep] | None:
    """What computes the steps of a search: C++ or operators; None where the modules have to."""
    mask = arguments.get("attention_mask")
    hides_a_source = mask is not None and not bool(mask.any(1).all())
    if hides_a_source or not is_plain(model):
        return None
    return NativeStep if can_compute(model) else DecoderStep


def _forward_by_steps(forward: Callable) -> Callable:
    """The `forward` of a model, in which a `DecoderStep` computes the steps of a search."""

    @wraps(forward)
    def by_steps(self: Any, *args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get("past_key_values")
        if isinstance(cache, SearchCache) and cache.steps_from(kwargs):
            step: Any = cache.step
            return step(cache, kwargs["decoder_input_ids"], kwargs.get("attention_mask"))
        return forward(self, *args, **kwargs)

    return by_steps


def prepare_inputs_for_generation(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The model's inputs for one step, reduced to the rows that need computing."""
    cache, length = kwargs.get("past_key_values"), kwargs.get("next_sequence_length")
    if isinstance(cache, SearchCache) and cache.steps_from(kwargs) and length == len(args) == 1:
        inputs = {name: value for name, value in kwargs.items() if name != "next_sequence_length"}
        return cache.narrow({**inputs, "decoder_input_ids": args[0][:, -1:]})
    inputs = GenerationMixin.prepare_inputs_for_generation(self, *args, **kwargs)
    cache = inputs.get("past_key_values")
    return cache.narrow(inputs) if isinstance(cache, SearchCache) else inputs


def self_attention_mask(
    config: Any,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    past_key_values: Cache | None,
    position_ids: torch.Tensor | None,
) -> torch.Tensor | None:
    """Causal and padding; in a step of a beam search, who descends from whom."""
    if isinstance(past_key_values, SearchCache) and (tree := past_key_values.tree) is not None:
        if tree.get_seq_length():
            visible = tree.step_mask(attention_mask)
            return None if visible is None else additive_mask(visible, inputs_embeds.dtype)
        tree.start(inputs_embeds)
    return stacks.self_attention_mask.plain(
        config, inputs_embeds, attention_mask, past_key_values, position_ids
    )


def has_unfinished_sequences(
    is_early_stop_heuristic_unsatisfied: torch.Tensor,
    is_sent_finished: torch.Tensor,
    next_token_hits_stopping_criteria: torch.Tensor,
    early_stopping: Any,
) -> torch.Tensor:
    """Whether to go on; drop the sources whose best hypotheses [S, R] can no longer change."""
    cache = _running_search.get()
    if cache is not None:
        is_done = ~is_early_stop_heuristic_unsatisfied[:, 0]
        if early_stopping is True:
            is_done = is_done | is_sent_finished.all(dim=1)
        cache.drop(is_done)
    return GenerationMixin._beam_search_has_unfinished_sequences(
        is_early_stop_heuristic_unsatisfied,
        is_sent_finished,
        next_token_hits_stopping_criteria,
        early_stopping,
    )
