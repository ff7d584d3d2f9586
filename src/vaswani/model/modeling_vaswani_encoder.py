# Copyright 2026 The vaswani authors. Licensed under the Apache License, Version 2.0.
"""The encoder alone, as in BERT (Devlin et al., 2019, arXiv:1810.04805) and its successors.

The default configuration is BERT; DistilBERT has no token types and no pooler, BigBird has sparse attention.
Section numbers refer to BERT's paper.

B batch · S length · d_model width · V vocabulary
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    NextSentencePredictorOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, auto_docstring, can_return_tuple

from .configuration_vaswani import VaswaniEncoderConfig
from .input_checks import (
    IGNORED_LABEL,
    can_be_checked,
    check_choices,
    check_ids,
    check_labels,
    check_loss_options,
    is_fake,
)
from .losses import (
    answer_loss,
    choice_loss,
    class_loss,
    next_sentence_loss,
    smoothed_loss,
    tag_loss,
    token_loss_function,
)
from .stacks import VaswaniEncoder, VaswaniPreTrainedModel, layer_norm, other_outputs, tensor_parallel_plan


@auto_docstring
class VaswaniEncoderPreTrainedModel(VaswaniPreTrainedModel):
    config: VaswaniEncoderConfig

    def text_state(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """Return the state of each text, as `classifier_pooling` says: [B, S, d_model] -> [B, d_model].

        Raises `ValueError` if the mean is needed and the mask is not a padding mask [B, S].
        """
        if self.config.classifier_pooling == "cls":
            return hidden_states[:, 0]
        if attention_mask is None:
            return hidden_states.mean(dim=1)
        if attention_mask.dim() != 2:
            raise ValueError(
                f"attention_mask has the shape {tuple(attention_mask.shape)}, which does not say what is "
                'padding, as classifier_pooling="mean" needs; give one of (batch_size, sequence_length).'
            )
        kept = attention_mask.to(hidden_states.dtype).unsqueeze(-1)
        return (hidden_states * kept).sum(dim=1) / kept.sum(dim=1).clamp_min(1)


class VaswaniPooler(nn.Module):
    """tanh(W h + b) of a text's state h, in BERT the state of [CLS] (section 3.1)."""

    def __init__(self, config: VaswaniEncoderConfig):
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """[B, d_model] -> [B, d_model]."""
        return self.dense(state).tanh()


@auto_docstring
class VaswaniEncoderModel(VaswaniEncoderPreTrainedModel):
    _tp_plan = tensor_parallel_plan("encoder")
    _fsdp_plan = {"encoder.layers.*": "free_full_weight"}

    def __init__(self, config: VaswaniEncoderConfig, add_pooling_layer: bool | None = None):
        r"""
        add_pooling_layer (`bool`, *optional*):
            Whether the model on top uses pooled states; without a model on top, `config.pooler` decides.
        """
        super().__init__(config)
        if add_pooling_layer is None:
            add_pooling_layer = config.pooler is not False
        self.encoder = VaswaniEncoder(config)
        self.embed_token_types = None
        if config.token_type_vocab_size:
            self.embed_token_types = nn.Embedding(config.token_type_vocab_size, config.d_model)
        self.pooler = VaswaniPooler(config) if add_pooling_layer or config.pooler else None
        self.post_init()

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        inputs_embeds = self.encoder.token_embeddings(input_ids, inputs_embeds)
        inputs_embeds = self.add_token_types(inputs_embeds, token_type_ids)
        outputs = self.encoder(
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            return_dict=True,
            **kwargs,
        )
        pooled = None
        if self.pooler is not None:
            pooled = self.pooler(self.text_state(outputs.last_hidden_state, attention_mask))
        return BaseModelOutputWithPooling(outputs.last_hidden_state, pooled, **other_outputs(outputs))

    def add_token_types(
        self, inputs_embeds: torch.Tensor, token_type_ids: torch.LongTensor | None
    ) -> torch.Tensor:
        """Add the embeddings of token types to those of tokens: [B, S, d_model] -> [B, S, d_model].

        Raises `ValueError` for a wrong shape or dtype, or for a token type without an embedding.
        """
        if token_type_ids is not None:
            check_ids("token_type_ids", token_type_ids, inputs_embeds.shape[:2])
        if self.embed_token_types is None:
            if token_type_ids is not None and can_be_checked(token_type_ids) and token_type_ids.any():
                raise ValueError(
                    "token_type_ids were given to a model without token types (token_type_vocab_size=0); "
                    "leave them out: tokenizer(..., return_token_type_ids=False)."
                )
            return inputs_embeds
        if token_type_ids is None:  # call the module, which may be adapted or hooked
            token_type_ids = torch.zeros(1, 1, dtype=torch.long, device=inputs_embeds.device)
            return inputs_embeds + self.embed_token_types(token_type_ids)
        kinds = self.config.token_type_vocab_size
        if can_be_checked(token_type_ids):
            low, high = (int(bound) for bound in token_type_ids.aminmax())
            if low < 0 or high >= kinds:
                raise ValueError(
                    f"token_type_ids holds {low if low < 0 else high}, but token_type_vocab_size={kinds}: "
                    f"they go from 0 to {kinds - 1}."
                )
        return inputs_embeds + self.embed_token_types(token_type_ids)


class VaswaniMaskedLMHead(nn.Module):
    """LayerNorm(activation(W h + b)) before the output projection (section 3.1, Masked LM)."""

    def __init__(self, config: VaswaniEncoderConfig):
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.activation_fn = ACT2FN[config.activation_function]
        self.layer_norm = layer_norm(config)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[..., d_model] -> [..., d_model]."""
        return self.layer_norm(self.activation_fn(self.dense(hidden_states)))


class VaswaniMaskedLMBase(VaswaniEncoderPreTrainedModel):
    """Base class of the models that predict masked tokens."""

    def __init__(self, config: VaswaniEncoderConfig, add_pooling_layer: bool):
        super().__init__(config)
        self.model = VaswaniEncoderModel(config, add_pooling_layer=add_pooling_layer)
        self.mlm_transform = VaswaniMaskedLMHead(config) if config.mlm_transform else nn.Identity()
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.lm_head_bias)
        self.loss_function = token_loss_function

    def masked_lm(
        self,
        hidden_states: torch.Tensor,
        labels: torch.Tensor | None,
        smoothing: float | None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the loss and the logits [B, S, V] of states [B, S, d_model]; either may be None."""
        check_labels("labels", labels, hidden_states.shape[:2], self.config.vocab_size)
        check_loss_options(smoothing, kwargs.get("num_items_in_batch"))
        if labels is not None and smoothing is not None:
            if not is_fake(labels):  # fake ones do not say how many are left
                kept = labels != IGNORED_LABEL  # a seventh of the tokens; only they need the transform
                hidden_states, labels = hidden_states[kept], labels[kept]
            states = self.mlm_transform(hidden_states)
            return smoothed_loss(states, self.lm_head, labels, smoothing, **kwargs), None
        logits = self.lm_head(self.mlm_transform(hidden_states))
        if labels is None:
            return None, logits
        return self.loss_function(logits, labels, **kwargs), logits


@auto_docstring
class VaswaniForMaskedLM(VaswaniMaskedLMBase):
    def __init__(self, config: VaswaniEncoderConfig):
        super().__init__(config, add_pooling_layer=False)
        self.post_init()

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        smoothing: float | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The masked tokens; −100 is ignored.
        smoothing (`float`, *optional*):
            Compute the loss of only the masked tokens with this ε (0 is plain cross-entropy), in one pass
            with the output projection, which takes less time and memory. `logits` are then `None`.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        loss, logits = self.masked_lm(outputs.last_hidden_state, labels, smoothing, **kwargs)
        return MaskedLMOutput(loss=loss, logits=logits, **other_outputs(outputs))


@dataclass
class VaswaniForPreTrainingOutput(ModelOutput):
    """Output of `VaswaniForPreTraining`.

    Args:
        loss (`torch.FloatTensor`, *optional*): the sum of both tasks' losses.
        prediction_logits (`torch.FloatTensor`, *optional*): [B, S, V].
        seq_relationship_logits (`torch.FloatTensor`): [B, 2], for a second segment that follows or does not.
        hidden_states (`tuple(torch.FloatTensor)`, *optional*): embeddings and the output of each layer.
        attentions (`tuple(torch.FloatTensor)`, *optional*): the weights of each layer.
    """

    loss: torch.FloatTensor | None = None
    prediction_logits: torch.FloatTensor | None = None
    seq_relationship_logits: torch.FloatTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None
    attentions: tuple[torch.FloatTensor, ...] | None = None


@auto_docstring
class VaswaniForPreTraining(VaswaniMaskedLMBase):
    def __init__(self, config: VaswaniEncoderConfig):
        super().__init__(config, add_pooling_layer=True)
        self.next_sentence = nn.Linear(config.d_model, 2)
        self.post_init()

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        next_sentence_label: torch.LongTensor | None = None,
        smoothing: float | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VaswaniForPreTrainingOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The masked tokens; −100 is ignored.
        next_sentence_label (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            0 where the second segment follows the first in its text, 1 where it comes from elsewhere.
        smoothing (`float`, *optional*):
            As for `VaswaniForMaskedLM`; `prediction_logits` are then `None`.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        check_labels("next_sentence_label", next_sentence_label, outputs.pooler_output.shape[:1], 2)
        loss, logits = self.masked_lm(outputs.last_hidden_state, labels, smoothing, **kwargs)
        relation_logits = self.next_sentence(outputs.pooler_output)
        if next_sentence_label is not None:
            items = kwargs.get("num_items_in_batch")
            relation_loss = next_sentence_loss(relation_logits, next_sentence_label, labels, items)
            loss = relation_loss if loss is None else loss + relation_loss
        return VaswaniForPreTrainingOutput(
            loss=loss,
            prediction_logits=logits,
            seq_relationship_logits=relation_logits,
            **other_outputs(outputs),
        )


def classifier_dropout(config: VaswaniEncoderConfig) -> nn.Dropout:
    """Return the dropout before a classifier."""
    return nn.Dropout(config.dropout if config.classifier_dropout is None else config.classifier_dropout)


class VaswaniClassifierBase(VaswaniEncoderPreTrainedModel):
    """Base class of the models that compute scores of whole texts."""

    def __init__(self, config: VaswaniEncoderConfig, num_outputs: int):
        super().__init__(config)
        activation = config.classifier_activation
        self.model = VaswaniEncoderModel(config, add_pooling_layer=activation is None)
        self.pre_classifier = None if activation is None else nn.Linear(config.d_model, config.d_model)
        self.classifier_activation = None if activation is None else ACT2FN[activation]
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.d_model, num_outputs)

    def classify(
        self, input_ids: torch.Tensor | None, attention_mask: torch.Tensor | None, *inputs: Any, **kwargs: Any
    ) -> tuple[BaseModelOutputWithPooling, torch.Tensor]:
        """Return the encoder's outputs for texts [B, S], and the classifier's logits [B, L]."""
        outputs = self.model(input_ids, attention_mask, *inputs, return_dict=True, **kwargs)
        if self.pre_classifier is None:
            pooled = outputs.pooler_output
        else:
            state = self.text_state(outputs.last_hidden_state, attention_mask)
            pooled = self.classifier_activation(self.pre_classifier(state))
        return outputs, self.classifier(self.dropout(pooled))


@auto_docstring
class VaswaniForSequenceClassification(VaswaniClassifierBase):
    def __init__(self, config: VaswaniEncoderConfig):
        super().__init__(config, config.num_labels)
        self.num_labels = config.num_labels
        self.post_init()

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        r"""
        labels (`torch.Tensor` of shape `(batch_size,)` or `(batch_size, num_labels)`, *optional*):
            The class of each row; numbers for regression and multi-label classification
            (see `config.problem_type`).
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs, logits = self.classify(*inputs, **kwargs)
        loss = class_loss(self, logits, labels, **kwargs)
        return SequenceClassifierOutput(loss=loss, logits=logits, **other_outputs(outputs))


@auto_docstring
class VaswaniForMultipleChoice(VaswaniClassifierBase):
    def __init__(self, config: VaswaniEncoderConfig):
        super().__init__(config, 1)
        self.post_init()

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput:
        r"""
        input_ids (`torch.LongTensor` of shape `(batch_size, num_choices, sequence_length)`):
            The text with each of its choices. The other inputs have the same first three dimensions.
        labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            The index of the correct choice.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        check_choices(*inputs)
        shape = (inputs_embeds if input_ids is None else input_ids).shape[:2]  # [B, C]
        flat = (None if each is None else each.flatten(0, 1) for each in inputs)
        outputs, logits = self.classify(*flat, **kwargs)
        logits = logits.view(shape)
        loss = choice_loss(logits, labels, **kwargs)
        return MultipleChoiceModelOutput(loss=loss, logits=logits, **other_outputs(outputs))


@auto_docstring(
    custom_intro="A stack with a classifier that tells whether the second segment follows the first."
)
class VaswaniForNextSentencePrediction(VaswaniEncoderPreTrainedModel):
    def __init__(self, config: VaswaniEncoderConfig):
        super().__init__(config)
        self.model = VaswaniEncoderModel(config, add_pooling_layer=True)
        self.next_sentence = nn.Linear(config.d_model, 2)
        self.post_init()

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> NextSentencePredictorOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            0 where the second segment follows the first in its text, 1 where it comes from elsewhere.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        logits = self.next_sentence(outputs.pooler_output)
        loss = choice_loss(logits, labels, **kwargs)
        return NextSentencePredictorOutput(loss=loss, logits=logits, **other_outputs(outputs))


@auto_docstring
class VaswaniForTokenClassification(VaswaniEncoderPreTrainedModel):
    def __init__(self, config: VaswaniEncoderConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = VaswaniEncoderModel(config, add_pooling_layer=False)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.d_model, config.num_labels)
        self.loss_function = token_loss_function
        self.post_init()

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The class of each token; −100 is ignored.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = tag_loss(self, logits, labels, **kwargs)
        return TokenClassifierOutput(loss=loss, logits=logits, **other_outputs(outputs))


@auto_docstring
class VaswaniForQuestionAnswering(VaswaniEncoderPreTrainedModel):
    def __init__(self, config: VaswaniEncoderConfig):
        super().__init__(config)
        self.model = VaswaniEncoderModel(config, add_pooling_layer=False)
        self.dropout = classifier_dropout(config)
        self.qa_outputs = nn.Linear(config.d_model, 2)
        self.post_init()

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        logits = self.qa_outputs(self.dropout(outputs.last_hidden_state))
        start_logits, end_logits = logits.unbind(-1)  # [B, S] each
        loss = answer_loss(self, start_logits, end_logits, start_positions, end_positions, **kwargs)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            **other_outputs(outputs),
        )
