"""Beam search, sampling and greedy search that compute no row twice, in encoder-decoder models.

- The rows of one source (beams, samples) share one row of the encoder's output and of its keys and values,
  which are never repeated or moved; the beams of a source share one tree of self-attention states.
- The prompt, which is the same for all beams of a source, is computed once.
- A source whose result can no longer change leaves the batch while the others continue, unless the caller
  gets the cache (`return_dict_in_generate`), which is then the library's, with all rows.
- On the CPU, the decoder's weights are packed once for the kernel that reads them in every step.
- A step runs the operators of the decoder without calling its modules, or is computed by C++.
- Beam search has its own loop (`beam_search.py`), which reads only the best tokens of each row. Greedy search
  has its own loop (`greedy_search.py`), which does less between two steps.

The results are those of transformers' own searches, which do the rest.

S sources · R rows of each (beams or samples) · V tokens in the vocabulary
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from itertools import chain
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

from vaswani.kernels import greedy_search
from vaswani.kernels.beam_search import beam_search, can_search
from vaswani.kernels.beam_search_cache import BeamSearchCache
from vaswani.kernels.decoder_native import NativeStep, can_compute
from vaswani.kernels.decoder_step import DecoderStep, is_plain
from vaswani.kernels.onednn import packed_weights
from vaswani.kernels.search_cache import SearchCache
from vaswani.model import stacks
from vaswani.model.attention import additive_mask
from vaswani.model.compatibility import CACHE_NAME
from vaswani.model.modeling_vaswani import VaswaniForConditionalGeneration

# The library's searches, with the arguments used here.
ARGUMENTS = ("input_ids", "logits_processor", "stopping_criteria", "generation_config")
OVERRIDDEN = {"_sample": ARGUMENTS, "_beam_search": ARGUMENTS}


def unavailable() -> str | None:
    """Return why transformers' searches cannot be used in this way, or None if they can."""
    for name, arguments in OVERRIDDEN.items():
        method = getattr(GenerationMixin, name, None)
        if method is None:
            return f"this transformers has no GenerationMixin.{name}"
        found = inspect.signature(method).parameters
        if missing := [argument for argument in arguments if argument not in found]:
            return f"GenerationMixin.{name} of this transformers takes no {missing[0]}"
    return None


def hook_in() -> None:
    """Put these searches into `VaswaniForConditionalGeneration`."""
    model_class: Any = VaswaniForConditionalGeneration
    model_class.generate = _remembering_the_cache(model_class.generate)
    model_class._sample = _search_by(GenerationMixin._sample)
    model_class._beam_search = _search_by(GenerationMixin._beam_search)
    model_class.prepare_inputs_for_generation = prepare_inputs_for_generation
    model_class.forward = _forward_by_steps(model_class.forward)
    stacks.self_attention_mask.kernel = self_attention_mask


class _Widen(LogitsProcessor):
    """Adds the missing rows of scores, before other processors of transformers' sampling read them."""

    def __init__(self, cache: SearchCache):
        self.cache = cache

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> Any:
        return self.cache.widen(scores)


class _DropFinished(StoppingCriteriaList):
    """The stopping criteria of transformers' sampling; they also drop the sources that are done."""

    def __init__(self, criteria: StoppingCriteriaList, cache: SearchCache):
        super().__init__(criteria)
        self.cache = cache
        self.is_finished: torch.Tensor | None = None

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
        stops = super().__call__(input_ids, scores, **kwargs)
        self.is_finished = stops if self.is_finished is None else self.is_finished | stops
        self.cache.drop(self.is_finished.view(-1, self.cache.rows_per_source).all(dim=1))
        return stops


# The cache that the caller passed to `generate`, and that must be filled after the search.
_given_cache: ContextVar[Cache | None] = ContextVar("given_cache", default=None)


def _remembering_the_cache(generate: Callable) -> Callable:
    """Return a `generate` that also remembers the caller's cache."""

    @wraps(generate)
    def remembering(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _given_cache.set(kwargs.get(CACHE_NAME, kwargs.get("past_key_values")))
        try:
            return generate(self, *args, **kwargs)
        finally:
            _given_cache.reset(token)

    return remembering


def _search_by(library_search: Callable) -> Callable:
    """Return one of the library's searches that computes only the rows it needs."""

    def narrow_search(
        self: Any,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **arguments: Any,
    ) -> Any:
        cache = share_sources(self, input_ids, generation_config, arguments)
        search = library_search
        if cache is not None and cache.tree is not None:
            if (loop := own_loop(generation_config, arguments)) is not None:
                search = loop
            else:
                logits_processor = LogitsProcessorList([_Widen(cache), *logits_processor])
                if greedy_search.may_drop_finished(input_ids, stopping_criteria):
                    stopping_criteria = _DropFinished(stopping_criteria, cache)
        with prepared_steps([(self, arguments)], input_ids.shape[0]):
            found = search(
                self, input_ids, logits_processor, stopping_criteria, generation_config, **arguments
            )
        if cache is not None and _returns_cache(generation_config):
            found[CACHE_NAME] = cache.with_all_rows()
        return found

    return narrow_search


def own_loop(generation_config: GenerationConfig, arguments: dict[str, Any]) -> Callable | None:
    """Return this package's loop for a search with a tree; None if the library's loop has to run."""
    if generation_config.num_beams > 1:
        return beam_search  # a beam search has a tree only if this loop supports it
    return greedy_search.greedy_search if greedy_search.can_search(generation_config, arguments) else None


def share_sources(
    model: Any, input_ids: torch.Tensor, generation_config: GenerationConfig, arguments: dict[str, Any]
) -> SearchCache | None:
    """Let the rows of each source share its encoding and its cache, in the arguments of a search.

    The library has repeated each source for its beams or samples; this keeps the first copy, and replaces the
    cache by a `SearchCache`, which it returns. It returns None and changes nothing if `_may_share` is False.
    """
    if not _may_share(model, generation_config, arguments):
        return None
    num_rows, cache = input_ids.shape[0], arguments[CACHE_NAME]
    num_copies = max(generation_config.num_beams, generation_config.num_return_sequences)
    if num_copies > 1:
        encoded = arguments["encoder_outputs"]
        firsts = {name: _first_copies(value, num_copies) for name, value in encoded.items()}
        arguments["encoder_outputs"] = type(encoded)(**firsts)
        arguments["attention_mask"] = _first_copies(arguments.get("attention_mask"), num_copies)
    uses_tree = _may_use_tree(model, cache, generation_config, arguments)
    tree = BeamSearchCache(generation_config.num_beams) if uses_tree else None
    shared = arguments[CACHE_NAME] = SearchCache(cache, num_rows // num_copies, num_rows, tree)
    return shared


def _may_share(model: Any, generation_config: GenerationConfig, arguments: dict[str, Any]) -> bool:
    """Return whether the cache is new and empty, and the model prepares the inputs of each step as here."""
    cache = arguments.get(CACHE_NAME)
    prepare = getattr(model.prepare_inputs_for_generation, "__func__", None)
    return (
        cache is not _given_cache.get()  # the caller's cache must keep all its rows
        and prepare is prepare_inputs_for_generation
        and isinstance(cache, EncoderDecoderCache)
        and not cache.get_seq_length()
        # The rows of a fixed-size cache cannot be repeated for the caller.
        and (isinstance(cache.cross_attention_cache, DynamicCache) or not _returns_cache(generation_config))
    )


def _returns_cache(generation_config: GenerationConfig) -> bool:
    """Return whether the caller gets the cache, with all rows, to continue from it."""
    return bool(generation_config.return_dict_in_generate)


def _first_copies(value: Any, num_copies: int) -> Any:
    """Reduce a tensor [S·R, ...] of R equal rows per source to [S, ...]; return anything else unchanged."""
    return value[::num_copies].contiguous() if isinstance(value, torch.Tensor) else value


def _may_use_tree(
    model: Any, cache: EncoderDecoderCache, generation_config: GenerationConfig, arguments: dict[str, Any]
) -> bool:
    """Return whether neither caller nor attention kernel needs every row of the self-attention states."""
    if generation_config.num_beams > 1:
        needs_every_row = not can_search(generation_config, arguments)
    else:
        needs_every_row = _returns_cache(generation_config)
    # A sparse layer needs the place of each key, which a tree does not have.
    is_sparse = "sparse" in model.config.layer_attention("decoder")
    return (
        type(cache.self_attention_cache) is DynamicCache
        and generation_config.cache_implementation in (None, "dynamic")  # not one that offloads to the CPU
        and generation_config.prefill_chunk_size is None
        and not needs_every_row
        and not is_sparse
        and model.get_decoder().takes_additive_masks
    )


@contextmanager
def prepared_steps(members: Sequence[tuple[Any, dict[str, Any]]], num_rows: int) -> Iterator[None]:
    """Set the `step` of each cache of a search, and pack the weights of models that C++ does not compute.

    Args:
        members: each model of the search with its arguments, one of which is the cache.
        num_rows: rows of the search.
    """
    classes = [_class_of_steps(model, arguments) for model, arguments in members]
    packed = [model for (model, _), step in zip(members, classes, strict=True) if step is not NativeStep]
    with packed_weights(chain.from_iterable(map(modules_of_each_step, packed)), num_rows):
        for (model, arguments), step in zip(members, classes, strict=True):
            if step is not None:
                arguments[CACHE_NAME].step = step(model, num_rows, arguments.get("attention_mask"))
        yield


def modules_of_each_step(model: Any) -> list[torch.nn.Module]:
    """Return the modules that every step runs, without the keys and values of a source."""
    once = ("encoder_attn.k_proj", "encoder_attn.v_proj")
    layers = [module for name, module in model.get_decoder().named_modules() if not name.endswith(once)]
    return [*layers, model.get_output_embeddings()]


def _class_of_steps(model: Any, arguments: dict[str, Any]) -> type[DecoderStep] | type[NativeStep] | None:
    """Return the class that computes the steps: C++ or operators; None if the modules must."""
    cache = arguments.get(CACHE_NAME)
    if not isinstance(cache, SearchCache) or cache.tree is None:
        return None
    mask = arguments.get("attention_mask")
    hides_a_source = mask is not None and not bool(mask.any(1).all())
    if hides_a_source or not is_plain(model):
        return None
    return NativeStep if can_compute(model) else DecoderStep


def _forward_by_steps(forward: Callable) -> Callable:
    """Return a `forward` that lets a `DecoderStep` or `NativeStep` compute the steps of a search."""

    @wraps(forward)
    def by_steps(self: Any, *args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get(CACHE_NAME)
        if isinstance(cache, SearchCache) and cache.steps_from(kwargs):
            step: Any = cache.step
            return step(cache, kwargs["decoder_input_ids"], kwargs.get("attention_mask"))
        return forward(self, *args, **kwargs)

    return by_steps


def prepare_inputs_for_generation(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the model's inputs for one step, reduced to the rows that must be computed."""
    cache, length = kwargs.get(CACHE_NAME), kwargs.get("next_sequence_length")
    if isinstance(cache, SearchCache) and cache.steps_from(kwargs) and length == len(args) == 1:
        inputs = {name: value for name, value in kwargs.items() if name != "next_sequence_length"}
        return cache.narrow({**inputs, "decoder_input_ids": args[0][:, -1:]})
    inputs = GenerationMixin.prepare_inputs_for_generation(self, *args, **kwargs)
    cache = inputs.get(CACHE_NAME)
    return cache.narrow(inputs) if isinstance(cache, SearchCache) else inputs


def self_attention_mask(
    config: Any,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    past_key_values: Cache | None,
    position_ids: torch.Tensor | None,
) -> torch.Tensor | None:
    """Return the causal and padding mask; in a step of a beam search, the mask of each beam's ancestors."""
    if isinstance(past_key_values, SearchCache) and (tree := past_key_values.tree) is not None:
        if tree.get_seq_length():
            visible = tree.step_mask(attention_mask)
            return None if visible is None else additive_mask(visible, inputs_embeds.dtype)
        tree.start(inputs_embeds)
    return stacks.self_attention_mask.plain(
        config, inputs_embeds, attention_mask, past_key_values, position_ids
    )
