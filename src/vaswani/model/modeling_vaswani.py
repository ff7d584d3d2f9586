# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Encoder-decoder Transformer (Vaswani et al., 2017, arXiv:1706.03762).

Section numbers refer to the paper's version 7. Each deviation is a config field, off by default.

B batch · S source length · T target length · H heads · D head width · d_model = H·D
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from transformers import (
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    GenerationMixin,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, slice_logits_to_keep
from transformers.processing_utils import Unpack
from transformers.utils import (
    TransformersKwargs,
    auto_docstring,
    can_return_tuple,
    is_torchdynamo_compiling,
)
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .beam_search_cache import BeamSearchCache
from .configuration_vaswani import VaswaniConfig
from .dropout import dropout
from .embeddings import LearnedPositions, SinusoidalPositions, TokenEmbeddings
from .generation import SharedSourceMixin
from .linear import Linear
from .linear_cross_entropy import linear_cross_entropy
from .model_card import ModelCardMixin
from .projected_loss import TokenLoss, projected_loss
from .short_attention import additive_mask, gains_from_short_attention, short_attention_forward
from .sparse_attention import dense_mask, sparse_attention, sparse_attention_step
from .sparse_pattern import SparsePattern


def shift_tokens_right(labels: torch.Tensor, pad_token_id: int, decoder_start_token_id: int) -> torch.Tensor:
    """The decoder's input: the labels one step later, behind the start token (section 3.1).

    Labels int64 [B, T], in which −100 marks padding -> int64 [B, T], in which `pad_token_id` does.
    """
    shifted = labels.roll(1, dims=-1)
    shifted[:, 0] = decoder_start_token_id
    return shifted.masked_fill(shifted == -100, pad_token_id)


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(QKᵀ / sqrt(D)) V (equation 1), the reference for every kernel.

    Query [B, H, T, D], key and value [B, H, S, D]; the mask is bool (True may be seen) or additive float and
    broadcasts to [B, H, T, S]; None shows all. Returns the output [B, T, H, D] and the weights [B, H, T, S].
    A row that sees nothing has weights of zero.
    """
    precision = torch.promote_types(query.dtype, torch.float32)
    scores = (query @ key.transpose(-2, -1)).to(precision)  # [B, H, T, S]
    if attention_mask is None:
        weights = (scores * scaling).softmax(-1)
    else:
        mask = additive_mask(attention_mask, precision)
        lowest = torch.finfo(mask.dtype).min
        # A finite minimum keeps a row that sees nothing free of NaN; its weights are zeroed afterwards.
        scores = torch.add(mask.clamp(min=lowest), scores, alpha=scaling)
        weights = scores.softmax(-1).masked_fill(mask <= lowest, 0.0)
    weights = weights.to(value.dtype)
    if dropout:
        weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2), weights


def _pattern_of_heads(module: nn.Module, num_heads: int) -> SparsePattern:
    """`module.pattern` for the heads that are here: all, or this process's under tensor parallelism."""
    pattern: SparsePattern = module.pattern
    meshes = (getattr(parameter, "device_mesh", None) for parameter in module.parameters())
    mesh = None if num_heads == pattern.num_heads else next(filter(None, meshes), None)
    if mesh is None:
        return pattern
    return replace(pattern, num_heads=num_heads, first_head=mesh["tp"].get_local_rank() * num_heads)


def sparse_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    past_length: int | torch.Tensor = 0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Self-attention under `module.pattern`, by the reference where it is asked for, else by a sparse kernel.

    Query [B, H, T, D], key and value [B, H, S, D]; the mask is that of padding, [B, all tokens so far], of
    which `past_length` came before. Returns the output [B, T, H, D] and the weights, or None from a kernel.
    """
    pattern = _pattern_of_heads(module, query.shape[1])
    if module.config._attn_implementation == "eager" or kwargs.get("output_attentions"):
        visible = dense_mask(pattern, query.shape[2], key.shape[2], past_length, attention_mask, key.device)
        return eager_attention_forward(module, query, key, value, visible, scaling, dropout)
    if isinstance(past_length, int) and past_length == 0:
        length = query.shape[2]  # a cache of fixed size holds more, still empty
        key, value = key[:, :, :length], value[:, :, :length]
        attention_mask = None if attention_mask is None else attention_mask[:, :length]
        output = sparse_attention(query, key, value, pattern, attention_mask, scaling, dropout)
    else:
        output = sparse_attention_step(query, key, value, pattern, past_length, attention_mask, scaling)
    return output.transpose(1, 2), None


class VaswaniAttention(nn.Module):
    """Multi-head attention (section 3.2.2): self-attention, or over `key_value_states` from the encoder.

    The rows of a batch may share keys: where there are K times as many query rows as key rows (the beams or
    samples of one source), each run of K rows attends to one row of keys, which is never repeated.

    With a pattern, self-attention is sparse, and takes the padding mask [B, S] itself.
    """

    def __init__(
        self,
        config: VaswaniConfig,
        num_heads: int,
        layer_idx: int,
        is_causal: bool = False,
        pattern: SparsePattern | None = None,
    ):
        super().__init__()
        self.config = config
        self.pattern = pattern
        self.layer_idx = layer_idx
        self.is_causal = is_causal  # read by the kernels when there is no mask
        self.head_dim = config.d_model // num_heads
        self.scaling = self.head_dim**-0.5
        self.dropout = config.attention_dropout
        self.q_proj = Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.k_proj = Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.v_proj = Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.out_proj = Linear(config.d_model, config.d_model, bias=config.attention_bias)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        key_value_states: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[B, T, d_model] -> [B, T, d_model] and the weights [B, H, T, S], or None from a fused kernel."""
        rows, length = hidden_states.shape[:2]
        past_length = self._past_length(past_key_values)
        key, value = self._keys_and_values(hidden_states, key_value_states, past_key_values)
        query = self.q_proj(hidden_states).view(key.shape[0], -1, key.shape[1], self.head_dim).transpose(1, 2)

        dropout = self.dropout if self.training else 0.0
        attention: Callable
        if self.pattern is None:
            attention = self._kernel(query, key, attention_mask, dropout)
        else:
            attention, kwargs = sparse_attention_forward, {**kwargs, "past_length": past_length}
        output, weights = attention(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=self.scaling,
            **kwargs,
        )
        if weights is not None and weights.shape[0] != rows:  # [B/K, H, K·T, S] -> [B, H, T, S]
            weights = weights.unflatten(2, (-1, length)).transpose(1, 2).flatten(0, 1)
        return self.out_proj(output.reshape(rows, length, -1)), weights

    def _past_length(self, past_key_values: Cache | None) -> int | torch.Tensor:
        """How many tokens came before, where a sparse pattern has to know it."""
        if self.pattern is None or past_key_values is None:
            return 0
        if isinstance(past_key_values, EncoderDecoderCache):
            past_key_values = past_key_values.self_attention_cache
        past_length = past_key_values.get_seq_length(self.layer_idx)
        # A cache of fixed size counts in place.
        return past_length.clone() if isinstance(past_length, torch.Tensor) else past_length

    def _kernel(
        self, query: torch.Tensor, key: torch.Tensor, attention_mask: torch.Tensor | None, dropout: float
    ) -> Callable:
        """The configured kernel, or the one that does its work better for these queries."""
        implementation = self.config._attn_implementation
        if "flash" in implementation and attention_mask is not None and attention_mask.ndim == 4:
            implementation = (
                "sdpa"  # flash kernels unpad queries by the mask of the keys: wrong across stacks
            )
        if implementation == "sdpa" and gains_from_short_attention(query, key, attention_mask, dropout):
            return short_attention_forward
        return ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)

    def _keys_and_values(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None,
        past_key_values: Cache | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [B, H, S, D], from and into the cache; those of a source are computed once."""
        is_cross_attention = key_value_states is not None
        cache = past_key_values
        if isinstance(past_key_values, EncoderDecoderCache):
            if is_cross_attention:
                cache = past_key_values.cross_attention_cache
                if past_key_values.is_updated.get(self.layer_idx):
                    return cache.layers[self.layer_idx].keys, cache.layers[self.layer_idx].values
                past_key_values.is_updated[self.layer_idx] = True
            else:
                cache = past_key_values.self_attention_cache

        states = key_value_states if is_cross_attention else hidden_states
        heads = (*states.shape[:-1], -1, self.head_dim)
        key = self.k_proj(states).view(heads).transpose(1, 2)
        value = self.v_proj(states).view(heads).transpose(1, 2)
        return (key, value) if cache is None else cache.update(key, value, self.layer_idx)


class VaswaniLayer(GradientCheckpointingLayer):
    """What encoder and decoder layers share: the residual connection and the feed-forward network."""

    def __init__(self, config: VaswaniConfig, ffn_dim: int):
        super().__init__()
        self.norm_first = config.norm_order == "pre"
        self.dropout = config.dropout
        self.activation_dropout = config.activation_dropout
        self.activation_fn = ACT2FN[config.activation_function]
        self.fc1 = Linear(config.d_model, ffn_dim, bias=config.ffn_bias)
        self.fc2 = Linear(ffn_dim, config.d_model, bias=config.ffn_bias)

    def residual(self, hidden_states: torch.Tensor, norm: nn.LayerNorm, sublayer: Callable) -> torch.Tensor:
        """LayerNorm(x + Dropout(Sublayer(x))) (section 5.4), or x + Dropout(Sublayer(LayerNorm(x)))."""
        output = sublayer(norm(hidden_states) if self.norm_first else hidden_states)
        hidden_states = hidden_states + dropout(output, self.dropout, self.training)
        if (
            hidden_states.dtype == torch.float16
        ):  # the sum can pass float16's largest number, and inf turns into NaN
            limit = torch.finfo(torch.float16).max
            hidden_states = hidden_states.clamp(-limit, limit)
        return hidden_states if self.norm_first else norm(hidden_states)

    def feed_forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """FFN(x) = max(0, xW₁ + b₁)W₂ + b₂ (equation 2) with the configured activation."""
        inner = self.activation_fn(self.fc1(hidden_states))
        return self.fc2(dropout(inner, self.activation_dropout, self.training))


class VaswaniEncoderLayer(VaswaniLayer):
    """Self-attention, then feed-forward (section 3.1)."""

    def __init__(self, config: VaswaniConfig, layer_idx: int):
        super().__init__(config, config.encoder_ffn_dim)
        pattern = config.sparse_pattern("encoder", layer_idx)
        heads = config.encoder_attention_heads
        self.self_attn = VaswaniAttention(config, heads, layer_idx, pattern=pattern)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """[B, S, d_model] -> [B, S, d_model]."""
        hidden_states = self.residual(
            hidden_states, self.self_attn_layer_norm, lambda x: self.self_attn(x, attention_mask, **kwargs)[0]
        )
        return self.residual(hidden_states, self.final_layer_norm, self.feed_forward)


class VaswaniDecoderLayer(VaswaniLayer):
    """Causal self-attention, attention to the encoder's output, then feed-forward (section 3.1)."""

    def __init__(self, config: VaswaniConfig, layer_idx: int):
        super().__init__(config, config.decoder_ffn_dim)
        heads = config.decoder_attention_heads
        pattern = config.sparse_pattern("decoder", layer_idx)
        self.self_attn = VaswaniAttention(config, heads, layer_idx, is_causal=True, pattern=pattern)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.encoder_attn = VaswaniAttention(config, heads, layer_idx)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """[B, T, d_model] and the encoder's [B/K, S, d_model] -> [B, T, d_model]."""

        def self_attention(x: torch.Tensor) -> torch.Tensor:
            return self.self_attn(x, attention_mask, past_key_values=past_key_values, **kwargs)[0]

        def encoder_attention(x: torch.Tensor) -> torch.Tensor:
            return self.encoder_attn(
                x, encoder_attention_mask, encoder_hidden_states, past_key_values, **kwargs
            )[0]

        hidden_states = self.residual(hidden_states, self.self_attn_layer_norm, self_attention)
        hidden_states = self.residual(hidden_states, self.encoder_attn_layer_norm, encoder_attention)
        return self.residual(hidden_states, self.final_layer_norm, self.feed_forward)


@auto_docstring
class VaswaniPreTrainedModel(ModelCardMixin, PreTrainedModel):
    config: VaswaniConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["VaswaniEncoderLayer", "VaswaniDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def _init_weights(self, module: nn.Module) -> None:
        """Embeddings N(0, 1/d_model), so that scaled they have unit variance; projections Glorot uniform."""
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
            # The slice below does not carry the mark of a loaded weight, so ask the whole weight.
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        """`{target: source}`: the weights that this class makes one, as the config now says."""
        return {}

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """All ties. The library asks `tie_word_embeddings` alone; sharing across stacks is a field too."""
        return super().get_expanded_tied_weights_keys(True) if all_submodels else self._tied_weights_keys


class VaswaniStack(VaswaniPreTrainedModel):
    """What both stacks share: embeddings plus positions, with dropout (sections 3.4, 3.5, 5.4)."""

    def __init__(self, config: VaswaniConfig, vocab_size: int):
        super().__init__(config)
        self.dropout = config.dropout
        self.embed_tokens = TokenEmbeddings(config, vocab_size)
        learned = config.position_embedding == "learned"
        self.embed_positions = (LearnedPositions if learned else SinusoidalPositions)(config)
        self.layer_norm = nn.LayerNorm(config.d_model) if config.norm_order == "pre" else nn.Identity()
        self.gradient_checkpointing = False

    def token_embeddings(
        self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None, prefix: str = ""
    ) -> torch.Tensor:
        """[B, T, d_model] from ids, or as given.

        Raises:
            ValueError: unless exactly one of the two is given.
        """
        if (input_ids is None) == (inputs_embeds is None):
            given = "neither" if input_ids is None else "both"
            raise ValueError(f"give exactly one of {prefix}input_ids and {prefix}inputs_embeds; got {given}.")
        return self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds

    def padding_mask(self, attention_mask: torch.Tensor | None, stack: str) -> torch.Tensor | None:
        """The mask [B, S] for sparse layers, which the pattern makes the rest of.

        Raises:
            ValueError: when some layers are sparse and the mask says more than what is padding.
        """
        if attention_mask is not None and attention_mask.ndim != 2:
            if "sparse" in self.config.layer_attention(stack):
                raise ValueError(
                    "sparse attention takes a padding mask [batch, length]; got "
                    f"{list(attention_mask.shape)}. "
                    f"Set {stack}_attention='full' to give each query its own mask."
                )
            return None
        return attention_mask

    def add_positions(
        self,
        inputs_embeds: torch.Tensor,
        attention_mask: torch.Tensor | None,
        past_length: int | torch.Tensor = 0,
    ) -> torch.Tensor:
        """Positions count the tokens that the mask shows, so padding on either side changes nothing."""
        length = inputs_embeds.shape[1]
        if attention_mask is not None and attention_mask.ndim == 2:
            positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
            if positions.shape[1] != length:  # the mask covers what came before too
                new = past_length + torch.arange(length, device=positions.device)
                positions = positions.index_select(1, new)  # [B, T]
            bound = attention_mask.shape[1]
        else:
            positions = (torch.arange(length, device=inputs_embeds.device) + past_length)[None]  # [1, T]
            bound = length + past_length if isinstance(past_length, int) else None
        hidden_states = inputs_embeds + self.embed_positions(positions, bound, inputs_embeds.dtype)
        return dropout(hidden_states, self.dropout, self.training)


@auto_docstring
class VaswaniEncoder(VaswaniStack):
    _can_record_outputs = {"hidden_states": VaswaniEncoderLayer, "attentions": VaswaniAttention}

    def __init__(self, config: VaswaniConfig):
        super().__init__(config, config.vocab_size)
        self.layers = nn.ModuleList(VaswaniEncoderLayer(config, i) for i in range(config.encoder_layers))
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        inputs_embeds = self.token_embeddings(input_ids, inputs_embeds)
        hidden_states = self.add_positions(inputs_embeds, attention_mask)
        mask = None
        if "full" in self.config.layer_attention("encoder"):
            mask = create_bidirectional_mask(self.config, inputs_embeds, attention_mask)
        padding_mask = self.padding_mask(attention_mask, "encoder")
        for layer in self.layers:
            layer_mask = mask if layer.self_attn.pattern is None else padding_mask
            hidden_states = layer(hidden_states, layer_mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


@auto_docstring
class VaswaniDecoder(VaswaniStack):
    _can_record_outputs = {
        "hidden_states": VaswaniDecoderLayer,
        "attentions": OutputRecorder(VaswaniAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VaswaniAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VaswaniConfig):
        super().__init__(config, config.decoder_vocab_size)
        self.layers = nn.ModuleList(VaswaniDecoderLayer(config, i) for i in range(config.decoder_layers))
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    @auto_docstring
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        r"""
        encoder_hidden_states (`torch.Tensor` of shape `(batch_size / K, source_length, d_model)`):
            The encoder's output. K consecutive rows of the decoder (beams, samples) may share one row of it.
        """
        inputs_embeds = self.token_embeddings(input_ids, inputs_embeds, "decoder_")
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(
                DynamicCache(config=self.config), DynamicCache(config=self.config)
            )
        past_length = 0 if past_key_values is None else past_key_values.get_seq_length()

        hidden_states = self.add_positions(inputs_embeds, attention_mask, past_length)
        mask = None
        if "full" in self.config.layer_attention("decoder"):
            mask = self.self_attention_mask(inputs_embeds, attention_mask, past_key_values)
        padding_mask = self.padding_mask(attention_mask, "decoder")
        encoder_mask = self.encoder_attention_mask(
            inputs_embeds, encoder_hidden_states, encoder_attention_mask
        )
        if past_key_values is not None and encoder_mask is not None and self.takes_additive_masks:
            encoder_mask = additive_mask(encoder_mask, inputs_embeds.dtype)  # once, not in every layer
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                mask if layer.self_attn.pattern is None else padding_mask,
                encoder_hidden_states,
                encoder_mask,
                past_key_values=past_key_values,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.layer_norm(hidden_states), past_key_values=past_key_values
        )

    @property
    def takes_additive_masks(self) -> bool:
        """Whether the attention implementation takes a mask for each query and key, of any kind."""
        return self.config._attn_implementation in ("eager", "sdpa")

    def self_attention_mask(
        self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor | None, past_key_values: Cache | None
    ) -> torch.Tensor | None:
        """Causal and padding, in the form that the attention implementation wants."""
        if isinstance(past_key_values, EncoderDecoderCache):
            past_key_values = past_key_values.self_attention_cache
        if isinstance(past_key_values, BeamSearchCache):
            if past_key_values.get_seq_length():
                visible = past_key_values.step_mask(attention_mask)
                return None if visible is None else additive_mask(visible, inputs_embeds.dtype)
            past_key_values.start(inputs_embeds)
        return create_causal_mask(self.config, inputs_embeds, attention_mask, past_key_values)

    def encoder_attention_mask(
        self,
        inputs_embeds: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """The source's padding, for K target rows to each row of the source.

        Raises:
            ValueError: when the target's rows are no multiple of the source's.
        """
        rows, sources = inputs_embeds.shape[0], encoder_hidden_states.shape[0]
        if rows % sources:
            raise ValueError(
                f"{rows} rows of decoder input do not divide among {sources} rows of encoder output."
            )
        if (
            "flash" in self.config._attn_implementation
            and attention_mask is not None
            and attention_mask.ndim == 2
        ):
            nothing_hidden = not is_torchdynamo_compiling() and attention_mask.all()
            return None if nothing_hidden else attention_mask[:, None, None].bool()
        queries = inputs_embeds.reshape(
            sources, -1, inputs_embeds.shape[-1]
        )  # the K·T queries of each source
        return create_bidirectional_mask(self.config, queries, attention_mask, encoder_hidden_states)


_LAYER_TP_PLAN = {
    **{
        f"{attention}.{projection}_proj": "rowwise" if projection == "out" else "colwise"
        for attention in ("self_attn", "encoder_attn")
        for projection in ("q", "k", "v", "out")
    },
    "fc1": "colwise",
    "fc2": "rowwise",
}


@auto_docstring
class VaswaniModel(VaswaniPreTrainedModel):
    # Heads and inner features are shared out among processes; embeddings and what is tied to them stay whole.
    _tp_plan = {
        f"{stack}.layers.*.{module}": style
        for stack in ("encoder", "decoder")
        for module, style in _LAYER_TP_PLAN.items()
        if stack == "decoder" or not module.startswith("encoder_attn")
    }
    # Layer by layer; the rest, in which weights may be tied, is a group of its own.
    _fsdp_plan = {f"{stack}.layers.*": "free_full_weight" for stack in ("encoder", "decoder")}

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self.encoder = VaswaniEncoder(config)
        self.decoder = VaswaniDecoder(config)
        self.post_init()

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        """Source and target embeddings, when the config shares them."""
        shared = self.config.share_encoder_decoder_embeddings
        return {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"} if shared else {}

    def get_position_embeddings(self) -> tuple[nn.Module, nn.Module]:
        """The positions of the source and of the target."""
        return self.encoder.embed_positions, self.decoder.embed_positions

    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Allow sequences of so many tokens: learned positions are repeated (Longformer, arXiv:2004.05150).

        A model trained on short sequences so keeps what it knows of how far apart near tokens are. Sinusoids
        have no limit, and stay as they are.

        Raises:
            ValueError: for a number below 1.
        """
        if new_num_position_embeddings < 1:
            raise ValueError(f"new_num_position_embeddings={new_num_position_embeddings} must be at least 1.")
        for positions in self.get_position_embeddings():
            if isinstance(positions, LearnedPositions):
                positions.repeat_to(new_num_position_embeddings)
        self.config.max_position_embeddings = new_num_position_embeddings

    def get_input_embeddings(self) -> nn.Module:
        """The source's embeddings."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the source's embeddings, and the target's when they are shared."""
        self.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.decoder.embed_tokens = value

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Module:
        """Resize the source vocabulary, and with it the target's when both are one."""
        one_vocabulary = self.config.decoder_vocab_size == self.config.vocab_size
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        if one_vocabulary:
            self.resize_decoder_token_embeddings(self.config.vocab_size)
        return embeddings

    def resize_decoder_token_embeddings(self, new_num_tokens: int) -> nn.Module:
        """Resize the target vocabulary."""
        self.decoder.embed_tokens = self._get_resized_embeddings(self.decoder.embed_tokens, new_num_tokens)
        self.config.decoder_vocab_size = new_num_tokens
        self.tie_weights()
        return self.decoder.embed_tokens

    @can_return_tuple
    @auto_docstring
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
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, inputs_embeds, **kwargs)
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


@auto_docstring
class VaswaniForConditionalGeneration(VaswaniPreTrainedModel, SharedSourceMixin, GenerationMixin):
    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self.model = VaswaniModel(config)
        self.lm_head = nn.Linear(config.d_model, config.decoder_vocab_size, bias=False)
        self.loss_type = "ForMaskedLM"  # labels already align with logits; the default shifts them again
        self.post_init()

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        """The output projection and the target embedding (section 3.4), when the config ties them."""
        if not self.config.tie_word_embeddings:
            return {}
        stack = "encoder" if self.config.share_encoder_decoder_embeddings else "decoder"
        return {"lm_head.weight": f"model.{stack}.embed_tokens.weight"}

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Module:
        """Resize the source vocabulary, and with it the target's and the output when both are one."""
        one_vocabulary = self.config.decoder_vocab_size == self.config.vocab_size
        embeddings = self.model.resize_token_embeddings(*args, **kwargs)
        if one_vocabulary:
            self._resize_lm_head(self.config.decoder_vocab_size)
        self.vocab_size = self.config.vocab_size  # the library's own leaves it here too
        return embeddings

    def resize_decoder_token_embeddings(self, new_num_tokens: int) -> nn.Module:
        """Resize the target vocabulary and the output."""
        embeddings = self.model.resize_decoder_token_embeddings(new_num_tokens)
        self._resize_lm_head(new_num_tokens)
        return embeddings

    def get_position_embeddings(self) -> tuple[nn.Module, nn.Module]:
        """The positions of the source and of the target."""
        return self.model.get_position_embeddings()

    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Allow sequences of so many tokens, as `VaswaniModel.resize_position_embeddings` does."""
        self.model.resize_position_embeddings(new_num_position_embeddings)

    def _resize_lm_head(self, new_num_tokens: int) -> None:
        self.lm_head = self._get_resized_lm_head(self.lm_head, new_num_tokens)
        self.tie_weights()

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """The decoder's input for these labels [B, T]; collators ask for it."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    @can_return_tuple
    @auto_docstring
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
        label_smoothing: float | None = None,
        token_loss: TokenLoss | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, target_length)`, *optional*):
            The target tokens; −100 is ignored. Without `decoder_input_ids`, the labels shifted right serve.
        label_smoothing (`float`, *optional*):
            Compute the loss with this ε (section 5.4; 0 is plain cross-entropy) in one pass with the output
            projection, which takes far less time and memory. `logits` are then `None`.
        token_loss (`TokenLoss`, *optional*):
            In place of labels, any loss of the logits, computed in one pass with the output projection too.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        loss = logits = None
        if token_loss is not None:
            loss = self.sum_of(token_loss, outputs.last_hidden_state)
        elif labels is not None and label_smoothing is not None:
            loss = self.smoothed_loss(outputs.last_hidden_state, labels, label_smoothing, **kwargs)
        else:
            logits = self.lm_head(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))
            if labels is not None:
                loss = self.loss_function(logits, labels, vocab_size=logits.shape[-1], **kwargs)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def sum_of(self, token_loss: TokenLoss, hidden_states: torch.Tensor) -> torch.Tensor:
        """A loss of the logits, summed over the tokens that count; from the decoder's [B, T, d_model]."""
        if type(self.lm_head) is nn.Linear:
            return projected_loss(hidden_states, self.lm_head.weight, token_loss)
        logits = self.lm_head(hidden_states[token_loss.kept])  # an adapter took its place
        return token_loss.function(logits, slice(0, len(logits)))

    def smoothed_loss(
        self,
        hidden_states: torch.Tensor,
        labels: torch.Tensor,
        label_smoothing: float,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """Cross-entropy of the decoder's output [B, T, d_model], divided by the items of the whole batch."""
        if type(self.lm_head) is nn.Linear:
            loss = linear_cross_entropy(hidden_states, self.lm_head.weight, labels, label_smoothing)
        else:  # an adapter took its place, and only it knows what it computes
            logits = self.lm_head(hidden_states).float().flatten(0, -2)
            loss = nn.functional.cross_entropy(
                logits, labels.flatten(), reduction="sum", label_smoothing=label_smoothing
            )
        return loss / (
            (labels != -100).sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
        )


# Saved models bring the code of `model/` with them, for users without the plugin.
VaswaniModel.register_for_auto_class("AutoModel")
VaswaniForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")
