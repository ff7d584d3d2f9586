# Copyright 2026 The vaswani authors. Licensed under the Apache License, Version 2.0.
"""Encoder-decoder Transformer (Vaswani et al., 2017, arXiv:1706.03762).

Section numbers refer to the paper's version 7. Each deviation is a config field, off by default.

B batch · S source length · T target length · d_model width
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers import Cache, GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring, can_return_tuple

from .compatibility import CACHE_NAME, keep_positions, padding_mask_of_cache, takes_cache
from .configuration_vaswani import VaswaniConfig
from .input_checks import check_ids, check_labels, check_logits_to_keep, check_loss_options, check_no_chunks
from .losses import smoothed_loss, token_loss_function
from .operators import OutputProjection
from .stacks import (
    VaswaniDecoder,
    VaswaniEncoder,
    VaswaniPreTrainedModel,
    other_outputs,
    tensor_parallel_plan,
)


def shift_tokens_right(labels: torch.Tensor, pad_token_id: int, decoder_start_token_id: int) -> torch.Tensor:
    """Return the decoder's input: the start token, then the labels without the last (section 3.1).

    Labels int64 [B, T], padded with −100 -> int64 [B, T], padded with `pad_token_id`.
    """
    shifted = labels.roll(1, dims=-1)
    shifted[:, 0] = decoder_start_token_id
    return shifted.masked_fill(shifted == -100, pad_token_id)


@auto_docstring
class VaswaniModel(VaswaniPreTrainedModel):
    config: VaswaniConfig
    _tp_plan = {
        **tensor_parallel_plan("encoder"),
        **tensor_parallel_plan("decoder", cross_attention=True),
    }
    # One group per layer; all other weights, which may be tied, form one more group.
    _fsdp_plan = {f"{stack}.layers.*": "free_full_weight" for stack in ("encoder", "decoder")}

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self.encoder = VaswaniEncoder(config)
        self.decoder = VaswaniDecoder(config)
        self.post_init()

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        """`{target: source}`: the embeddings, if the config shares them."""
        shared = self.config.share_encoder_decoder_embeddings
        return {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"} if shared else {}

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the source's embeddings, and the target's if they are shared."""
        super().set_input_embeddings(value)
        if self.config.share_encoder_decoder_embeddings:
            self.decoder.embed_tokens = value

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Module:
        """Resize the source vocabulary, and the target's if they share embeddings."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        self.config.vocab_size = embeddings.weight.shape[0]
        if self.config.share_encoder_decoder_embeddings:
            self.resize_decoder_token_embeddings(self.config.vocab_size)
        return embeddings

    def resize_decoder_token_embeddings(self, new_num_tokens: int) -> nn.Module:
        """Resize the target vocabulary. Raise `ValueError` if the source shares it and keeps another size."""
        source_size = self.config.vocab_size
        if self.config.share_encoder_decoder_embeddings and new_num_tokens != source_size:
            raise ValueError(
                f"source and target share the embeddings of {source_size} tokens, and {new_num_tokens} were "
                "asked for the target alone; resize both with resize_token_embeddings."
            )
        embeddings = self.decoder.resize_token_embeddings(new_num_tokens)
        self.config.vocab_size, self.config.decoder_vocab_size = source_size, new_num_tokens
        self.tie_weights()
        return embeddings

    @can_return_tuple
    @auto_docstring
    @takes_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: tuple[torch.Tensor] | BaseModelOutput | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        if kwargs.get("position_ids") is not None:
            raise ValueError("position_ids do not say which of the two stacks they are for; leave them out.")
        if encoder_outputs is not None and not (input_ids is None and inputs_embeds is None):
            raise ValueError("give encoder_outputs or the encoder's inputs, not both.")
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids, attention_mask, inputs_embeds, return_dict=True, **kwargs
            )
        elif isinstance(encoder_outputs, tuple | list):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            **{CACHE_NAME: getattr(decoder_outputs, CACHE_NAME)},
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


@auto_docstring
class VaswaniForConditionalGeneration(VaswaniPreTrainedModel, GenerationMixin):
    config: VaswaniConfig

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self.model = VaswaniModel(config)
        self.lm_head = OutputProjection(config.d_model, config.decoder_vocab_size, bias=config.lm_head_bias)
        self.loss_function = token_loss_function  # the library's would shift the labels again
        self.post_init()

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Module:
        """Resize the source vocabulary, and the target's and the output if they share embeddings."""
        embeddings = self.model.resize_token_embeddings(*args, **kwargs)
        if self.config.share_encoder_decoder_embeddings:
            self._resize_lm_head(self.config.decoder_vocab_size)
        self.vocab_size = self.config.vocab_size  # as the library's method does
        return embeddings

    def resize_decoder_token_embeddings(self, new_num_tokens: int) -> nn.Module:
        """Resize the target vocabulary and the output. Raise `ValueError` as the base model does."""
        embeddings = self.model.resize_decoder_token_embeddings(new_num_tokens)
        self._resize_lm_head(new_num_tokens)
        return embeddings

    def _resize_lm_head(self, new_num_tokens: int) -> None:
        self.lm_head = self._get_resized_lm_head(self.lm_head, new_num_tokens)
        self.tie_weights()

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the decoder's input for labels [B, T]; data collators call this method."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    def generate(self, *args, **kwargs):
        """Generate as transformers does, but without changing the caller's `encoder_outputs`."""
        if (encoded := kwargs.get("encoder_outputs")) is not None:
            is_tuple = isinstance(encoded, tuple)
            kwargs["encoder_outputs"] = BaseModelOutput(*encoded) if is_tuple else type(encoded)(**encoded)
        return super().generate(*args, **kwargs)

    def _prepare_generation_config(self, *args, **kwargs):
        prepared = super()._prepare_generation_config(*args, **kwargs)
        check_no_chunks(prepared[0])
        return prepared

    create_masks_for_generate = staticmethod(padding_mask_of_cache)

    @can_return_tuple
    @auto_docstring
    @takes_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: tuple[torch.Tensor] | BaseModelOutput | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        smoothing: float | None = None,
        token_loss: Callable[[torch.Tensor, nn.Module], torch.Tensor] | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, target_length)`, *optional*):
            The target tokens; −100 is ignored. `decoder_input_ids` default to the labels shifted right.
        smoothing (`float`, *optional*):
            Compute the loss with this ε (section 5.4; 0 is plain cross-entropy) in one pass with the output
            projection, which takes less time and memory. `logits` are then `None`.
        token_loss (`Callable`, *optional*):
            Computes the loss from the decoder's states and the output projection, instead of from labels.
            `logits` are then `None`.
        """
        check_loss_options(smoothing, kwargs.get("num_items_in_batch"))
        check_logits_to_keep(logits_to_keep, labels)
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                check_ids("labels", labels)
                check_labels("labels", labels, labels.shape, self.config.decoder_vocab_size)
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            *(input_ids, attention_mask, decoder_input_ids, decoder_attention_mask, encoder_outputs),
            *(past_key_values, inputs_embeds, decoder_inputs_embeds, use_cache),
            return_dict=True,
            **kwargs,
        )
        check_labels("labels", labels, outputs.last_hidden_state.shape[:2], self.config.decoder_vocab_size)
        loss = logits = None
        if token_loss is not None:
            loss = token_loss(outputs.last_hidden_state, self.lm_head)
        elif labels is not None and smoothing is not None:
            loss = smoothed_loss(outputs.last_hidden_state, self.lm_head, labels, smoothing, **kwargs)
        else:
            logits = self.lm_head(keep_positions(outputs.last_hidden_state, logits_to_keep))
            if labels is not None:
                loss = self.loss_function(logits, labels, **kwargs)
        return Seq2SeqLMOutput(loss=loss, logits=logits, **other_outputs(outputs))
