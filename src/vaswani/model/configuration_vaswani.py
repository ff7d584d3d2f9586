# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Configuration of the encoder-decoder Transformer (Vaswani et al., 2017, arXiv:1706.03762).

What changes the numbers is a field here and is saved with the model. What only changes speed, such as the
attention kernel, is an argument of `from_pretrained` and is not.
"""

from typing import ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from .sparse_pattern import SparsePattern

# Which class of the code that travels with a checkpoint serves which Auto class.
AUTO_MAP = {
    "AutoConfig": "configuration_vaswani.VaswaniConfig",
    "AutoModel": "modeling_vaswani.VaswaniModel",
    "AutoModelForSeq2SeqLM": "modeling_vaswani.VaswaniForConditionalGeneration",
}

# Beyond these a configuration is a mistake, or an attack on the memory of whoever loads it.
MOST_LAYERS = 1_000
LARGEST_SIZE = 2**27  # tokens, positions and widths
LARGEST_SPARSE_SIZE = 2**16  # tokens in a block, and blocks that a block sees


@strict
class VaswaniConfig(PreTrainedConfig):
    """Shape and behaviour of a `VaswaniModel`. The defaults are the paper's base model (table 3).

    Args:
        vocab_size: size of the source vocabulary, and of the target's when that is shared.
        decoder_vocab_size: size of the target vocabulary; `None` means `vocab_size`: one serves both.
        d_model: width of the residual stream.
        encoder_layers, decoder_layers: number of layers N (section 3.1).
        encoder_attention_heads, decoder_attention_heads: heads h (section 3.2.2), which divide `d_model`.
        encoder_ffn_dim, decoder_ffn_dim: inner width of the feed-forward layers (section 3.3).
        dropout: on each sub-layer's output and on the sums of embeddings and positions (section 5.4).
        attention_dropout: on the attention weights.
        activation_dropout: on the feed-forward layers' inner activations.
        activation_function: `"relu"` (the paper), `"gelu"`, `"silu"` or another of transformers' `ACT2FN`.
        norm_order: `"post"` computes LayerNorm(x + Dropout(Sublayer(x))) as the paper does; `"pre"` computes
            x + Dropout(Sublayer(LayerNorm(x))) and adds a final norm to each stack (Xiong et al., 2020).
        position_embedding: `"sinusoidal"` (section 3.5, any length) or `"learned"` (up to
            `max_position_embeddings`).
        sinusoidal_layout: `"interleaved"` alternates sine and cosine as the paper writes it; `"concatenated"`
            puts all sines first, as tensor2tensor and Marian do.
        max_position_embeddings: the longest sequence that learned positions allow; sinusoids know no limit.
        attention_bias: biases in the four attention projections.
        ffn_bias: biases in the two feed-forward projections.
        scale_embedding: multiply embeddings by sqrt(d_model) (section 3.4).
        share_encoder_decoder_embeddings: one matrix embeds source and target; needs one vocabulary.
            `None` shares exactly when the two vocabularies have one size.
        tie_word_embeddings: the output projection is the target embedding (section 3.4).
        encoder_attention, decoder_attention: self-attention of each stack: `"full"`, `"sparse"` (see
            `SparsePattern`) or a list with one of these for each layer. Attention to the source is full.
        sparse_block_size: tokens in a block of sparse attention.
        sparse_window_blocks: blocks around the query that it sees, its own among them.
        sparse_global_blocks: blocks at the start that see all and that all see.
        sparse_global_tokens: in place of these, so many tokens at the start, in blocks of their own (ETC).
        sparse_random_blocks: blocks drawn for each layer, head and query block.
        sparse_seed: which are drawn.

    Raises:
        ValueError: when a value is impossible, naming it and what would be possible.
    """

    model_type = "vaswani"
    keys_to_ignore_at_inference = ["past_key_values"]
    base_model_fsdp_plan: ClassVar = {}  # the plan is that of `VaswaniModel`
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }

    vocab_size: int = 37000
    decoder_vocab_size: int | None = None
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    activation_function: str = "relu"
    norm_order: Literal["post", "pre"] = "post"
    position_embedding: Literal["sinusoidal", "learned"] = "sinusoidal"
    sinusoidal_layout: Literal["interleaved", "concatenated"] = "interleaved"
    max_position_embeddings: int = 1024
    attention_bias: bool = True
    ffn_bias: bool = True
    scale_embedding: bool = True
    share_encoder_decoder_embeddings: bool | None = None
    tie_word_embeddings: bool = True
    encoder_attention: str | list[str] = "full"
    decoder_attention: str | list[str] = "full"
    sparse_block_size: int = 64
    sparse_window_blocks: int = 3
    sparse_global_blocks: int = 2
    sparse_global_tokens: int = 0
    sparse_random_blocks: int = 3
    sparse_seed: int = 0
    use_cache: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1

    def __post_init__(self, **kwargs):
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        if self.share_encoder_decoder_embeddings is None:
            self.share_encoder_decoder_embeddings = self.decoder_vocab_size == self.vocab_size
        super().__post_init__(**{**kwargs, "auto_map": _checked_auto_map(kwargs.get("auto_map", {}))})

    def layer_attention(self, stack: str) -> list[str]:
        """`"full"` or `"sparse"` for each layer of the `"encoder"` or the `"decoder"`."""
        attention = getattr(self, f"{stack}_attention")
        return [attention] * getattr(self, f"{stack}_layers") if isinstance(attention, str) else attention

    def sparse_pattern(self, stack: str, layer: int) -> SparsePattern | None:
        """Who sees whom in the self-attention of a layer, or `None` where all see all."""
        if self.layer_attention(stack)[layer] == "full":
            return None
        num_heads = getattr(self, f"{stack}_attention_heads")
        return SparsePattern.from_config(self, num_heads, layer, causal=stack == "decoder")

    def validate_sizes(self):
        """Every size is a positive number that a machine can hold; layer counts may not be zero either."""
        sizes = ("vocab_size", "decoder_vocab_size", "d_model", "encoder_ffn_dim", "decoder_ffn_dim")
        heads = ("encoder_attention_heads", "decoder_attention_heads")
        limits = dict.fromkeys((*sizes, *heads, "max_position_embeddings"), LARGEST_SIZE)
        limits |= dict.fromkeys(("encoder_layers", "decoder_layers"), MOST_LAYERS)
        sparse = ("block_size", "window_blocks", "global_blocks", "global_tokens", "random_blocks")
        for name, limit in limits.items():
            if not 1 <= getattr(self, name) <= limit:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1 and at most {limit:,}.")
        for name in (f"sparse_{name}" for name in sparse):
            if getattr(self, name) > LARGEST_SPARSE_SIZE:
                raise ValueError(f"{name}={getattr(self, name)} must be at most {LARGEST_SPARSE_SIZE:,}.")

    def validate_heads(self):
        """The heads divide the width evenly (section 3.2.2: d_k = d_v = d_model / h)."""
        for name in ("encoder_attention_heads", "decoder_attention_heads"):
            heads, width = getattr(self, name), self.d_model
            if heads > 0 and width % heads:
                fitting = max(width - width % heads, heads)
                raise ValueError(
                    f"d_model={width} must be divisible by {name}={heads}; try d_model={fitting}."
                )

    def validate_positions(self):
        """Sinusoids come in pairs of sine and cosine."""
        if self.position_embedding == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"d_model={self.d_model} must be even for sinusoidal positions; "
                f'try d_model={self.d_model + 1} or position_embedding="learned".'
            )

    def validate_attention(self):
        """Each layer is full or sparse, and the pattern is possible where one is."""
        for stack in ("encoder", "decoder"):
            layers, attention = self.layer_attention(stack), getattr(self, f"{stack}_attention")
            if set(layers) - {"full", "sparse"}:
                raise ValueError(
                    f'{stack}_attention={attention!r} must be "full", "sparse" or a list of these.'
                )
            if len(layers) != getattr(self, f"{stack}_layers"):
                raise ValueError(
                    f"{stack}_attention lists {len(layers)} layers and "
                    f"{stack}_layers={getattr(self, f'{stack}_layers')}; list as many."
                )
            if "sparse" in layers:
                try:
                    self.sparse_pattern(stack, layers.index("sparse"))
                except ValueError as error:
                    raise ValueError(f"sparse attention in the {stack}: sparse_{error}") from None

    def validate_dropout(self):
        """Dropout rates are probabilities below one."""
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 0 and below 1.")

    def validate_activation(self):
        """The activation is one that transformers knows."""
        if self.activation_function not in ACT2FN:
            raise ValueError(
                f"activation_function={self.activation_function!r} is unknown; "
                f'expected "relu", "gelu", "silu" or another of {", ".join(sorted(ACT2FN))}.'
            )

    def validate_vocabularies(self):
        """Shared embeddings need one vocabulary, and the special tokens lie inside theirs."""
        source, target = self.vocab_size, self.decoder_vocab_size or self.vocab_size
        if self.share_encoder_decoder_embeddings and source != target:
            raise ValueError(
                f"share_encoder_decoder_embeddings=True needs one vocabulary, but vocab_size={source} and "
                f"decoder_vocab_size={target}; set share_encoder_decoder_embeddings=False."
            )
        limits = {
            "pad_token_id": min(source, target),
            "decoder_start_token_id": target,
            "bos_token_id": target,
        }
        for name, limit in limits.items():
            token = getattr(self, name)
            if token is not None and not 0 <= token < limit:
                raise ValueError(
                    f"{name}={token} lies outside the vocabulary of {limit} tokens (0 to {limit - 1})."
                )


def _checked_auto_map(found: dict[str, str]) -> dict[str, str]:
    """Ours, unless a checkpoint names other code, which nobody should run unawares."""
    if not isinstance(found, dict):
        raise ValueError(f"auto_map={found!r} must give a class for each Auto class; delete it.")
    for name, reference in found.items():
        if AUTO_MAP.get(name) != reference:
            raise ValueError(
                f"auto_map names {reference!r} for {name}, which is no code of a vaswani model; delete "
                "auto_map from config.json, or give a model of your own a model_type of its own."
            )
    return dict(AUTO_MAP)


VaswaniConfig.register_for_auto_class()
