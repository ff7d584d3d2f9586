"""The arguments of a pre-training: for each objective, one class for new weights and one for a given model.

A pre-training starts from new weights in the given shape, or from the weights of a `model`, which keeps its
shape and tokenizer. The default shapes are BERT-base (Devlin et al., 2019, arXiv:1810.04805) and GPT-2 small
(Radford et al., 2019).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from vaswani.data.sources.corpus_spec import TextCorpusSpec
from vaswani.training.config.arguments import (
    CardArguments,
    CorpusArguments,
    DataArguments,
    FamilyArguments,
    ModelArguments,
    unused_beside_tokenizer,
)
from vaswani.training.config.flags import check_choice
from vaswani.training.config.options import (
    FIELDS_WITHOUT_EFFECT,
    BaseConfig,
    Section,
    field_with_default,
    fields_fixed_by_model,
    option,
)
from vaswani.training.config.training_arguments import BaseTrainingArguments

SHORTEST_SEQUENCE = 8  # tokens
ONE_STACK_HELP = "masked trains an encoder, as BERT; causal trains a decoder, as GPT."
ENCODER_DECODER_HELP = (
    "span_denoising removes spans of tokens, as T5; gap_sentences removes sentences, as PEGASUS."
)
_default = partial(field_with_default, FamilyArguments)


@dataclass
class EncoderArguments(FamilyArguments):
    """The fields of `VaswaniEncoderConfig` that are not derived from the data."""

    d_model: int = _default("d_model", 768)
    attention_dropout: float = _default("attention_dropout", 0.1)
    activation_function: str = _default("activation_function", "gelu")
    embedding_norm: bool = _default("embedding_norm", True)
    layer_norm_eps: float = _default("layer_norm_eps", 1e-12)
    position_embedding: Literal["sinusoidal", "learned", "none"] = _default("position_embedding", "learned")
    max_position_embeddings: int = _default("max_position_embeddings", 512)
    lm_head_bias: bool = _default("lm_head_bias", True)
    scale_embedding: bool = _default("scale_embedding", False)
    initializer_range: float | None = _default("initializer_range", 0.02)
    encoder_layers: int = option(12, "Number of layers.")
    encoder_attention_heads: int = option(12, "Attention heads per layer; must divide d_model.")
    encoder_ffn_dim: int = option(3072, "Inner width of the feed-forward layers.")
    encoder_attention: list[str] = option(["full"], "Self-attention: full, sparse, or one value per layer.")
    mlm_transform: bool = option(True, "Add a layer before the output projection, as in BERT.")
    pooler: bool | None = option(
        None,
        "Add a layer on the state of the first token. Default: in the base model and for heads that use it.",
    )


@dataclass
class DecoderArguments(FamilyArguments):
    """The fields of `VaswaniDecoderConfig` that are not derived from the data."""

    d_model: int = _default("d_model", 768)
    attention_dropout: float = _default("attention_dropout", 0.1)
    activation_function: str = _default("activation_function", "gelu_new")
    norm_order: Literal["post", "pre"] = _default("norm_order", "pre")
    position_embedding: Literal["sinusoidal", "learned", "none"] = _default("position_embedding", "learned")
    scale_embedding: bool = _default("scale_embedding", False)
    initializer_range: float | None = _default("initializer_range", 0.02)
    decoder_layers: int = option(12, "Number of layers.")
    decoder_attention_heads: int = option(12, "Attention heads per layer; must divide d_model.")
    decoder_ffn_dim: int = option(3072, "Inner width of the feed-forward layers.")
    decoder_attention: list[str] = option(
        ["full"], "Self-attention: full, sparse, or one value per layer; sparse requires no_pack."
    )


@dataclass
class ContinuedModelArguments(Section):
    """The model that a pre-training continues with."""

    model: str | None = option(
        None,
        "Continue training a model: its folder, or its name on the Hub. It keeps its shape and its "
        "tokenizer; leave out their fields.",
    )
    attn_implementation: str | None = _default("attn_implementation", None)


@dataclass
class TextArguments(CorpusArguments):
    """The corpus of texts and the length of its sequences."""

    dataset: str | None = option(
        None, "Folder with train.jsonl, train.txt, ... (also .gz), or the Hub name of a data set."
    )
    train_file: list[str] = option(
        [],
        "Training files: JSONL, CSV, TSV, Parquet (also .gz) or plain text; several are read one after the "
        "other.",
    )
    text_field: str = option("text", "Column of the text; a dot selects a nested column.")
    documents: Literal["line", "blank_line"] = option(
        "line", "In text files: one document per line, or blank lines between documents."
    )
    streaming: bool = option(
        False, "Stream the training data, for data larger than memory; requires max_steps."
    )
    max_validation_rows: int | None = option(
        None, "Number of validation sequences to evaluate on, evenly spread. Default: all.", at_least=1
    )
    max_length: int = option(512, "Maximum number of tokens per sequence.", at_least=SHORTEST_SEQUENCE)

    @property
    def corpus(self) -> TextCorpusSpec:
        """Location and columns of the corpus."""
        return self.part(TextCorpusSpec)


@dataclass
class TextAndVocabularyArguments(TextArguments):
    """As `TextArguments`, with the vocabulary to train on the texts."""

    tokenizer: str | None = field_with_default(DataArguments, "tokenizer", None)
    tokenizer_kind: Literal["bpe", "unigram", "byte", "char"] = field_with_default(
        DataArguments, "tokenizer_kind", "bpe"
    )
    vocab_size: int = field_with_default(DataArguments, "vocab_size", 30000)
    tokenizer_rows: int | None = field_with_default(DataArguments, "tokenizer_rows", None)

    def unused(self) -> dict[str, str]:
        """Return the fields that have no effect with the given values, and why."""
        return unused_beside_tokenizer(self.tokenizer)


@dataclass
class MaskedObjective(Section):
    """Predict masked tokens and, with `next_sentence`, whether one segment follows the other."""

    objective: Literal["masked"] = option("masked", ONE_STACK_HELP)
    mask_probability: float = option(0.15, "Share of the tokens that are predicted.", above=0, at_most=1)
    whole_word_masking: bool = option(False, "Mask either all tokens of a word or none.")
    next_sentence: bool = option(
        False,
        "Predict whether the second of two segments follows the first, as it does half of the time (BERT); "
        "otherwise sequences are full sentences of one document (RoBERTa, arXiv:1907.11692).",
    )


@dataclass
class CausalObjective(Section):
    """Predict each token from those before it."""

    objective: Literal["causal"] = option("causal", ONE_STACK_HELP)
    pack: bool = option(
        True,
        "Pack several documents into a sequence, without attention between them; otherwise a sequence holds "
        "one document, or a part of one.",
    )


@dataclass
class SpanDenoisingObjective(Section):
    """Write the spans of tokens that were removed from a text (T5)."""

    objective: Literal["span_denoising"] = option("span_denoising", ENCODER_DECODER_HELP)
    noise_density: float = option(0.15, "Share of the tokens that are removed.", above=0, below=1)
    mean_noise_span_length: float = option(3.0, "Mean number of tokens of a removed span.", at_least=1)


@dataclass
class GapSentencesObjective(Section):
    """Write the sentences that were removed from a text (PEGASUS)."""

    objective: Literal["gap_sentences"] = option("gap_sentences", ENCODER_DECODER_HELP)
    gap_sentence_ratio: float = option(0.3, "Share of the sentences that are removed.", above=0, below=1)
    gap_sentence_strategy: Literal["ind_orig", "random", "lead"] = option(
        "ind_orig",
        "Which sentences: those with the best ROUGE-1 F1 against the rest (ind_orig), new ones in each epoch "
        "(random), or the first (lead).",
    )
    gap_sentence_kept: float = option(
        0.0,
        "Probability that a chosen sentence stays in the source too, so that the model learns to copy. Each "
        "epoch draws new ones.",
        at_least=0,
        at_most=1,
    )


@dataclass
class PretrainingConfig(BaseConfig):
    """The resolved arguments of one pre-training; its sections depend on `objective` and `model`."""

    model: Any
    data: Any
    task: Any
    training: BaseTrainingArguments
    card: CardArguments

    command: ClassVar[str] = "pretrain"
    scores: ClassVar[Sequence[str]] = ("loss", "perplexity", "accuracy")
    without_effect: ClassVar[dict[str, str]] = {
        **FIELDS_WITHOUT_EFFECT,
        "label_smoothing_factor": "a language model is trained and evaluated by its likelihood",
    }

    @classmethod
    def variant(cls, given: Mapping[str, Any]) -> type[BaseConfig]:
        """Return the class for the objective, for new weights or for a given model."""
        objective = given.get("objective", "masked")
        check_choice("objective", objective, NEW)
        return (NEW if given.get("model") is None else CONTINUED)[objective]


@dataclass
class MaskedLMConfig(PretrainingConfig):
    """The resolved arguments of one training of a new masked language model."""

    model: EncoderArguments
    data: TextAndVocabularyArguments
    task: MaskedObjective

    purpose: ClassVar[str] = (
        "Train an encoder to predict masked words; with --objective causal, a decoder to predict the next "
        "word; with span_denoising or gap_sentences, an encoder-decoder to write removed text. With --model "
        "FOLDER, continue training a model on other texts or longer sequences."
    )
    scores: ClassVar[Sequence[str]] = (*PretrainingConfig.scores, "next_sentence_accuracy")


@dataclass
class CausalLMConfig(PretrainingConfig):
    """The resolved arguments of one training of a new causal language model."""

    model: DecoderArguments
    data: TextAndVocabularyArguments
    task: CausalObjective

    purpose: ClassVar[str] = (
        "Train a decoder to predict the next word; with --objective masked, an encoder to predict masked "
        "words. With --model FOLDER, continue training a model on other texts or longer sequences."
    )
    scores: ClassVar[Sequence[str]] = (*PretrainingConfig.scores, "bits_per_byte")


@dataclass
class SpanDenoisingConfig(PretrainingConfig):
    """The resolved arguments of one training of a new encoder-decoder on removed spans."""

    model: ModelArguments
    data: TextAndVocabularyArguments
    task: SpanDenoisingObjective

    purpose: ClassVar[str] = (
        "Train an encoder-decoder to write the spans that were removed from a text, for `vaswani train "
        "--model`. With --model FOLDER, continue training a model on other texts or longer sequences."
    )


@dataclass
class GapSentencesConfig(PretrainingConfig):
    """The resolved arguments of one training of a new encoder-decoder on removed sentences."""

    model: ModelArguments
    data: TextAndVocabularyArguments
    task: GapSentencesObjective

    purpose: ClassVar[str] = (
        "Train an encoder-decoder to write the sentences that were removed from a text, for `vaswani train "
        "--model`. With --model FOLDER, continue training a model on other texts or longer sequences."
    )


GIVEN = (ContinuedModelArguments, TextArguments)  # the sections for a given model


@dataclass
class ContinuedMaskedLMConfig(PretrainingConfig):
    """The resolved arguments of one training that continues with a masked language model."""

    model: ContinuedModelArguments
    data: TextArguments
    task: MaskedObjective

    purpose: ClassVar[str] = (
        "Continue training an encoder to predict masked words, on other texts or longer sequences."
    )
    scores: ClassVar[Sequence[str]] = MaskedLMConfig.scores
    without_effect: ClassVar[dict[str, str]] = {
        **PretrainingConfig.without_effect,
        **fields_fixed_by_model((EncoderArguments, TextAndVocabularyArguments), GIVEN),
    }


@dataclass
class ContinuedCausalLMConfig(PretrainingConfig):
    """The resolved arguments of one training that continues with a causal language model."""

    model: ContinuedModelArguments
    data: TextArguments
    task: CausalObjective

    purpose: ClassVar[str] = (
        "Continue training a decoder to predict the next word, on other texts or longer sequences."
    )
    scores: ClassVar[Sequence[str]] = CausalLMConfig.scores
    without_effect: ClassVar[dict[str, str]] = {
        **PretrainingConfig.without_effect,
        **fields_fixed_by_model((DecoderArguments, TextAndVocabularyArguments), GIVEN),
    }


@dataclass
class ContinuedSpanDenoisingConfig(PretrainingConfig):
    """The resolved arguments of one training on removed spans that continues with an encoder-decoder."""

    model: ContinuedModelArguments
    data: TextArguments
    task: SpanDenoisingObjective

    purpose: ClassVar[str] = (
        "Continue training an encoder-decoder to write removed spans, on other texts or longer sequences."
    )
    without_effect: ClassVar[dict[str, str]] = {
        **PretrainingConfig.without_effect,
        **fields_fixed_by_model((ModelArguments, TextAndVocabularyArguments), GIVEN),
    }


@dataclass
class ContinuedGapSentencesConfig(PretrainingConfig):
    """The resolved arguments of one training on removed sentences that continues with an encoder-decoder."""

    model: ContinuedModelArguments
    data: TextArguments
    task: GapSentencesObjective

    purpose: ClassVar[str] = (
        "Continue training an encoder-decoder to write removed sentences, on other texts or longer sequences."
    )
    without_effect: ClassVar[dict[str, str]] = ContinuedSpanDenoisingConfig.without_effect


NEW: dict[str, type[PretrainingConfig]] = {
    "masked": MaskedLMConfig,
    "causal": CausalLMConfig,
    "span_denoising": SpanDenoisingConfig,
    "gap_sentences": GapSentencesConfig,
}
CONTINUED: dict[str, type[PretrainingConfig]] = {
    "masked": ContinuedMaskedLMConfig,
    "causal": ContinuedCausalLMConfig,
    "span_denoising": ContinuedSpanDenoisingConfig,
    "gap_sentences": ContinuedGapSentencesConfig,
}
