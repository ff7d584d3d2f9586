"""Vectors of texts, tokens and words from the hidden states of a trained model.

Works with any model of the Auto classes: an encoder, a decoder, or the encoder of an encoder-decoder. The
vectors of a text do not depend on its batch, except for rounding. Vectors of whole texts are pooled by
sentence-transformers, which also searches them (`sentence_transformers.util.semantic_search`). Its encoder is
not used because it truncates long texts silently and batches by rows, whatever their length.

S texts of a batch · T tokens of a text · W its words · d width of a vector · L layers of the model
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.text_codec import TextCodec, source_prefix
from vaswani.errors import RunError, UserError, check_positive, one_line
from vaswani.hub.checkpoint import local_folder
from vaswani.inference.batches import (
    BUFFERED_TEXTS,
    batches,
    buffers,
    check_several,
    checked,
    padded_inputs,
    within_memory,
)
from vaswani.inference.embed.scalar_mix import ScalarMix
from vaswani.inference.embed.sentence_folder import POOLINGS, SentencePooling, sentence_pooling
from vaswani.inference.embed.word_vectors import (
    SUBTOKEN_POOLINGS,
    Sentence,
    WordVectors,
    as_sentence,
    tokens_of_words,
)
from vaswani.inference.loading import FromPretrained
from vaswani.inference.onnx.encoder_decoder import OnnxEncoder
from vaswani.inference.onnx.one_stack import OnnxModel
from vaswani.inference.position_limits import longest_text

if TYPE_CHECKING:
    from typing_extensions import Self

Text = str | Sequence[str]
Value = TypeVar("Value")
Unit = Literal["text", "token", "word"]
Tokens = dict[str, list[Any]]  # the tokenizer's columns for one text: input_ids and others

COMBINATIONS: dict[str, Callable[[Sequence[torch.Tensor]], torch.Tensor]] = {
    "concat": lambda layers: torch.cat(tuple(layers), dim=-1),
    "mean": lambda layers: torch.stack(tuple(layers)).mean(dim=0),
}


class TokenVectors(NamedTuple):
    """The tokens of a text, including special tokens, with their vectors: float [T, d]."""

    tokens: list[str]
    vectors: torch.Tensor


class Embedder(FromPretrained):
    """Computes vectors of texts, tokens and words with any model that has hidden states.

        embedder = Embedder.from_pretrained("runs/mlm")
        embedder.embed(["A dog runs.", "A cat sleeps."])  # [2, d]
        embedder.embed_words(["A dog runs."])[0].vectors  # [3, d]

    Vectors are float32 (float64 for a float64 model), on the CPU and without gradients. An empty text has the
    vector of its special tokens. A text or word without any token, for example after truncation, has a
    vector of zeros.

    Args:
        model: with or without a head, which is not used; it is put into evaluation mode.
        tokenizer: adds the special tokens that the model was trained with.
        pooling: how to pool the states of a text's tokens, including special tokens: `"mean"`, `"max"` of
            each feature, `"cls"` (the first token, [CLS] in BERT) or `"last"` (the last token, the only one
            that sees the whole text in a causal model).
        layers: `"last"`, `"all"`, or layer numbers: 0 is the embeddings, L or -1 the last layer.
        combine: concatenate several layers (`"concat"`), average them (`"mean"`), or weigh them with a
            trained `ScalarMix`.
        subtoken_pooling: how to pool the states of a word's tokens: `"first"`, `"last"`, these two
            concatenated (`"first_last"`), or `"mean"`. See `word_vectors`.
        normalize: divide each vector by its length.
        max_length: maximum tokens of a text. None means the limit of the model and tokenizer, or 4,096 if
            they have none.
        truncation: truncate longer texts and count them in `truncated`; otherwise they raise an error.
        backward: the model reads texts from their end, like FLAIR's backward language model: it was trained
            on lines with reversed characters. Words stay in their order.
        max_tokens_per_batch: maximum tokens of a batch, padding included. A longer text forms its own batch.

    Raises:
        UserError: an option is out of range.
    """

    _engines = ("torch", "onnx")

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        pooling: str = "mean",
        layers: Literal["last", "all"] | Sequence[int] = "last",
        combine: Literal["concat", "mean"] | ScalarMix = "concat",
        subtoken_pooling: str = "first",
        normalize: bool = False,
        max_length: int | None = None,
        truncation: bool = False,
        backward: bool = False,
        max_tokens_per_batch: int = 8192,
    ):
        check_positive(max_tokens_per_batch=max_tokens_per_batch, max_length=max_length)
        self.pooling = _choice("pooling", pooling, POOLINGS)
        self.subtoken_pooling = _choice("subtoken_pooling", subtoken_pooling, SUBTOKEN_POOLINGS)
        body: Any = model.base_model
        self.model = (body.get_encoder() if model.config.is_encoder_decoder else body).eval()
        self.tokenizer = tokenizer
        self._texts = TextCodec(tokenizer)
        config = getattr(self.model, "config", model.config)  # FSMT's encoder has no config
        self._last = config.num_hidden_layers
        self.layers = _layer_numbers(layers, self._last)
        if isinstance(self.model, OnnxModel | OnnxEncoder):
            self._check_exported(self.model, layers)
        self.combine = _combination(combine, len(self.layers), model.device)
        self.normalize = normalize
        self._normalizes_texts = False  # as sentence-transformers does with its model
        self.truncation = truncation
        self.truncated = 0
        self._counting = threading.Lock()
        self.backward = backward
        self.max_tokens_per_batch = max_tokens_per_batch
        self.max_length = longest_text(model, tokenizer, max_length, side="source")
        if truncation:
            self._texts.frame().check_room(max_length=self.max_length)
        self._dtype = model.dtype
        self.dtype = torch.promote_types(model.dtype, torch.float32)
        self.dimension = config.hidden_size * (len(self.layers) if combine == "concat" else 1)
        self._arguments = inspect.signature(self.model.forward).parameters
        # Some tokenizers add white space before the first word.
        self._is_blank = cache(lambda token: not str(tokenizer.decode([token])).strip())

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, revision: str | None = None, pooling: str | None = None, **options: Any
    ) -> Self:
        """Load a model with its tokenizer.

        Args:
            name: the folder, or the name on the Hub, of a model of transformers, vaswani or
                sentence-transformers.
            revision: branch, tag or commit on the Hub; None means `main`.
            pooling: as for the class. None means that of sentence-transformers, with its normalization, if it
                has saved the model, else `"mean"`.
            options: other arguments of `FromPretrained.from_pretrained` and of the class.

        Raises:
            UserError: the model cannot be loaded, or sentence-transformers makes its vectors in a way that is
                not known here.
        """
        if pooling is None:
            way = sentence_pooling(local_folder(name, revision, weights=False))
        else:
            way = SentencePooling(pooling)
        embedder = super().from_pretrained(name, revision=revision, pooling=way.pooling, **options)
        embedder._normalizes_texts = way.normalizes
        return embedder

    @property
    def _device(self) -> torch.device:
        """The device of the model; one in ONNX has no parameters, and runs on the CPU."""
        return next((each.device for each in self.model.parameters()), torch.device("cpu"))

    def embed(self, texts: Iterable[Text]) -> torch.Tensor:
        """Return a vector of each text: float [S, d]. A text may be a list of words, joined by spaces.

        Raises:
            UserError: a single text is given, a text is too long, or sentence-transformers is missing.
            RunError: a batch does not fit into the device's memory, or its states are not finite.
        """
        vectors = list(self.stream(texts))
        return torch.stack(vectors) if vectors else torch.zeros(0, self.dimension, dtype=self.dtype)

    def embed_tokens(self, texts: Iterable[Text]) -> list[TokenVectors]:
        """Return the tokens of each text, in the model's reading order, with their vectors [T, d].

        Raises:
            UserError, RunError: as `embed`.
        """
        return list(self.stream(texts, "token"))

    def embed_words(self, texts: Iterable[Text]) -> list[WordVectors]:
        """Return the words of each text with their vectors: [W, d], or [W, 2d] for `"first_last"`.

        Args:
            texts: texts, which are split at white space, or lists of words.

        Raises:
            UserError: as `embed`; or the tokenizer does not return offsets.
            RunError: as `embed`.
        """
        return list(self.stream(texts, "word"))

    def stream(
        self,
        texts: Iterable[Text],
        unit: Unit = "text",
        *,
        buffer_size: int = BUFFERED_TEXTS,
        progress: Callable[[int], object] | None = None,
    ) -> Iterator[Any]:
        """Embed a stream of texts in order and in bounded memory.

        Args:
            texts: any number; they are read, sorted by length and embedded one buffer at a time.
            unit: what gets vectors: texts (float [d]), tokens (`TokenVectors`) or words (`WordVectors`).
            buffer_size: number of texts to read ahead; smaller at the beginning and for very long texts.
            progress: is called with the number of texts of each finished batch.

        Raises:
            UserError, RunError: as `embed` and `embed_words`; for invalid texts, while they are read.
        """
        check_several(texts)
        check_positive(buffer_size=buffer_size)
        if unit == "word" and not self.tokenizer.is_fast:
            raise UserError(
                f"{type(self.tokenizer).__name__} does not return the offsets of its tokens, so words cannot "
                "be found; use a fast tokenizer"
            )
        if unit == "text":
            check_pooling()
        return self._stream(texts, unit, buffer_size, progress or (lambda count: None))

    def _stream(
        self, texts: Iterable[Text], unit: Unit, buffer_size: int, done: Callable[[int], object]
    ) -> Iterator[Any]:
        number = 0
        for buffer in buffers(checked(texts, (str, tuple, list)), buffer_size):
            sentences = [as_sentence(text) for text in buffer]
            yield from self._embed_buffer(sentences, number, unit, done)
            number += len(buffer)

    def _embed_buffer(
        self, sentences: list[Sentence], number: int, unit: Unit, done: Callable[[int], object]
    ) -> list[Any]:
        """Return the results of a buffer, whose first text is the `number`th of all."""
        read = [sentence.reversed() for sentence in sentences] if self.backward else sentences
        tokens = self._encode([sentence.text for sentence in read], number, with_offsets=unit == "word")
        results: dict[int, Any] = {}
        lengths = {row: len(of_row["input_ids"]) for row, of_row in enumerate(tokens)}
        empty = [row for row in lengths if not lengths[row]]
        full = {row: length for row, length in lengths.items() if length}
        for batch in filter(None, [*batches(full, self.max_tokens_per_batch), empty]):
            vectors = self._embed_batch([read[row] for row in batch], [tokens[row] for row in batch], unit)
            for row, of_row in zip(batch, vectors, strict=True):
                results[row] = self._labelled(unit, sentences[row], tokens[row], of_row)
            done(len(batch))
        return [results[row] for row in range(len(sentences))]

    def _encode(self, texts: list[str], number: int, with_offsets: bool) -> list[Tokens]:
        encoded = self._texts.encode(texts, return_attention_mask=False, return_offsets_mapping=with_offsets)
        lengths = [len(ids) for ids in encoded["input_ids"]]
        tokens = [dict(zip(encoded.keys(), row, strict=True)) for row in zip(*encoded.values(), strict=True)]
        longer = [row for row, length in enumerate(lengths) if length > self.max_length]
        if not longer:
            return tokens
        if not self.truncation:
            raise UserError(
                f"text {number + longer[0]}, counted from 0, has {lengths[longer[0]]:,} tokens, more than "
                f"max_length={self.max_length}; truncate it (truncation), or raise max_length if the model "
                "accepts more"
            )
        frame = self._texts.frame()
        for row in longer:
            tokens[row] = {name: frame.cut(column, self.max_length) for name, column in tokens[row].items()}
        with self._counting:
            self.truncated += len(longer)
        return tokens

    def _embed_batch(
        self, sentences: list[Sentence], tokens: list[Tokens], unit: Unit
    ) -> Sequence[torch.Tensor]:
        """Return the vectors of each text of a batch: [d], [T, d] or [W, d]."""
        lengths = torch.tensor([len(of_text["input_ids"]) for of_text in tokens])
        states = self._states(tokens, int(lengths.max()))
        if unit == "word":
            states = states.cpu()  # words need many small slices
        vectors = [of_text[:length] for of_text, length in zip(states, lengths, strict=True)]
        if unit == "text":
            vectors = list(_pooled(states, lengths, self.pooling))
        elif unit == "word":
            of_texts = zip(sentences, tokens, vectors, strict=True)
            vectors = [self._word_vectors(*of_text) for of_text in of_texts]
        if self.normalize or (unit == "text" and self._normalizes_texts):
            vectors = [F.normalize(of_text, dim=-1) for of_text in vectors]
        together = torch.cat(vectors).cpu()
        if not together.isfinite().all():
            raise RunError(f"the model's states leave the range of {self._dtype}; try dtype float32")
        return together.split([len(of_text) for of_text in vectors])

    def _check_exported(self, model: OnnxModel | OnnxEncoder, layers: str | Sequence[int]) -> None:
        """Raise a UserError if a model in ONNX does not return the states of the selected layers."""
        if "last_hidden_state" not in model.outputs:
            of_head = [name for name in model.outputs if not name.startswith("present.")]
            raise UserError(
                f"the model in ONNX returns {' and '.join(of_head)}, and no states to embed texts by: export "
                "it without its head, which AutoModel.from_pretrained(MODEL).save_pretrained(FOLDER) leaves "
                "out; the tokenizer belongs in the same folder"
            )
        if self.layers != [self._last]:
            raise UserError(
                f"layers={layers}: a model in ONNX returns the states of its last layer only; give last, or "
                "the folder that it was exported from"
            )

    @torch.no_grad()
    def _states(self, tokens: list[Tokens], longest: int) -> torch.Tensor:
        """Return the combined layers of a batch, padded on the right: [S, T, d]."""
        if not longest:  # models reject texts without tokens
            return torch.zeros(len(tokens), 0, self.dimension, dtype=self.dtype)
        with within_memory("texts", len(tokens), longest):
            inputs = padded_inputs(tokens, self._arguments, self.tokenizer.pad_token_id, self._device)
            if self.layers != [self._last]:
                inputs["output_hidden_states"] = True
            outputs = self.model(**inputs)
            states = [*(outputs.get("hidden_states") or ())[:-1], outputs.last_hidden_state]
            return self.combine([states[layer - self._last - 1].to(self.dtype) for layer in self.layers])

    def _word_vectors(self, sentence: Sentence, tokens: Tokens, states: torch.Tensor) -> torch.Tensor:
        """Return the vectors of the words of a text, [W, d], from its states [T, d]."""
        pooling = self.subtoken_pooling
        nothing = states.new_zeros(1, states.shape[1])  # the state of a word without tokens
        spans = zip(tokens["input_ids"], tokens["offset_mapping"], strict=True)
        before = len(source_prefix(self.tokenizer))
        offsets = [
            (0, 0) if self._is_blank(token) or end <= before else (max(0, start - before), end - before)
            for token, (start, end) in spans
        ]
        words = tokens_of_words(sentence, offsets)
        vectors = [pooling(states[of_word] if of_word else nothing) for of_word in words]
        return torch.stack(vectors) if vectors else pooling(nothing)[None][:0]

    def _labelled(self, unit: Unit, sentence: Sentence, tokens: Tokens, vectors: torch.Tensor) -> Any:
        if unit == "token":
            return TokenVectors(list(self.tokenizer.convert_ids_to_tokens(tokens["input_ids"])), vectors)
        return WordVectors(sentence.words, vectors) if unit == "word" else vectors


def load_scalar_mix(path: str | Path) -> ScalarMix:
    """Load a `ScalarMix` that `safetensors.torch.save_file(mix.state_dict(), path)` has saved.

    Raises:
        UserError: the file cannot be read, or does not hold a scalar mix.
    """
    try:
        weights = load_file(path)
        mix = ScalarMix(len(weights["layer_weights"]))
        mix.load_state_dict(weights)
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise UserError(
            f"{path} holds no scalar mix ({one_line(error)}); "
            "expected a file of safetensors' save_file(mix.state_dict(), path)"
        ) from error
    return mix


def check_pooling() -> None:
    """Raise a UserError if sentence-transformers, which pools vectors of texts, is missing."""
    if find_spec("sentence_transformers") is None:
        raise UserError("vectors of whole texts need sentence-transformers: pip install 'vaswani[embed]'")


def _pooled(states: torch.Tensor, lengths: torch.Tensor, pooling: str) -> torch.Tensor:
    """Pool the states [S, T, d] of texts with these lengths [S]: [S, d], zeros for texts without tokens."""
    from sentence_transformers.sentence_transformer.modules import Pooling  # slow to import

    if not states.shape[1]:
        return states.new_zeros(len(states), states.shape[2])
    mask = (torch.arange(states.shape[1]) < lengths[:, None]).to(states.device)
    features = {"token_embeddings": states, "attention_mask": mask.long()}
    return Pooling(states.shape[2], pooling)(features)["sentence_embedding"]


def _choice(name: str, value: str, choices: Mapping[str, Value]) -> Value:
    if value not in choices:
        expected = ", ".join(map(repr, choices))
        raise UserError(f"{name}={value!r} is unknown; expected one of {expected}")
    return choices[value]


def _layer_numbers(layers: str | Sequence[int], last: int) -> list[int]:
    """Return the numbers of the selected layers, from 0, the embeddings, to `last`."""
    if isinstance(layers, str):
        return _choice("layers", layers, {"last": [last], "all": list(range(last + 1))})
    if not layers:
        raise UserError("layers=[] selects no layer; give 'last', 'all' or layer numbers")
    for layer in layers:
        if not -last - 1 <= layer <= last:
            raise UserError(
                f"the model has no layer {layer}; expected 0 (its embeddings) to {last}, or -{last + 1} to -1"
            )
    return [layer % (last + 1) for layer in layers]


def _combination(
    combine: str | ScalarMix, num_layers: int, device: torch.device
) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    if not isinstance(combine, ScalarMix):
        return _choice("combine", combine, COMBINATIONS)
    mixed = len(combine.layer_weights)
    if mixed != num_layers:
        raise UserError(
            f"the scalar mix has weights for {mixed} layers, and layers selects {num_layers}; "
            "select the layers that it was trained with"
        )
    return combine.to(device)
