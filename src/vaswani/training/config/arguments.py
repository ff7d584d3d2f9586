"""The sections of a training on pairs, most of which other trainings share, as dataclasses.

Field names are the keys of a configuration file and the flags of `vaswani train`. The defaults are those of
the base model of Vaswani et al. (2017), arXiv:1706.03762; section numbers refer to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from vaswani.bounds import LARGEST_SEED
from vaswani.data.sources.corpus_spec import CorpusSpec
from vaswani.data.sources.directions import parse_directions, tags_of
from vaswani.data.sources.reading import table_format
from vaswani.errors import UserError
from vaswani.evaluation.text_metrics import METRICS
from vaswani.training.config.options import (
    FIELDS_WITHOUT_EFFECT,
    BaseConfig,
    Section,
    default_of,
    field_with_default,
    fields_fixed_by_model,
    option,
    plain,
)
from vaswani.training.config.training_arguments import ContinuedTrainingArguments, TrainingArguments


@dataclass
class FamilyArguments(Section):
    """The fields of a model's configuration that all three model families share."""

    d_model: int = option(512, "Width of the hidden states.")
    key_dim: int | None = option(
        None, "Width of the queries and keys of each head. Default: that of its values, d_model / heads."
    )
    dropout: float = option(
        0.1, "Dropout on sub-layer outputs and on the sums of embeddings and positions (section 5.4)."
    )
    attention_dropout: float = option(0.0, "Dropout on attention weights.")
    activation_dropout: float = option(0.0, "Dropout inside the feed-forward layers.")
    word_dropout: float = option(
        0.0,
        "Probability of replacing the embedding of a whole token, of source or target, by zeros in training "
        "(arXiv:1905.11901; 0.1 there).",
    )
    activation_function: str = option(
        "relu", "Activation of the feed-forward layers: relu, gelu, silu or another name in transformers."
    )
    norm_order: Literal["post", "pre"] = option(
        "post", "LayerNorm after each residual sum (post) or before each sub-layer (pre)."
    )
    embedding_norm: bool = option(
        False, "Apply LayerNorm to the sums of embeddings and positions, as in BERT."
    )
    layer_norm_eps: float = option(1e-5, "Epsilon of LayerNorm, added to the variance.")
    norm_bias: bool = option(True, "Use biases in LayerNorm.")
    position_embedding: Literal["sinusoidal", "learned", "none"] = option(
        "sinusoidal", "Sinusoidal positions (any length), learned positions, or none."
    )
    sinusoidal_layout: Literal["interleaved", "concatenated", "tensor2tensor"] = option(
        "interleaved", "Order of sines and cosines: of the paper, of Marian, or of tensor2tensor."
    )
    max_position_embeddings: int = option(1024, "Number of learned positions.")
    attention_bias: bool = option(True, "Use biases in the attention projections.")
    ffn_bias: bool = option(True, "Use biases in the feed-forward layers.")
    lm_head_bias: bool = option(False, "Use a bias in the output projection.")
    scale_embedding: bool = option(True, "Multiply embeddings by sqrt(d_model) (section 3.4).")
    tie_word_embeddings: bool = option(
        True, "Share weights between output projection and target embedding (section 3.4)."
    )
    initializer_range: float | None = option(
        None, "Standard deviation of new weights. Default: Glorot's uniform distribution."
    )
    sparse_block_size: int = option(64, "Tokens per block of sparse attention.", at_least=1)
    sparse_window_blocks: int = option(
        3, "Blocks in the window around a query, its own included.", at_least=1
    )
    sparse_global_blocks: int = option(
        2, "Global blocks at the start, which attend to all blocks and which all attend to.", at_least=0
    )
    sparse_global_tokens: int = option(
        0, "Global tokens in blocks of their own, instead of sparse_global_blocks.", at_least=0
    )
    sparse_random_blocks: int = option(3, "Random blocks for each layer, head and query block.", at_least=0)
    sparse_seed: int = option(0, "Seed of the random blocks.", at_least=0, at_most=LARGEST_SEED)
    attn_implementation: str | None = option(
        None, "Attention kernel (eager, sdpa, ...). It changes the speed, not the results."
    )

    def unused(self) -> dict[str, str]:
        """Return the fields that have no effect with the given values, and why."""
        found = {}
        positions = f"position_embedding={self.position_embedding}"
        if self.position_embedding != "sinusoidal":
            found["sinusoidal_layout"] = positions
        if self.position_embedding != "learned":
            found["max_position_embeddings"] = positions
        stacks = [name for name in ("encoder_attention", "decoder_attention") if hasattr(self, name)]
        if not any("sparse" in getattr(self, name) for name in stacks):
            pattern = [each.name for each in fields(FamilyArguments) if each.name.startswith("sparse_")]
            found |= dict.fromkeys(pattern, " and ".join(f"{name}=full" for name in stacks))
        elif not self.sparse_random_blocks:
            found["sparse_seed"] = "sparse_random_blocks=0"
        return found


@dataclass
class ModelArguments(FamilyArguments):
    """The fields of `VaswaniConfig` that are not derived from the data."""

    encoder_layers: int = option(6, "Number of encoder layers.")
    decoder_layers: int = option(6, "Number of decoder layers.")
    encoder_attention_heads: int = option(8, "Attention heads per encoder layer; must divide d_model.")
    decoder_attention_heads: int = option(8, "Attention heads per decoder layer; must divide d_model.")
    encoder_ffn_dim: int = option(2048, "Inner width of the encoder's feed-forward layers.")
    decoder_ffn_dim: int = option(2048, "Inner width of the decoder's feed-forward layers.")
    share_encoder_decoder_embeddings: bool | None = option(
        None, "Share one embedding between source and target. Default: true if they share a vocabulary."
    )
    encoder_attention: list[str] = option(
        ["full"], "Self-attention of the encoder: full, sparse, or one value per layer."
    )
    decoder_attention: list[str] = option(
        ["full"], "Self-attention of the decoder: full, sparse, or one of these for each layer."
    )


@dataclass
class CorpusArguments(Section):
    """The location of a corpus: a data set, or the files of each split."""

    dataset: str | None = option(None, "Folder or Hub name of a data set.")
    dataset_config: str | None = option(None, "Configuration of the data set.")
    train_file: list[str] = option([], "Training file(s).")
    validation_file: list[str] = option([], "Validation file(s), in the same formats.")
    test_file: list[str] = option([], "Test file(s), in the same formats.")


REPLACED_BY_DIRECTIONS = (
    *("source_field", "target_field", "source_tags"),
    *("source_language", "target_language", "source_prefix"),
)


@dataclass
class PairsArguments(CorpusArguments):
    """The parallel corpus and the limits on its rows.

    Raises:
        UserError: directions are malformed, or given together with what they replace.
    """

    task: Literal["translation", "summarization"] = option(
        "translation",
        "Task: translation (BLEU, chrF, exact match, BLEU lower-cased) or summarization (ROUGE).",
    )
    dataset: str | None = option(None, "'dates' (built in), or the folder or Hub name of a data set.")
    train_file: list[str] = option(
        [],
        "Training files: tables (JSONL, CSV, TSV, Parquet), several of which are read one after the other, "
        "or two text files, source and target.",
    )
    source_field: str = option(
        "source", "Column of the source text; a dot selects a nested column (translation.de)."
    )
    target_field: str = option("target", "Column of the target text.")
    directions: list[str] = option(
        [],
        "Pairs of columns for one multilingual model, instead of source_field and target_field: en-de de-en. "
        "Each row is an example of each; its source gets the tag of its target column, such as >>de<<.",
    )
    streaming: bool = option(
        False, "Stream the training data, for data larger than memory; requires max_steps."
    )
    max_validation_rows: int | None = option(
        None, "Number of validation rows to evaluate on, evenly spread. Default: all.", at_least=1
    )
    max_source_length: int = option(
        256, "Most source tokens of a row; training leaves out longer rows and counts them.", at_least=2
    )
    max_target_length: int = option(
        256, "Most target tokens of a row; training leaves out longer rows and counts them.", at_least=2
    )
    truncate: bool = option(
        False,
        "Cut longer rows before their end token, instead of leaving them out; in evaluation, cut sources "
        "only.",
    )
    bpe_dropout: float = option(
        0.0,
        "Probability of skipping a merge; each epoch splits the training text anew (arXiv:1910.13267).",
        at_least=0,
        at_most=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_directions(self.directions)  # raises for malformed ones
        for one in fields(self) if self.directions else ():
            value = getattr(self, one.name)
            if one.name in REPLACED_BY_DIRECTIONS and value != default_of(one):
                raise UserError(
                    f"directions and {one.name}={plain(value)} were both given, and directions names columns "
                    "and writes tags; leave one of them out"
                )

    @property
    def corpus(self) -> CorpusSpec:
        """Location and columns of the corpus."""
        return self.part(CorpusSpec)

    @property
    def tags(self) -> list[str]:
        """The tags that sources begin with."""
        return tags_of(parse_directions(self.directions))

    def unused(self) -> dict[str, str]:
        """Return the fields that have no effect with the given values, and why."""
        if self.directions:
            return dict.fromkeys(("source_field", "target_field"), "directions")
        if len(self.train_file) != 2 or any(map(table_format, map(Path, self.train_file))):
            return {}
        return dict.fromkeys(
            ("source_field", "target_field"), "two text files, the first of which is the source"
        )


@dataclass
class DataArguments(PairsArguments):
    """The parallel corpus, the limits on its rows, and the vocabulary that is learned from it."""

    tokenizer: str | None = option(
        None,
        "Use this tokenizer instead of training one: a folder, a name on the Hub, or a SentencePiece model "
        "(NAME.model).",
    )
    target_tokenizer: str | None = option(
        None, "Another tokenizer for the targets, given in the same way. Default: the same tokenizer."
    )
    tokenizer_kind: Literal["bpe", "unigram", "byte", "char"] = option(
        "bpe", "Kind of tokenizer to train: byte pairs, unigram pieces, bytes or characters."
    )
    vocab_size: int = option(37000, "Maximum size of a trained vocabulary.", at_least=1)
    shared_vocab: bool = option(True, "Train one vocabulary for source and target.")
    tokenizer_rows: int | None = option(
        None, "Number of rows, from the first, to train the vocabulary on. Default: all.", at_least=1
    )
    source_tags: list[str] = option(
        [],
        "Tokens that sources begin with, such as >>de<< >>fr<< for the languages of their targets; a "
        "vocabulary that is trained keeps each whole.",
    )

    @property
    def tags(self) -> list[str]:
        """The tags that sources begin with, written by hand or by `directions`."""
        return super().tags or self.source_tags

    def unused(self) -> dict[str, str]:
        """Return the fields that have no effect with the given values, and why."""
        return super().unused() | unused_beside_tokenizer(self.tokenizer)


VOCABULARY_FIELDS = ("vocab_size", "tokenizer_rows", "source_tags")  # fields of a vocabulary to train


def unused_beside_tokenizer(tokenizer: str | None) -> dict[str, str]:
    """Return the fields of a trained vocabulary that have no effect with a given tokenizer, and why."""
    if tokenizer is None:
        return {}
    return dict.fromkeys(VOCABULARY_FIELDS, f"tokenizer={tokenizer}")


@dataclass
class LanguageArguments(Section):
    """The languages for a multilingual model."""

    source_language: str | None = option(
        None, "Language of the sources, as a multilingual tokenizer names it: en, eng_Latn, en_XX ..."
    )
    target_language: str | None = option(None, "Language of the targets, named in the same way.")
    source_prefix: str | None = option(
        None,
        "Text before each source, such as 'translate English to German: ' for T5; saved with the tokenizer. "
        "Default: as saved; '' for none.",
        may_be_empty=True,
    )

    @property
    def languages(self) -> dict[str, str]:
        """The options of `for_languages` that are given."""
        values = {one.name: getattr(self, one.name) for one in fields(LanguageArguments)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass
class ContinuedDataArguments(LanguageArguments, PairsArguments):
    """The parallel corpus, the limits on its rows, and the languages for a multilingual model."""


@dataclass
class CardArguments(Section):
    """Facts for the model card that a training does not know; the card says "not stated" for missing facts.

    Raises:
        UserError: for a code that the Hub does not accept.
    """

    language: list[str] = option([], "Language codes, such as: de en; known for the built-in dates.")
    license: str | None = option(
        None, "License of the model, by the Hub's name: apache-2.0, mit, cc-by-4.0 ..."
    )
    data_name: str | None = option(None, "Name of the data. Default: the given data set or files.")
    data_url: str | None = option(None, "Where the data come from.")
    data_license: str | None = option(None, "License of the data.")

    def __post_init__(self) -> None:
        from vaswani.hub.card import check_stated  # lazy: a plain trainer needs no card

        super().__post_init__()
        check_stated(self.language, self.license)


@dataclass
class GivenModelArguments(Section):
    """The model that a fine-tuning starts from.

    Raises:
        UserError: none was given.
    """

    kind: ClassVar[str] = "a pre-trained model"

    model: str | None = option(
        None, "Folder or Hub name of a pretrained model (see vaswani pretrain); required."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is None:
            raise UserError(
                f"no model was given; set model to the folder of {self.kind}, or its name on the Hub"
            )


@dataclass
class AdapterArguments(Section):
    """The adapter that is trained in place of a model's own weights."""

    lora_rank: int | None = option(
        None,
        "Train an adapter of this rank (LoRA, arXiv:2106.09685) and keep the model's own weights.",
        at_least=1,
    )
    lora_alpha: float | None = option(
        None, "Scale of the adapter, divided by its rank. Default: twice the rank.", above=0
    )
    lora_dropout: float = option(0.0, "Dropout on the input of the adapter.", at_least=0, below=1)
    lora_targets: list[str] = option(
        [],
        "Linear layers to adapt, such as: q_proj v_proj. Default: all but the output layer and the head.",
    )


@dataclass
class RunConfig(BaseConfig):
    """The resolved arguments of one training on pairs, a section each; a subclass may add one."""

    model: ModelArguments
    data: DataArguments
    training: TrainingArguments
    card: CardArguments

    command: ClassVar[str] = "train"
    purpose: ClassVar[str] = (
        "Train an encoder-decoder on pairs of texts. With --model FOLDER, continue with a trained one."
    )
    scores: ClassVar[Sequence[str]] = ("loss", *METRICS)

    @classmethod
    def variant(cls, given: Mapping[str, Any]) -> type[BaseConfig]:
        """Return the class that starts from new weights or, if a model is given, from that model."""
        continues = cls is RunConfig and given.get("model") is not None
        return ContinuedRunConfig if continues else cls


@dataclass
class TrainedModelArguments(Section):
    """The encoder-decoder that a training continues with."""

    model: str | None = option(
        None,
        "Continue with a trained encoder-decoder: its folder, or its name on the Hub (vaswani, Marian, FSMT, "
        "BART, mBART, M2M100, NLLB, Pegasus, LED, T5 ...). It keeps its shape and its tokenizers; leave out "
        "their fields.",
    )
    convert: bool = option(
        False, "Convert a Marian or FSMT model to a vaswani model before training; its results stay the same."
    )
    freeze: list[Literal["encoder", "embeddings"]] = option(
        [], "Parts whose weights do not change: encoder, embeddings (of tokens), or both."
    )
    attn_implementation: str | None = field_with_default(FamilyArguments, "attn_implementation", None)


@dataclass
class ContinuedRunConfig(RunConfig):
    """The resolved arguments of one training on pairs that continues with a trained model."""

    model: TrainedModelArguments  # type: ignore[assignment]  # in place of a new one
    data: ContinuedDataArguments  # type: ignore[assignment]
    training: ContinuedTrainingArguments
    adapter: AdapterArguments

    purpose: ClassVar[str] = "Continue training an encoder-decoder on pairs of texts (fine-tuning)."
    without_effect: ClassVar[dict[str, str]] = {
        **FIELDS_WITHOUT_EFFECT,
        **fields_fixed_by_model(
            (ModelArguments, DataArguments), (TrainedModelArguments, ContinuedDataArguments)
        ),
    }
