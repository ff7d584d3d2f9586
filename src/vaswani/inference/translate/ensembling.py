"""An ensemble of encoder-decoders, which averages their next-token distributions.

Ensembles are common strong teachers in translation (Freitag et al., 2017, arXiv:1702.01802).

B rows · S source length · T target length · V target vocabulary · W sum of the members' widths
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import nn
from transformers import EncoderDecoderCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from vaswani.bounds import Bounds
from vaswani.data.text_codec import Side
from vaswani.errors import UserError
from vaswani.inference.position_limits import position_limit
from vaswani.inference.token_log_probs import masking_inputs
from vaswani.model.compatibility import CACHE_NAME, takes_cache
from vaswani.model.modeling_vaswani import VaswaniForConditionalGeneration
from vaswani.unwritten_padding import unwritten_padding, without_padding


@dataclass
class EnsembleCache:
    """The keys and values of each member."""

    caches: list[EncoderDecoderCache]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Make row r continue row `beam_idx[r]`, another beam of the same source: int64 [B]."""
        for cache in self.caches:  # cross-attention is the same for all beams of a source
            cache.self_attention_cache.reorder_cache(beam_idx)  # type: ignore[arg-type]


class EnsembleEncoder(nn.Module):
    """The members' encoders, whose outputs are concatenated."""

    def __init__(self, encoders: Sequence[nn.Module]):
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> BaseModelOutput:
        """Encode int64 [B, S] to [B, S, W]; ignore other arguments of `generate`."""
        states = [encoder(input_ids, attention_mask=attention_mask)[0] for encoder in self.encoders]
        return BaseModelOutput(last_hidden_state=torch.cat(states, dim=-1))


class Ensemble(PreTrainedModel, GenerationMixin):
    """Encoder-decoders that predict each token together. An ensemble cannot be saved; save its members.

        ensemble = Ensemble([load_checkpoint(name)[0] for name in names])
        Translator(ensemble, source_tokenizer, target_tokenizer)

    Members may differ in architecture, size and dtype. The `generation_config` is that of the first.

    Args:
        models: models with the same tokens, on one device. They are not copied; they are put into evaluation
            mode.
        weights: weights of the models, above 0; only their ratios matter. None means equal weights.
        average: "probabilities" is the weighted mean of the models' probabilities; "log_probabilities" is the
            weighted mean of their logarithms, scaled so that probabilities sum to 1 (a weighted geometric
            mean).

    Raises:
        UserError: there are no models, their vocabularies or special tokens differ, the number of weights is
            not that of the models, or the average is unknown.
    """

    def __init__(
        self,
        models: Sequence[PreTrainedModel],
        weights: Sequence[float] | None = None,
        average: str = "probabilities",
    ):
        _check_agreement(models)
        check_averaging(len(models), weights, average)
        self.weights = None if weights is None else [weight / sum(weights) for weight in weights]
        self.average = average
        first = models[0]
        self.widths: list[int] = [model.config.hidden_size for model in models]
        self.unwritten = [unwritten_padding(model) for model in models]
        fields: dict[str, Any] = {
            "hidden_size": sum(self.widths),
            "vocab_size": _tokens_of(first)["target vocabulary"],  # older beam searches read it
            "num_hidden_layers": 0,  # for the cache that `generate` makes, which is not used
            "max_encoder_position_embeddings": _shortest(models, "source"),
            "max_decoder_position_embeddings": _shortest(models, "target"),
            "pad_token_id": first.config.pad_token_id,
            "bos_token_id": getattr(first.config, "bos_token_id", None),  # T5 has none
            "eos_token_id": first.config.eos_token_id,
            "decoder_start_token_id": first.config.decoder_start_token_id,
        }
        super().__init__(PreTrainedConfig(is_encoder_decoder=True, **fields))
        self.generation_config = copy.deepcopy(first.generation_config)
        self.members: Any = nn.ModuleList(models)
        self.eval()

    @takes_cache
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        return_dict: bool = True,
    ) -> Seq2SeqLMOutput:
        """Return the logarithm of the members' averaged probabilities as `logits`, float32 [B, T, V].

        Args:
            input_ids: int64 [B, S], unless `encoder_outputs` is given.
            attention_mask: int64 [B, S], 0 for padding of the source.
            decoder_input_ids: int64 [B, T].
            decoder_attention_mask: int64 [B, T], 0 for padding of the target.
            encoder_outputs: output of `get_encoder()`: [B, S, W].
            past_key_values: the `EnsembleCache` of an earlier call, for the previous tokens.
            use_cache: whether to return `past_key_values`.
            return_dict: ignored; `generate` sets it.
        """
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(input_ids, attention_mask)
        # In the first step `generate` gives a cache that fits no member; each member makes its own.
        is_ours = isinstance(past_key_values, EnsembleCache)
        caches = past_key_values.caches if is_ours else [None] * len(self.members)
        states = encoder_outputs[0].split(self.widths, dim=-1)
        outputs = [
            member(
                encoder_outputs=BaseModelOutput(last_hidden_state=state.to(member.dtype)),
                attention_mask=attention_mask,
                decoder_input_ids=decoder_input_ids,
                decoder_attention_mask=decoder_attention_mask,
                use_cache=use_cache,
                **{CACHE_NAME: cache},
                **(
                    {}
                    if use_cache or decoder_input_ids is None
                    else masking_inputs(member, decoder_input_ids)
                ),
            )
            for member, state, cache in zip(self.members, states, caches, strict=True)
        ]
        new_cache: Any = (
            EnsembleCache([getattr(output, CACHE_NAME) for output in outputs]) if use_cache else None
        )
        return Seq2SeqLMOutput(
            logits=self.averaged([output.logits for output in outputs]),
            **{CACHE_NAME: new_cache},
        )

    def averaged(self, logits: list[torch.Tensor]) -> torch.Tensor:
        """Return the logarithms of the average of the members' probabilities, from their logits [..., V]."""
        log_probs = [
            without_padding(each, padding).float().log_softmax(-1)
            for each, padding in zip(logits, self.unwritten, strict=True)
        ]
        if self.average == "probabilities":
            return self.mean_of_probabilities(log_probs)
        return self.mean(log_probs).log_softmax(-1)

    @property
    def scores_tokens_apart(self) -> bool:
        """Whether a token's probability is the mean of the members', whatever the other tokens have."""
        return self.average == "probabilities" and len(set(self.unwritten)) == 1

    def mean_of_probabilities(self, log_probs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the logarithms of the weighted mean of each member's probabilities, from logarithms."""
        if self.weights is None:
            return reduce(torch.logaddexp, log_probs) - math.log(len(log_probs))
        weighted = [each + math.log(weight) for each, weight in zip(log_probs, self.weights, strict=True)]
        return reduce(torch.logaddexp, weighted)

    def mean(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the weighted mean of a tensor of each member."""
        weights = self.weights or [1 / len(values)] * len(values)
        total: Any = sum(weight * each for weight, each in zip(weights, values, strict=True))
        return total

    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        return self._search(GenerationMixin._sample, *args, **kwargs)

    def _beam_search(self, *args: Any, **kwargs: Any) -> Any:
        return self._search(GenerationMixin._beam_search, *args, **kwargs)

    def _search(self, library_search: Callable, *args: Any, **kwargs: Any) -> Any:
        """Search with the search kernel if it is in use and supports all members, else with the library."""
        ours = VaswaniForConditionalGeneration
        if library_search.__name__ in vars(ours) and all(isinstance(each, ours) for each in self.members):
            # Imported here, because a kernel may be unavailable.
            from vaswani.kernels.ensemble_search import search_together

            return search_together(self, library_search, *args, **kwargs)
        return library_search(self, *args, **kwargs)

    def get_encoder(self, modality: str | None = None) -> EnsembleEncoder:
        """Return the encoders of all members as one module."""
        return EnsembleEncoder([member.get_encoder() for member in self.members])

    def get_input_embeddings(self) -> nn.Module:
        """Return the input embeddings of the first member, with a row for each source token."""
        return self.members[0].get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        """Return the output embeddings of the first member, with a row for each target token."""
        return self.members[0].get_output_embeddings()


AVERAGES = ("probabilities", "log_probabilities")


def check_averaging(models: int, weights: Sequence[float] | None, average: str) -> None:
    """Raise a UserError unless there is a weight above 0 for each model, and the average is known."""
    if average not in AVERAGES:
        raise UserError(f"ensemble_average={average!r} is unknown; expected {' or '.join(AVERAGES)}")
    if weights is None:
        return
    for weight in weights:
        Bounds(above=0).check("ensemble_weights", weight)
    if len(weights) != models:
        raise UserError(f"ensemble_weights has {len(weights)} weights, and there are {models} models")


def _tokens_of(model: PreTrainedModel) -> dict[str, Any]:
    """Return the vocabulary sizes and special tokens that the members of an ensemble must share."""
    embeddings: tuple[Any, ...] = (model.get_input_embeddings(), model.get_output_embeddings())
    return {
        "source vocabulary": len(embeddings[0].weight),
        "target vocabulary": len(embeddings[1].weight),
        "pad_token_id": model.config.pad_token_id,
        "eos_token_id": model.config.eos_token_id,
        "decoder_start_token_id": model.config.decoder_start_token_id,
    }


def _shortest(models: Sequence[PreTrainedModel], side: Side) -> int | None:
    """Return the maximum length that all models have positions for; None if there is no limit."""
    limits = (position_limit(model, side) for model in models)
    return min((limit for limit in limits if limit is not None), default=None)


def _check_agreement(models: Sequence[PreTrainedModel]) -> None:
    if not models:
        raise UserError("an ensemble needs models; give one or more")
    expected = _tokens_of(models[0])
    for number, model in enumerate(models[1:], start=2):
        for name, value in _tokens_of(model).items():
            if value != expected[name]:
                raise UserError(
                    f"models 1 and {number} of the ensemble differ in {name}, {expected[name]} and {value}; "
                    "give models that were trained with the same tokenizers"
                )
