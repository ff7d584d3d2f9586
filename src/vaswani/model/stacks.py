# Copyright 2026 The vaswani authors. Licensed under the Apache License, Version 2.0.
"""The layers of encoder and decoder, and their stacks, from which all models are built (section 3.1).

Section numbers refer to Vaswani et al. (2017, arXiv:1706.03762), version 7.

B batch · S source length · T target length · d_model width
"""

import os
from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, auto_docstring, is_torchdynamo_compiling
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import VaswaniAttention, additive_mask, wants_weights
from .compatibility import CACHE_NAME, cache_capacity, takes_cache
from .configuration_vaswani import VaswaniFamilyConfig
from .embeddings import LearnedPositions, TokenEmbeddings, make_positions
from .input_checks import (
    check_attention_mask,
    check_embeddings,
    check_ids,
    check_no_lost_arguments,
    check_not_packed,
    check_position_ids,
    warn_of_left_padding,
)
from .kernel_slots import KernelSlot, prepare_kernels
from .operators import Linear, dropout, word_dropout

NO_TARGET = (
    " Labels give them; if a loss outside of the model takes the labels, as with label smoothing in the "
    "library's Trainer, give the model to the collator: DataCollatorForSeq2Seq(tokenizer, model=model)."
)


def layer_norm(config: VaswaniFamilyConfig) -> nn.LayerNorm:
    """Return a norm for the residual stream."""
    return nn.LayerNorm(config.d_model, eps=config.layer_norm_eps, bias=config.norm_bias)


class VaswaniLayer(GradientCheckpointingLayer):
    """Self-attention, cross-attention if there is a source, then feed-forward (section 3.1)."""

    stack: ClassVar[str]

    def __init__(self, config: VaswaniFamilyConfig, layer_idx: int):
        super().__init__()
        self.norm_first = config.norm_order == "pre"
        self.dropout = config.dropout
        self.activation_dropout = config.activation_dropout
        self.activation_fn = ACT2FN[config.activation_function]
        ffn_dim, heads = (getattr(config, f"{self.stack}_{size}") for size in ("ffn_dim", "attention_heads"))
        self.fc1 = Linear(config.d_model, ffn_dim, bias=config.ffn_bias)
        self.fc2 = Linear(ffn_dim, config.d_model, bias=config.ffn_bias)
        is_causal, pattern = self.stack == "decoder", config.sparse_pattern(self.stack, layer_idx)
        self.self_attn = VaswaniAttention(config, heads, layer_idx, is_causal, pattern)
        self.self_attn_layer_norm = layer_norm(config)
        if self.stack == "decoder" and config.is_encoder_decoder:
            self.encoder_attn = VaswaniAttention(config, heads, layer_idx)
            self.encoder_attn_layer_norm = layer_norm(config)
        self.final_layer_norm = layer_norm(config)

    @takes_cache
    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """[B, T, d_model] and the encoder's [B/K, S, d_model], if there is one -> [B, T, d_model]."""

        def self_attention(x: torch.Tensor) -> torch.Tensor:
            return self.self_attn(x, attention_mask, past_key_values=past_key_values, **kwargs)[0]

        def encoder_attention(x: torch.Tensor) -> torch.Tensor:
            return self.encoder_attn(
                x, encoder_attention_mask, encoder_hidden_states, past_key_values, **kwargs
            )[0]

        hidden_states = self.residual(hidden_states, self.self_attn_layer_norm, self_attention)
        if encoder_hidden_states is not None:
            hidden_states = self.residual(hidden_states, self.encoder_attn_layer_norm, encoder_attention)
        return self.residual(hidden_states, self.final_layer_norm, self.feed_forward)

    def residual(self, hidden_states: torch.Tensor, norm: nn.LayerNorm, sublayer: Callable) -> torch.Tensor:
        """LayerNorm(x + Dropout(Sublayer(x))) (section 5.4), or x + Dropout(Sublayer(LayerNorm(x)))."""
        output = sublayer(norm(hidden_states) if self.norm_first else hidden_states)
        hidden_states = hidden_states + dropout(output, self.dropout, self.training)
        if hidden_states.dtype == torch.float16:  # the sum can overflow, and inf turns into NaN
            limit = torch.finfo(torch.float16).max
            hidden_states = hidden_states.clamp(-limit, limit)
        return hidden_states if self.norm_first else norm(hidden_states)

    def feed_forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """FFN(x) = max(0, xW₁ + b₁)W₂ + b₂ (equation 2) with the configured activation."""
        inner = self.activation_fn(self.fc1(hidden_states))
        return self.fc2(dropout(inner, self.activation_dropout, self.training))


class VaswaniEncoderLayer(VaswaniLayer):
    """A layer in which all tokens attend to each other."""

    stack = "encoder"


class VaswaniDecoderLayer(VaswaniLayer):
    """A layer in which a token attends to itself, to earlier tokens and, if there is one, to the source."""

    stack = "decoder"


@auto_docstring
class VaswaniPreTrainedModel(PreTrainedModel):
    config: VaswaniFamilyConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["VaswaniEncoderLayer", "VaswaniDecoderLayer"]
    _skip_keys_device_placement = [CACHE_NAME, "past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Save the code of `model/` with each model, for users without the plugin."""
        super().__init_subclass__(**kwargs)
        for auto_class, place in cls.config_class.auto_classes.items():
            if place.endswith(f".{cls.__name__}"):
                cls.register_for_auto_class(auto_class)
                return  # one is enough: the configuration names them all

    def __init__(self, config: VaswaniFamilyConfig, *args: Any, **kwargs: Any):
        prepare_kernels()
        super().__init__(config, *args, **kwargs)

    def _init_weights(self, module: nn.Module) -> None:
        """Draw embeddings from N(0, 1/d_model), which scaling makes N(0, 1), and projections Glorot uniform.

        With `initializer_range`, draw all of them from N(0, initializer_range²).
        """
        std = self.config.initializer_range
        if isinstance(module, nn.Linear):
            if std is None:
                init.xavier_uniform_(module.weight)
            else:
                init.normal_(module.weight, std=std)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5 if std is None else std)
            if (padding := module.padding_idx) is not None:
                weight = module.weight.detach().clone()
                weight[padding] = 0
                init.copy_(module.weight, weight)  # skips a loaded weight; assigning the row would not
        else:
            super()._init_weights(module)

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        """`{target: source}`: the output projection, if the model has one and ties it (section 3.4)."""
        if not self.config.tie_word_embeddings or not hasattr(self, "lm_head"):
            return {}
        is_shared = getattr(self.config, "share_encoder_decoder_embeddings", False)
        stack = self.config.stacks[0 if is_shared else -1]
        return {"lm_head.weight": f"model.{stack}.embed_tokens.weight"}

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Return all ties. The library reads only `tie_word_embeddings`; stacks may share embeddings too."""
        return super().get_expanded_tied_weights_keys(True) if all_submodels else self._tied_weights_keys

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> None:
        """Raise `NotImplementedError` for `generate_batch`: the layers cannot read its paged cache."""
        raise NotImplementedError(
            f"{type(self).__name__} has no continuous batching (generate_batch); call generate with a padded "
            "batch."
        )

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """Save as transformers does, and delete the hashes of a model saved there before."""
        Path(save_directory, "model_hashes.json").unlink(missing_ok=True)
        super().save_pretrained(save_directory, *args, **kwargs)

    def _stacks(self) -> "list[VaswaniStack]":
        """Return the stacks: one, or the encoder and the decoder."""
        return [module for module in self.modules() if isinstance(module, VaswaniStack)]

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embeddings; with two stacks, the source's."""
        return self._stacks()[0].embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embeddings; with two stacks, the source's."""
        self._stacks()[0].embed_tokens = value

    def get_position_embeddings(self) -> nn.Module | tuple[nn.Module, ...]:
        """Return the position embeddings of the stack; with two stacks, the source's and the target's."""
        positions = tuple(stack.embed_positions for stack in self._stacks())
        return positions[0] if len(positions) == 1 else positions

    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Allow longer sequences by repeating learned positions (Longformer, arXiv:2004.05150).

        A model that was trained on short sequences keeps what it has learned about neighbouring tokens.
        Sinusoidal positions have no limit and do not change. Raises `ValueError` for a number below 1.
        """
        if new_num_position_embeddings < 1:
            raise ValueError(f"new_num_position_embeddings={new_num_position_embeddings} must be at least 1.")
        for module in self.modules():
            if isinstance(module, LearnedPositions):
                module.repeat_to(new_num_position_embeddings)
        self.config.max_position_embeddings = new_num_position_embeddings


class VaswaniStack(VaswaniPreTrainedModel):
    """Base class of both stacks: embeddings, positions, dropout (sections 3.4, 3.5, 5.4) and layers."""

    layer_class: type[VaswaniLayer]

    def __init__(self, config: VaswaniFamilyConfig):
        super().__init__(config)
        stack = self.layer_class.stack
        vocab_size = config.decoder_vocab_size if stack == "decoder" else config.vocab_size
        self.dropout = config.dropout
        self.word_dropout = config.word_dropout
        self.embed_tokens = TokenEmbeddings(config, vocab_size)
        self.embed_positions = make_positions(config)
        self.embed_norm = layer_norm(config) if config.embedding_norm else nn.Identity()
        self.layer_norm = layer_norm(config) if config.final_norm else nn.Identity()
        num_layers = getattr(config, f"{stack}_layers")
        self.layers = nn.ModuleList(self.layer_class(config, layer) for layer in range(num_layers))
        self.gradient_checkpointing = False
        self.post_init()

    def token_embeddings(
        self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None, prefix: str = ""
    ) -> torch.Tensor:
        """Return embeddings [B, T, d_model]: of the ids, with word dropout, or `inputs_embeds` as given.

        Raises `ValueError` unless exactly one of the two is given.
        """
        if (input_ids is None) == (inputs_embeds is None):
            given = "neither" if input_ids is None else "both"
            advice = NO_TARGET if prefix and input_ids is None else ""
            raise ValueError(
                f"give exactly one of {prefix}input_ids and {prefix}inputs_embeds; got {given}.{advice}"
            )
        if inputs_embeds is not None:
            check_embeddings(f"{prefix}inputs_embeds", inputs_embeds, self.config.d_model)
            return inputs_embeds
        check_ids(f"{prefix}input_ids", input_ids)
        return word_dropout(self.embed_tokens(input_ids), self.word_dropout, self.training)

    def mask_config(self, arguments: Mapping[str, Any]) -> VaswaniFamilyConfig:
        """Return the configuration for building masks: for the reference, if weights are wanted."""
        if not wants_weights(self.config, arguments):
            return self.config
        config = copy(self.config)
        config._attn_implementation = "eager"
        return config

    def padding_mask(self, attention_mask: torch.Tensor | None) -> torch.Tensor | None:
        """Return the padding mask [B, S] for sparse layers, or None.

        Raises `ValueError` if some layers are sparse and the mask is not a padding mask.
        """
        if attention_mask is None:
            return None
        stack = self.layer_class.stack
        is_sparse = "sparse" in self.config.layer_attention(stack)
        if attention_mask.ndim == 2:
            if is_sparse and not self.training:
                warn_of_left_padding(attention_mask)
            return attention_mask
        if is_sparse:
            raise ValueError(
                f"sparse attention takes a padding mask [batch, length]; got {list(attention_mask.shape)}. "
                f"Set {stack}_attention='full' to give each query its own mask."
            )
        return None

    def add_positions(
        self,
        inputs_embeds: torch.Tensor,
        attention_mask: torch.Tensor | None,
        past_length: int | torch.Tensor = 0,
        position_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Add positions to embeddings, then norm and dropout: [B, T, d_model] -> [B, T, d_model].

        By default, positions count the tokens that the mask shows, so that padding on either side changes
        nothing; with `position_from_mask=False` they count all tokens.
        """
        length = inputs_embeds.shape[1]
        counts_shown = self.config.position_from_mask and attention_mask is not None
        bound: int | None
        if position_ids is not None:
            check_position_ids(position_ids, *inputs_embeds.shape[:2])
            positions, bound = position_ids, None
        elif counts_shown and attention_mask.ndim == 2:
            positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
            if positions.shape[1] != length:  # the mask covers earlier tokens too
                new = past_length + torch.arange(length, device=positions.device)
                positions = positions.index_select(1, new)  # [B, T]
            bound = attention_mask.shape[1]
        else:
            positions = (torch.arange(length, device=inputs_embeds.device) + past_length)[None]  # [1, T]
            bound = length + past_length if isinstance(past_length, int) else None
        if self.embed_positions is not None:
            inputs_embeds = inputs_embeds + self.embed_positions(positions, bound, inputs_embeds.dtype)
        return dropout(self.embed_norm(inputs_embeds), self.dropout, self.training)


class VaswaniEncoder(VaswaniStack):
    """The encoder: embeddings, then layers of self-attention and feed-forward networks."""

    layer_class = VaswaniEncoderLayer
    _can_record_outputs = {"hidden_states": VaswaniEncoderLayer, "attentions": VaswaniAttention}

    @merge_with_config_defaults
    @capture_outputs
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        check_no_lost_arguments(kwargs)
        kwargs["output_attentions"] = wants_weights(self.config, kwargs)  # for all layers
        inputs_embeds = self.token_embeddings(input_ids, inputs_embeds)
        rows, length = inputs_embeds.shape[:2]
        check_attention_mask("attention_mask", attention_mask, rows, length, [length])
        hidden_states = self.add_positions(inputs_embeds, attention_mask, position_ids=position_ids)
        mask = None
        if "full" in self.config.layer_attention("encoder"):
            mask = create_bidirectional_mask(self.mask_config(kwargs), inputs_embeds, attention_mask)
        padding_mask = self.padding_mask(attention_mask)
        for layer in self.layers:
            layer_mask = mask if layer.self_attn.pattern is None else padding_mask
            hidden_states = layer(hidden_states, layer_mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


@KernelSlot
def self_attention_mask(
    config: VaswaniFamilyConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    past_key_values: Cache | None,
    position_ids: torch.Tensor | None,
) -> torch.Tensor | None:
    """Return the decoder's causal and padding mask in the form that the attention implementation takes.

    Without a padding mask, positions that restart within a row separate packed documents.
    """
    if isinstance(past_key_values, EncoderDecoderCache):
        past_key_values = past_key_values.self_attention_cache
    return create_causal_mask(
        config, inputs_embeds, attention_mask, past_key_values, position_ids=position_ids
    )


@auto_docstring
class VaswaniDecoder(VaswaniStack):
    layer_class = VaswaniDecoderLayer
    _can_record_outputs = {
        "hidden_states": VaswaniDecoderLayer,
        "attentions": OutputRecorder(VaswaniAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VaswaniAttention, index=1, layer_name="encoder_attn"),
    }

    @merge_with_config_defaults
    @capture_outputs
    @auto_docstring
    @takes_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        position_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        r"""
        encoder_hidden_states (`torch.Tensor` of shape `(batch_size / K, source_length, d_model)`):
            The encoder's output. K consecutive rows of the decoder (beams, samples) may share one row of it.
        """
        check_no_lost_arguments(kwargs)
        kwargs["output_attentions"] = wants_weights(self.config, kwargs)  # for all layers
        prefix = "decoder_" if self.config.is_encoder_decoder else ""
        inputs_embeds = self.token_embeddings(input_ids, inputs_embeds, prefix)
        self.check_source_and_cache(encoder_hidden_states, past_key_values)
        # The library separates packed documents only without a cache, even an empty one.
        may_be_packed = past_key_values is None and attention_mask is None and position_ids is not None
        if use_cache and past_key_values is None:
            past_key_values = self.new_cache()
        past_length = 0 if past_key_values is None else past_key_values.get_seq_length()
        rows, length = inputs_embeds.shape[:2]
        lengths = [past_length + length]
        if past_key_values is not None:
            lengths.append(cache_capacity(past_key_values))
        check_attention_mask(f"{prefix}attention_mask", attention_mask, rows, length, lengths)
        mask_config = self.mask_config(kwargs)

        hidden_states = self.add_positions(inputs_embeds, attention_mask, past_length, position_ids)
        mask = None
        if "full" in self.config.layer_attention("decoder"):
            cache = None if may_be_packed else past_key_values
            mask = self_attention_mask(mask_config, inputs_embeds, attention_mask, cache, position_ids)
        padding_mask = self.padding_mask(attention_mask)
        if may_be_packed and "sparse" in self.config.layer_attention("decoder"):
            check_not_packed(position_ids)
        encoder_mask = None
        if encoder_hidden_states is not None:
            encoder_mask = self.encoder_attention_mask(
                mask_config, inputs_embeds, encoder_hidden_states, encoder_attention_mask
            )
        if past_key_values is not None and encoder_mask is not None and self.takes_additive_masks:
            encoder_mask = additive_mask(encoder_mask, inputs_embeds.dtype)  # once, not in every layer
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                mask if layer.self_attn.pattern is None else padding_mask,
                encoder_hidden_states,
                encoder_mask,
                **{CACHE_NAME: past_key_values},  # gradient checkpointing looks for it by this name
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.layer_norm(hidden_states), **{CACHE_NAME: past_key_values}
        )

    def new_cache(self) -> Cache:
        """Return an empty cache, with a part for the source's keys and values if there is a source."""
        cache = DynamicCache(config=self.config)
        if self.config.is_encoder_decoder:
            return EncoderDecoderCache(cache, DynamicCache(config=self.config))
        return cache

    @property
    def takes_additive_masks(self) -> bool:
        """Return whether the attention implementation accepts any additive mask [B, H, T, S]."""
        return self.config._attn_implementation in ("eager", "sdpa")

    def check_source_and_cache(
        self, encoder_hidden_states: torch.Tensor | None, past_key_values: Cache | None
    ) -> None:
        """Raise `ValueError` unless the encoder's output and the cache fit this decoder."""
        has_source = self.config.is_encoder_decoder
        if has_source != (encoder_hidden_states is not None):
            raise ValueError(
                "encoder_hidden_states are missing: give the encoder's output."
                if has_source
                else "encoder_hidden_states have no effect on a decoder alone; leave them out."
            )
        if past_key_values is None or isinstance(past_key_values, EncoderDecoderCache) == has_source:
            return
        wanted = "EncoderDecoderCache(DynamicCache(), DynamicCache())" if has_source else "DynamicCache()"
        raise ValueError(f"{CACHE_NAME} is a {type(past_key_values).__name__}; expected one like {wanted}.")

    @staticmethod
    def encoder_attention_mask(
        config: VaswaniFamilyConfig,
        inputs_embeds: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """Return the mask of the source's padding, for K target rows per source row.

        Raises `ValueError` unless the target rows are a multiple of the source rows and the mask fits.
        """
        rows, sources = inputs_embeds.shape[0], encoder_hidden_states.shape[0]
        if rows % sources:
            raise ValueError(
                f"{rows} rows of decoder input do not divide among {sources} rows of encoder output."
            )
        queries = inputs_embeds.reshape(sources, -1, inputs_embeds.shape[-1])  # K·T of each source
        length = encoder_hidden_states.shape[1]
        check_attention_mask(
            "the source's attention_mask", attention_mask, sources, queries.shape[1], [length]
        )
        if "flash" in config._attn_implementation and attention_mask is not None and attention_mask.ndim == 2:
            nothing_hidden = not is_torchdynamo_compiling() and attention_mask.all()
            return None if nothing_hidden else attention_mask[:, None, None].bool()
        return create_bidirectional_mask(config, queries, attention_mask, encoder_hidden_states)


def other_outputs(outputs: ModelOutput, *without: str) -> dict[str, Any]:
    """Return the outputs of a base model except the last hidden state, the pooled state and `without`."""
    left_out = ("last_hidden_state", "pooler_output", *without)
    return {k: v for k, v in outputs.items() if k not in left_out}


def tensor_parallel_plan(stack: str, cross_attention: bool = False) -> dict[str, str]:
    """Return the tensor-parallel plan of a stack: heads and inner features are divided, not embeddings."""
    attentions = ("self_attn", "encoder_attn") if cross_attention else ("self_attn",)
    layer = {f"{attention}.{name}_proj": "colwise" for attention in attentions for name in ("q", "k", "v")}
    layer |= {f"{attention}.out_proj": "rowwise" for attention in attentions}
    layer |= {"fc1": "colwise", "fc2": "rowwise"}
    return {f"{stack}.layers.*.{module}": style for module, style in layer.items()}
