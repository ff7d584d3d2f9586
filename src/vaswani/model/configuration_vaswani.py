# Copyright 2026 The vaswani authors. Licensed under the Apache License, Version 2.0.
"""Configurations of the Transformer (Vaswani et al., 2017, arXiv:1706.03762) and its successors.

Everything that changes a model's results is a field and is saved with the model. Options that change only the
speed, such as the attention kernel, are arguments of `from_pretrained` and are not saved.
"""

import copy
import difflib
from dataclasses import fields
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.utils import logging

from .sparse_pattern import SparsePattern

logger = logging.get_logger(__name__)

# Larger values are a mistake, or an attack on the memory of the machine that loads the configuration.
MAX_LAYERS = 1_000
LARGEST_SIZE = 2**27  # tokens, positions and widths
MAX_SPARSE_BLOCKS = 2**10  # blocks of each kind: window, global, random
MAX_LABELS = 2**18
SIZES = {  # minimum and maximum
    **dict.fromkeys(("vocab_size", "decoder_vocab_size", "d_model"), (1, LARGEST_SIZE)),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings"), (1, LARGEST_SIZE)),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), (1, LARGEST_SIZE)),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), (1, MAX_LAYERS)),
    **dict.fromkeys(("token_type_vocab_size", "sinusoidal_offset"), (0, LARGEST_SIZE)),
    **dict.fromkeys(("sparse_window_blocks", "sparse_global_blocks"), (0, MAX_SPARSE_BLOCKS)),
    "sparse_random_blocks": (0, MAX_SPARSE_BLOCKS),
    "sparse_block_size": (0, 2**16),
    "key_dim": (1, LARGEST_SIZE),
}
RATES = ("dropout", "attention_dropout", "activation_dropout", "word_dropout", "classifier_dropout")
LARGEST_NUMBERS = {"layer_norm_eps": 1.0, "initializer_range": 10.0}
ACTIVATIONS = ("activation_function", "classifier_activation")


class AnyKernelReturnsAttentions:
    """Configuration that accepts `output_attentions` with any kernel; the library requires eager attention.

    Calls that return attention weights use the reference implementation.
    """

    _output_attentions: bool | None

    @property
    def output_attentions(self) -> bool | None:
        """Return whether every call returns attention weights."""
        return self._output_attentions

    @output_attentions.setter
    def output_attentions(self, value: bool | None) -> None:
        self._output_attentions = value

    def validate_output_attentions(self) -> None:
        """Accept any value."""


@strict
class VaswaniFamilyConfig(AnyKernelReturnsAttentions, PreTrainedConfig):
    """Base class of the configurations. The defaults are those of the paper (table 3).

    Args:
        encoder_layers, decoder_layers: number of layers N of each stack (section 3.1).
        encoder_attention_heads, decoder_attention_heads: heads h (section 3.2.2); they must divide `d_model`.
        key_dim: width d_k of the queries and keys of each head; `None` for d_model / h, the width d_v of its
            values (section 3.2.2; rows B of table 3 have smaller ones).
        encoder_ffn_dim, decoder_ffn_dim: inner width of the feed-forward layers (section 3.3).
        encoder_attention, decoder_attention: self-attention of each stack: `"full"`, `"sparse"` (see
            `SparsePattern`) or a list with one of these for each layer, as GPT-3 alternates them (Brown et
            al., 2020, section 2.1). Cross-attention is always full.
        vocab_size: size of the vocabulary; of the source vocabulary, if the target has its own.
        d_model: width of the residual stream.
        dropout: dropout rate of sub-layer outputs and of the sums of embeddings and positions (section 5.4).
        attention_dropout, activation_dropout: dropout rates of attention weights and of activations.
        word_dropout: probability p of replacing the whole embedding of a token by zeros in training; the
            other embeddings are divided by 1 - p. Each token of source and target is drawn independently.
        activation_function: `"relu"` (the paper), `"gelu"`, `"silu"` or another of transformers' `ACT2FN`.
        norm_order: `"post"`, LayerNorm(x + Dropout(Sublayer(x))), as in the paper; or `"pre"`,
            x + Dropout(Sublayer(LayerNorm(x))) with a final norm on each stack (Xiong et al., 2020).
        final_norm: add a norm after each stack; `None` adds it exactly when `norm_order` is `"pre"`.
        embedding_norm: apply a norm to the sums of embeddings and positions, before dropout (BERT).
        layer_norm_eps: the number added to the variance in every norm.
        norm_bias: use biases in every norm.
        position_embedding: `"sinusoidal"` (section 3.5, any length), `"learned"` (up to
            `max_position_embeddings`) or `"none"`.
        sinusoidal_layout: `"interleaved"` alternates sine and cosine (the paper); `"concatenated"` puts all
            sines first (Marian); `"tensor2tensor"` does too, with wavelengths up to 2π·10000 (fairseq, FSMT).
        sinusoidal_offset: number of the first position (fairseq and FSMT: 2).
        max_position_embeddings: longest sequence with learned positions, in tokens.
        position_from_mask: count only tokens that the attention mask shows, so that left padding changes
            nothing; `False` counts padding too, as in BERT, GPT-2 and Marian.
        attention_bias: use biases in the attention projections.
        attention_output_bias: use a bias in attention's output projection; `None` copies `attention_bias`.
        ffn_bias, lm_head_bias: use biases in the feed-forward layers and in the output projection.
        scale_embedding: multiply embeddings by sqrt(d_model) (section 3.4).
        tie_word_embeddings: use the embedding matrix as the output projection (section 3.4).
        initializer_range: standard deviation of new weights; `None` draws embeddings from N(0, 1/d_model) and
            projections from Glorot's uniform distribution.
        sparse_block_size, sparse_window_blocks, sparse_global_blocks, sparse_global_tokens,
            sparse_random_blocks, sparse_seed: the pattern of sparse layers, see `SparsePattern`.
        pad_token_id, bos_token_id, eos_token_id: token ids of padding, and of the beginning and end of texts.

    Raises:
        ValueError: a value is out of range; the message gives the range.
    """

    # The stacks of the model, and the class that each Auto class loads from the code in a checkpoint.
    stacks: ClassVar[tuple[str, ...]] = ()
    auto_classes: ClassVar[dict[str, str]] = {}
    base_model_fsdp_plan: ClassVar = {}  # the base model has the plan

    vocab_size: int = 37000
    d_model: int = 512
    key_dim: int | None = None
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    word_dropout: float | int = 0.0
    activation_function: str = "relu"
    norm_order: Literal["post", "pre"] = "post"
    final_norm: bool | None = None
    embedding_norm: bool = False
    layer_norm_eps: float | int = 1e-5
    norm_bias: bool = True
    position_embedding: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    sinusoidal_layout: Literal["interleaved", "concatenated", "tensor2tensor"] = "interleaved"
    sinusoidal_offset: int = 0
    max_position_embeddings: int = 1024
    position_from_mask: bool = True
    attention_bias: bool = True
    attention_output_bias: bool | None = None
    ffn_bias: bool = True
    lm_head_bias: bool = False
    scale_embedding: bool = True
    tie_word_embeddings: bool = True
    initializer_range: float | None = None
    sparse_block_size: int = 64
    sparse_window_blocks: int = 3
    sparse_global_blocks: int = 2
    sparse_global_tokens: int = 0
    sparse_random_blocks: int = 3
    sparse_seed: int = 0
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2

    def __post_init__(self, **kwargs):
        self._check_before_building(kwargs)
        self._warn_of_similar_names(kwargs)
        if self.final_norm is None:
            self.final_norm = self.norm_order == "pre"
        if self.attention_output_bias is None:
            self.attention_output_bias = self.attention_bias
        auto_map = self._checked_auto_map(kwargs.get("auto_map", {}))
        super().__post_init__(**{**kwargs, "auto_map": auto_map})

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Load a saved configuration; `VaswaniFamilyConfig` itself loads the class of the `model_type`."""
        classes = {each.model_type: each for each in VaswaniFamilyConfig.__subclasses__()}
        if cls is VaswaniFamilyConfig and config_dict.get("model_type") in classes:
            return classes[config_dict["model_type"]].from_dict(config_dict, **kwargs)
        return super().from_dict(config_dict, **kwargs)

    def _check_before_building(self, further: dict[str, Any]) -> None:
        """Raise `ValueError` for sizes or labels that would exhaust memory before the fields are validated.

        `further` holds the arguments that are not fields of this class; transformers sets them later.
        """
        self.validate_sizes()
        num_labels = further.get("num_labels")
        is_whole = isinstance(num_labels, int) and not isinstance(num_labels, bool)
        if num_labels is not None and not (is_whole and 1 <= num_labels <= MAX_LABELS):
            raise ValueError(f"num_labels={num_labels!r} must be a whole number from 1 to {MAX_LABELS:,}.")
        labels = self.id2label or {}
        if len(labels) > MAX_LABELS:
            raise ValueError(f"id2label has {len(labels):,} labels; expected at most {MAX_LABELS:,}.")
        if strange := [label for label in labels if not str(label).isdecimal()]:
            raise ValueError(f"id2label has the key {strange[0]!r}; expected numbers of labels: 0, 1, ...")
        if further.get("per_layer_config"):
            raise ValueError("per_layer_config is not supported: all layers have one shape; leave it out.")

    def _warn_of_similar_names(self, further: dict[str, Any]) -> None:
        """Warn of an argument that has no effect and resembles a field: transformers keeps any name."""
        known = {field.name for field in fields(self)} | self.attribute_map.keys()
        for name in further.keys() - known:
            if similar := difflib.get_close_matches(name, known, n=1, cutoff=0.85):
                logger.warning(
                    f"{type(self).__name__} has no field {name!r}, which has no effect; did you mean "
                    f"{similar[0]!r}?"
                )

    def _checked_auto_map(self, found: dict[str, str]) -> dict[str, str]:
        """Return `auto_classes`; raise `ValueError` if a checkpoint names other code, which would be run.

        A subclass with its own `model_type` has its own classes; its `auto_map` is returned unchanged.
        """
        if not isinstance(found, dict):
            raise ValueError(f"auto_map={found!r} must give a class for each Auto class; delete it.")
        named_in: Any = next(each for each in type(self).__mro__ if "auto_classes" in vars(each))
        if self.model_type != named_in.model_type:
            return dict(found)
        for name, reference in found.items():
            if self.auto_classes.get(name) != reference:
                raise ValueError(
                    f"auto_map names {reference!r} for {name}, which is no code of a {self.model_type} "
                    "model; delete auto_map from config.json, or give a model of your own a model_type of "
                    "its own."
                )
        return dict(self.auto_classes)

    def layer_attention(self, stack: str) -> list[str]:
        """Return `"full"` or `"sparse"` for each layer of the `"encoder"` or the `"decoder"`."""
        attention = getattr(self, f"{stack}_attention")
        return [attention] * getattr(self, f"{stack}_layers") if isinstance(attention, str) else attention

    def head_widths(self, num_heads: int) -> tuple[int, int]:
        """Return the widths d_k and d_v of the keys and the values of each of so many heads."""
        value_dim = self.d_model // num_heads
        return value_dim if self.key_dim is None else self.key_dim, value_dim

    def key_width(self, stack: str) -> int:
        """Return the width h · d_k of the keys of all heads of the `"encoder"` or the `"decoder"`."""
        heads: int = getattr(self, f"{stack}_attention_heads")
        return heads * self.head_widths(heads)[0]

    def key_value_width(self, stack: str) -> int:
        """Return the width h · (d_k + d_v) of the keys and values of all heads, which a cache keeps."""
        return self.key_width(stack) + self.d_model

    def sparse_pattern(self, stack: str, layer: int) -> SparsePattern | None:
        """Return the sparse pattern of a layer's self-attention, or `None` if it is full."""
        if self.layer_attention(stack)[layer] == "full":
            return None
        num_heads = getattr(self, f"{stack}_attention_heads")
        return SparsePattern.from_config(self, num_heads, layer, causal=stack == "decoder")

    def validate_sizes(self):
        """Check that every size is within limits that a machine can hold; some sizes may be 0."""
        limits = {name: bounds for name, bounds in SIZES.items() if hasattr(self, name)}
        limits["sparse_global_tokens"] = 0, MAX_SPARSE_BLOCKS * max(1, self.sparse_block_size)
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name}={value} must be at least {least} and at most {most:,}.")

    def validate_heads(self):
        """Check that the heads divide the width evenly (section 3.2.2: d_v = d_model / h)."""
        for name in (f"{stack}_attention_heads" for stack in self.stacks):
            heads, width = getattr(self, name), self.d_model
            if heads > 0 and width % heads:
                fitting = max(width - width % heads, heads)
                raise ValueError(
                    f"d_model={width} must be divisible by {name}={heads}; try d_model={fitting}."
                )

    def validate_positions(self):
        """Check that sinusoids come in pairs of sine and cosine."""
        if self.sinusoidal_layout == "tensor2tensor" and self.d_model < 4:
            raise ValueError(
                f'd_model={self.d_model} must be at least 4 for sinusoidal_layout="tensor2tensor".'
            )
        if self.position_embedding == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"d_model={self.d_model} must be even for sinusoidal positions; "
                f'try d_model={self.d_model + 1} or position_embedding="learned".'
            )

    def validate_attention(self):
        """Check that each layer is full or sparse, and that the pattern of sparse layers is possible."""
        for stack in self.stacks:
            attention, num_layers = getattr(self, f"{stack}_attention"), getattr(self, f"{stack}_layers")
            kinds = [attention] if isinstance(attention, str) else attention
            if strange := set(kinds) - {"full", "sparse"}:
                raise ValueError(
                    f'{stack}_attention={min(strange)!r} must be "full", "sparse" or a list of these.'
                )
            if len(kinds) != num_layers and kinds is attention:
                raise ValueError(
                    f"{stack}_attention lists {len(kinds)} layers and {stack}_layers={num_layers}; "
                    "list as many."
                )
            if "sparse" in kinds:
                try:
                    self.sparse_pattern(stack, kinds.index("sparse"))
                except ValueError as error:
                    raise ValueError(f"sparse attention in the {stack}: sparse_{error}") from None

    def validate_dropout(self):
        """Check that dropout rates are probabilities below one."""
        for name in RATES:
            if not 0 <= (getattr(self, name, None) or 0) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 0 and below 1.")

    def validate_activation(self):
        """Check that transformers knows the activations."""
        for name in ACTIVATIONS:
            activation = getattr(self, name, None)
            if activation is not None and activation not in ACT2FN:
                raise ValueError(
                    f"{name}={activation!r} is unknown; expected "
                    f'"relu", "gelu", "silu" or another of {", ".join(sorted(ACT2FN))}.'
                )

    def validate_numbers(self):
        """Check the epsilon of norms and the standard deviation of new weights."""
        for name, largest in LARGEST_NUMBERS.items():
            value = getattr(self, name)
            if value is not None and not 0 < value <= largest:
                raise ValueError(f"{name}={value} must be above 0 and at most {largest:g}.")

    def validate_vocabularies(self):
        """Check that the special tokens lie inside the vocabulary."""
        names = ("pad_token_id", "bos_token_id", "eos_token_id")
        self._check_tokens(dict.fromkeys(names, self.vocab_size))

    def _check_tokens(self, limits: dict[str, int]) -> None:
        """Raise `ValueError` unless each token id is below its limit, the size of a vocabulary."""
        for name, limit in limits.items():
            tokens = getattr(self, name)
            for token in tokens if isinstance(tokens, list) else [tokens]:
                if token is not None and not 0 <= token < limit:
                    raise ValueError(
                        f"{name}={token} lies outside the vocabulary of {limit} tokens (0 to {limit - 1})."
                    )


@strict
class VaswaniConfig(VaswaniFamilyConfig):
    """Configuration of a `VaswaniModel`, an encoder-decoder. The defaults are the paper's base model.

    Args:
        decoder_vocab_size: size of the target vocabulary; `None` if source and target share one.
        share_encoder_decoder_embeddings: embed source and target by one matrix; a token id must then mean the
            same in both. `None` shares exactly when `decoder_vocab_size` is not given.
        decoder_start_token_id: token id that starts the decoder's input.
        use_cache: keep keys and values of earlier tokens while decoding.

    All other arguments, and the errors, are those of `VaswaniFamilyConfig`.
    """

    model_type = "vaswani"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]
    stacks = ("encoder", "decoder")
    auto_classes = {
        "AutoConfig": "configuration_vaswani.VaswaniConfig",
        "AutoModel": "modeling_vaswani.VaswaniModel",
        "AutoModelForSeq2SeqLM": "modeling_vaswani.VaswaniForConditionalGeneration",
        "AutoModelForPreTraining": "modeling_vaswani.VaswaniForConditionalGeneration",
    }
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }

    decoder_vocab_size: int | None = None
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    share_encoder_decoder_embeddings: bool | None = None
    encoder_attention: str | list[str] = "full"
    decoder_attention: str | list[str] = "full"
    use_cache: bool = True
    is_encoder_decoder: bool = True
    decoder_start_token_id: int | None = 1

    def __post_init__(self, **kwargs):
        if self.share_encoder_decoder_embeddings is None:
            self.share_encoder_decoder_embeddings = self.decoder_vocab_size is None
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        super().__post_init__(**kwargs)

    def get_text_config(self, decoder=None, encoder=None):
        """Return the configuration of one side for transformers' generation: `vocab_size` is the target's.

        With `encoder=True`, `vocab_size` is the source's. With two vocabularies, the target's is a copy;
        do not change it.
        """
        config = super().get_text_config(decoder=decoder, encoder=encoder)
        if self.decoder_vocab_size in (None, self.vocab_size) or (encoder and not decoder):
            return config
        config = copy.copy(config)
        config.vocab_size = self.decoder_vocab_size
        return config

    def validate_vocabularies(self):
        """Check that shared embeddings have one vocabulary, and that special tokens lie inside theirs."""
        source, target = self.vocab_size, self.decoder_vocab_size or self.vocab_size
        if self.share_encoder_decoder_embeddings and source != target:
            raise ValueError(
                f"share_encoder_decoder_embeddings=True needs one vocabulary, but vocab_size={source} and "
                f"decoder_vocab_size={target}; set share_encoder_decoder_embeddings=False."
            )
        of_target = ("decoder_start_token_id", "bos_token_id", "eos_token_id")
        self._check_tokens({"pad_token_id": min(source, target), **dict.fromkeys(of_target, target)})


@strict
class VaswaniEncoderConfig(VaswaniFamilyConfig):
    """Configuration of a `VaswaniEncoderModel`. The defaults are BERT-base (Devlin et al., 2019).

    Args:
        token_type_vocab_size: number of token types (segments) with an embedding; 0 for none.
        pooler: add a layer tanh(W h + b) on a text's state h. `None`: in the base model and in models that
            use the layer; `True`: in all models, as in BigBird; `False`: only in models that use it.
        mlm_transform: apply LayerNorm(activation(W h + b)) before the output projection of masked tokens.
        classifier_activation: `None` classifies the pooled state (BERT); a name of `ACT2FN` classifies
            activation(W h + b) of a text's state h (DistilBERT: `"relu"`).
        classifier_pooling: a text's state is that of its first token (`"cls"`) or the mean of all (`"mean"`).
        classifier_dropout: dropout rate before the classifiers; `None` copies `dropout`.

    All other arguments, and the errors, are those of `VaswaniFamilyConfig`.
    """

    model_type = "vaswani_encoder"
    stacks = ("encoder",)
    auto_classes = {
        "AutoConfig": "configuration_vaswani.VaswaniEncoderConfig",
        "AutoModel": "modeling_vaswani_encoder.VaswaniEncoderModel",
        "AutoModelForTextEncoding": "modeling_vaswani_encoder.VaswaniEncoderModel",
        "AutoModelForPreTraining": "modeling_vaswani_encoder.VaswaniForPreTraining",
        "AutoModelForMaskedLM": "modeling_vaswani_encoder.VaswaniForMaskedLM",
        "AutoModelForSequenceClassification": "modeling_vaswani_encoder.VaswaniForSequenceClassification",
        "AutoModelForTokenClassification": "modeling_vaswani_encoder.VaswaniForTokenClassification",
        "AutoModelForQuestionAnswering": "modeling_vaswani_encoder.VaswaniForQuestionAnswering",
        "AutoModelForMultipleChoice": "modeling_vaswani_encoder.VaswaniForMultipleChoice",
        "AutoModelForNextSentencePrediction": "modeling_vaswani_encoder.VaswaniForNextSentencePrediction",
    }
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
        "intermediate_size": "encoder_ffn_dim",
        "type_vocab_size": "token_type_vocab_size",
    }

    vocab_size: int = 30522
    d_model: int = 768
    encoder_layers: int = 12
    encoder_attention_heads: int = 12
    encoder_ffn_dim: int = 3072
    encoder_attention: str | list[str] = "full"
    attention_dropout: float | int = 0.1
    activation_function: str = "gelu"
    embedding_norm: bool = True
    layer_norm_eps: float | int = 1e-12
    position_embedding: Literal["sinusoidal", "learned", "none"] = "learned"
    max_position_embeddings: int = 512
    scale_embedding: bool = False
    lm_head_bias: bool = True
    initializer_range: float | None = 0.02
    token_type_vocab_size: int = 2
    pooler: bool | None = None
    mlm_transform: bool = True
    classifier_activation: str | None = None
    classifier_pooling: Literal["cls", "mean"] = "cls"
    classifier_dropout: float | int | None = None


@strict
class VaswaniDecoderConfig(VaswaniFamilyConfig):
    """Configuration of a `VaswaniDecoderModel`. The defaults are GPT-2 small (Radford et al., 2019).

    Args:
        use_cache: keep keys and values of earlier tokens while decoding.

    All other arguments, and the errors, are those of `VaswaniFamilyConfig`.
    """

    model_type = "vaswani_decoder"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]
    stacks = ("decoder",)
    auto_classes = {
        "AutoConfig": "configuration_vaswani.VaswaniDecoderConfig",
        "AutoModel": "modeling_vaswani_decoder.VaswaniDecoderModel",
        "AutoModelForCausalLM": "modeling_vaswani_decoder.VaswaniForCausalLM",
        "AutoModelForPreTraining": "modeling_vaswani_decoder.VaswaniForCausalLM",
        **{
            f"AutoModelFor{task}": f"modeling_vaswani_decoder.VaswaniDecoderFor{task}"
            for task in ("SequenceClassification", "TokenClassification", "QuestionAnswering")
        },
    }
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "decoder_attention_heads",
        "num_hidden_layers": "decoder_layers",
        "intermediate_size": "decoder_ffn_dim",
        "decoder_vocab_size": "vocab_size",
    }

    vocab_size: int = 50257
    d_model: int = 768
    decoder_layers: int = 12
    decoder_attention_heads: int = 12
    decoder_ffn_dim: int = 3072
    decoder_attention: str | list[str] = "full"
    attention_dropout: float | int = 0.1
    activation_function: str = "gelu_new"
    norm_order: Literal["post", "pre"] = "pre"
    position_embedding: Literal["sinusoidal", "learned", "none"] = "learned"
    scale_embedding: bool = False
    initializer_range: float | None = 0.02
    use_cache: bool = True


for _config_class in (VaswaniConfig, VaswaniEncoderConfig, VaswaniDecoderConfig):
    _config_class.register_for_auto_class()
