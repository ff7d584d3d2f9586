# Copyright 2026 The vaswani authors. Licensed under the Apache License, Version 2.0.
"""The decoder alone, as in GPT (Radford et al., 2018) and its successors.

The default configuration is GPT-2; GPT has norms after the sub-layers, GPT-3 has sparse attention in every
other layer.

B batch · T length · d_model width · V vocabulary
"""

import torch
from torch import nn
from transformers import Cache, GenerationMixin
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutputWithPast,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring, can_return_tuple

from .compatibility import CACHE_NAME, keep_positions, padding_mask_of_cache, takes_cache
from .configuration_vaswani import VaswaniDecoderConfig
from .input_checks import check_labels, check_logits_to_keep, check_loss_options
from .losses import (
    answer_loss,
    class_loss,
    next_token_loss_function,
    smoothed_loss,
    tag_loss,
    token_loss_function,
)
from .stacks import VaswaniDecoder, VaswaniPreTrainedModel, other_outputs, tensor_parallel_plan


@auto_docstring
class VaswaniDecoderPreTrainedModel(VaswaniPreTrainedModel):
    config: VaswaniDecoderConfig


@auto_docstring
class VaswaniDecoderModel(VaswaniDecoderPreTrainedModel):
    _tp_plan = tensor_parallel_plan("decoder")
    _fsdp_plan = {"decoder.layers.*": "free_full_weight"}

    def __init__(self, config: VaswaniDecoderConfig):
        super().__init__(config)
        self.decoder = VaswaniDecoder(config)
        self.post_init()

    @can_return_tuple
    @auto_docstring
    @takes_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPast:
        r"""
        position_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            Without `attention_mask`, positions that restart at 0 within a row start another document, which
            does not attend to earlier ones.
        """
        outputs = self.decoder(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        others = other_outputs(outputs, "cross_attentions")  # empty: there is no encoder
        return BaseModelOutputWithPast(outputs.last_hidden_state, **others)


@auto_docstring
class VaswaniForCausalLM(VaswaniDecoderPreTrainedModel, GenerationMixin):
    def __init__(self, config: VaswaniDecoderConfig):
        super().__init__(config)
        self.model = VaswaniDecoderModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.lm_head_bias)
        self.loss_function = next_token_loss_function
        self.post_init()

    create_masks_for_generate = staticmethod(padding_mask_of_cache)

    @can_return_tuple
    @auto_docstring
    @takes_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        smoothing: float | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        r"""
        position_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            See `VaswaniDecoderModel`.
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The tokens themselves; they are shifted inside the model. −100 is ignored.
        smoothing (`float`, *optional*):
            Compute the loss with this ε (0 is plain cross-entropy) in one pass with the output projection,
            which takes less time and memory. `logits` are then `None`.
        """
        check_loss_options(smoothing, kwargs.get("num_items_in_batch"))
        check_logits_to_keep(logits_to_keep, labels)
        inputs = (input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        check_labels("labels", labels, outputs.last_hidden_state.shape[:2], self.config.vocab_size)
        loss = logits = None
        if labels is not None and smoothing is not None:
            states, targets = outputs.last_hidden_state[:, :-1], labels[:, 1:]
            loss = smoothed_loss(states, self.lm_head, targets, smoothing, **kwargs)
        else:
            logits = self.lm_head(keep_positions(outputs.last_hidden_state, logits_to_keep))
            if labels is not None:
                loss = self.loss_function(logits, labels, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, **other_outputs(outputs))


@auto_docstring
class VaswaniDecoderForSequenceClassification(VaswaniDecoderPreTrainedModel):
    def __init__(self, config: VaswaniDecoderConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = VaswaniDecoderModel(config)
        self.score = nn.Linear(config.d_model, config.num_labels, bias=False)
        self.post_init()

    @can_return_tuple
    @auto_docstring
    @takes_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutputWithPast:
        r"""
        labels (`torch.Tensor` of shape `(batch_size,)` or `(batch_size, num_labels)`, *optional*):
            The class of each row; numbers for regression and multi-label classification
            (see `config.problem_type`). A text is classified by the state of its last token.
        """
        inputs = (input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        states = outputs.last_hidden_state
        last = self.last_tokens(states, input_ids, attention_mask)
        logits = self.score(states[torch.arange(states.shape[0], device=states.device), last])
        loss = class_loss(self, logits, labels, **kwargs)
        return SequenceClassifierOutputWithPast(loss=loss, logits=logits, **other_outputs(outputs))

    def last_tokens(
        self, states: torch.Tensor, input_ids: torch.Tensor | None, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the place of each text's last token that is not padding: int64 [B].

        Padding is found by the mask [B, T], else by the token ids.

        Raises `ValueError` for several texts if neither shows the padding.
        """
        rows, length = states.shape[:2]
        if attention_mask is not None and attention_mask.ndim == 2:
            kept = attention_mask[:, -length:] != 0
        elif input_ids is not None and self.config.pad_token_id is not None:
            kept = input_ids != self.config.pad_token_id
        elif rows == 1 or input_ids is None:
            kept = states.new_ones((rows, length), dtype=torch.bool)
        else:
            raise ValueError(
                "nothing tells which tokens are padding: give an attention_mask, or set config.pad_token_id."
            )
        return (torch.arange(length, device=states.device) * kept).argmax(-1)


@auto_docstring
class VaswaniDecoderForTokenClassification(VaswaniDecoderPreTrainedModel):
    def __init__(self, config: VaswaniDecoderConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = VaswaniDecoderModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.d_model, config.num_labels)
        self.loss_function = token_loss_function
        self.post_init()

    @can_return_tuple
    @auto_docstring
    @takes_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The class of each token; −100 is ignored.
        """
        inputs = (input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = tag_loss(self, logits, labels, **kwargs)
        return TokenClassifierOutput(loss=loss, logits=logits, **other_outputs(outputs, CACHE_NAME))


@auto_docstring
class VaswaniDecoderForQuestionAnswering(VaswaniDecoderPreTrainedModel):
    def __init__(self, config: VaswaniDecoderConfig):
        super().__init__(config)
        self.model = VaswaniDecoderModel(config)
        self.qa_outputs = nn.Linear(config.d_model, 2)
        self.post_init()

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        inputs = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "position_ids": position_ids}
        outputs = self.model(
            attention_mask=attention_mask, **inputs, **{"use_cache": False, "return_dict": True, **kwargs}
        )
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(-1)  # [B, T] each
        loss = answer_loss(self, start_logits, end_logits, start_positions, end_positions, **kwargs)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            **other_outputs(outputs, CACHE_NAME),
        )
