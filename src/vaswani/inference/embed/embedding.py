"""Vectors of texts, of their tokens and of their words, from the states of a trained model.

Any model of the Auto classes will do: an encoder, a decoder, or the encoder of an encoder-decoder. A text
gets the same vectors whatever it is batched with (to rounding): padding stands on the right, whatever side
the tokenizer would pad, and what it holds goes into no vector.

S texts of a batch · T tokens of a text · W its words · d width of a vector · L layers of the model
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.text_codec import TextCodec
from vaswani.data.tokenization import length_limit
from vaswani.errors import RunError, UserError, check_positive, one_line
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.inference.batches import BUFFERED_TEXTS, batches, buffers
from vaswani.inference.embed.word_vectors import (
    SUBTOKEN_POOLINGS,
    Sentence,
    WordVectors,
    as_sentence,
    tokens_of_words,
)
from vaswani.model.decoding import position_limit
from vaswani.model.scalar_mix import ScalarMix

Text = str | Sequence[str]
Unit = Literal["text", "token", "word"]
Tokens = dict[str, list[Any]]  # of one text: input_ids, and what else its tokenizer gives for each token

POOLINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # tokens of one text: [T, d] -> [d]
    "mean": lambda states: states.mean(dim=0),
    "cls": lambda states: states[0],
    "max": lambda states: states.amax(dim=0),
    "last": lambda states: states[-1],
}
COMBINATIONS: dict[str, Callable[[Sequence[torch.Tensor]], torch.Tensor]] = {
    "concat": lambda layers: torch.cat(tuple(layers), dim=-1),
    "mean": lambda layers: torch.stack(tuple(layers)).mean(dim=0),
}


DEFAULT_LENGTH = 4096  # tokens; attention takes seconds for such a text, and its time grows with the square


class TokenVectors(NamedTuple):
    """The tokens of a text, special ones among them, and a vector of each: float [T, d]."""

    tokens: list[str]
    vectors: torch.Tensor


class Embedder:
    """Turns texts, tokens and words into vectors, with any model that has hidden states.

        embedder = Embedder.from_pretrained("runs/mlm")
        embedder.embed(["A dog runs.", "A cat sleeps."])  # [2, d]
        embedder.embed_words(["A dog runs."])[0].vectors  # [3, d]

    Vectors are float32 (of a float64 model float64), on the CPU and without gradients. An empty text is what
    its tokenizer makes of it: special tokens, mostly, with a vector as any text's. A text without any token
    has a vector of zeros, and so has a word without any: one that the tokenizer dropped, or truncation.

    Args:
        model: with or without a head, which is not used; it is put into evaluation mode.
        tokenizer: adds the special tokens that the model was trained with.
        pooling: a text's vector from the states of its tokens, special ones included: their `"mean"`, the
            largest of each feature (`"max"`), the first one's, which is [CLS] in BERT (`"cls"`), or the
            `"last"` one's, the only one that has seen the whole text in a causal model.
        layers: `"last"`, `"all"`, or numbers of layers: 0 is the embeddings, L or -1 the last layer.
        combine: several layers side by side (`"concat"`), their `"mean"`, or a trained `ScalarMix` of them.
        subtoken_pooling: a word's vector from the states of its tokens: the `"first"` one's, the `"last"`
            one's, these two side by side (`"first_last"`), or their `"mean"`. See `word_vectors`.
        normalize: divide each vector by its length.
        max_length: most tokens of a text. None means as many as the model and its tokenizer take; where they
            take any number, 4,096.
        truncation: cut off texts that have more tokens; `truncated` counts them. Otherwise such a text is an
            error.
        backward: the model reads texts from their end, as FLAIR's backward language model does: it was
            trained on lines with their characters in reverse order. Words stay in their order.
        max_tokens_per_batch: most tokens of a batch, padding included. A text that has more by itself makes
            a batch alone.

    Raises:
        UserError: an option out of its range.
    """

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
        check_positive(max_tokens_per_batch=max_tokens_per_batch)
        if max_length is not None:
            check_positive(max_length=max_length)
        self.pooling = _choice("pooling", pooling, POOLINGS)
        self.subtoken_pooling = _choice("subtoken_pooling", subtoken_pooling, SUBTOKEN_POOLINGS)
        self.model = _body(model).eval()
        self.tokenizer = tokenizer
        self._texts = TextCodec(tokenizer)
        config = getattr(self.model, "config", model.config)  # FSMT's encoder has none of its own
        self._last = config.num_hidden_layers
        self.layers = _layer_numbers(layers, self._last)
        self.combine = _combination(combine, len(self.layers), model.device)
        self.normalize = normalize
        self.truncation = truncation
        self.truncated = 0
        self._counting = threading.Lock()
        self.backward = backward
        self.max_tokens_per_batch = max_tokens_per_batch
        self.max_length = _longest_text(model, tokenizer, max_length)
        if truncation:
            self._texts.frame().check_room(max_length=self.max_length)
        self.dtype = torch.promote_types(model.dtype, torch.float32)
        self.dimension = config.hidden_size * (len(self.layers) if combine == "concat" else 1)
        self._arguments = inspect.signature(self.model.forward).parameters
        self._blank: dict[int, bool] = {}

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        revision: str | None = None,
        allow_mismatch: bool = False,
        **options: Any,
    ) -> Embedder:
        """Load a model with its tokenizer.

        Args:
            name: a folder that a training wrote, or the folder or the name on the Hub of any model that
                `AutoModel` loads.
            device: None means a CUDA device if there is one, and else the CPU.
            dtype: of the weights; None means as saved.
            revision: branch, tag or commit on the Hub; None means `main`.
            allow_mismatch: take a tokenizer or weights that seem to be another model's.
            options: those of the class.

        Raises:
            UserError: what stands in the way, in one line (see `load_checkpoint`).
        """
        model, tokenizer, _ = load_checkpoint(
            name, device, dtype, revision, auto_class=None, allow_mismatch=allow_mismatch
        )
        return cls(model, tokenizer, **options)

    def embed(self, texts: Iterable[Text]) -> torch.Tensor:
        """One vector for each text: float [S, d]. A text may be given as its words, which spaces join.

        Raises:
            UserError: one text instead of many, or a text that is too long.
            RunError: a batch does not fit into the device's memory, or its states are not finite.
        """
        vectors = list(self.stream(texts))
        return torch.stack(vectors) if vectors else torch.zeros(0, self.dimension, dtype=self.dtype)

    def embed_tokens(self, texts: Iterable[Text]) -> list[TokenVectors]:
        """The tokens of each text, in the order in which the model reads them, with their vectors [T, d].

        Raises:
            UserError, RunError: as `embed`.
        """
        return list(self.stream(texts, "token"))

    def embed_words(self, texts: Iterable[Text]) -> list[WordVectors]:
        """The words of each text with their vectors: [W, d], or [W, 2d] for `"first_last"`.

        Args:
            texts: each a text, whose words are what stands between white space, or a list of its words.

        Raises:
            UserError: as `embed`; or the tokenizer does not tell where its tokens stand.
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
        """Embed texts as they come, in their order and in bounded memory.

        Args:
            texts: any number of them: they are read, sorted by length and embedded a buffer at a time.
            unit: what gets a vector: each text (float [d]), its tokens (`TokenVectors`) or its words
                (`WordVectors`).
            buffer_size: texts read ahead; fewer at the beginning, and where they are very long.
            progress: is told of so many more texts done, batch by batch.

        Raises:
            UserError, RunError: as `embed` and `embed_words`; of texts that are wrong, while they are read.
        """
        if isinstance(texts, str):
            raise UserError(f"expected a list of texts, got one text: write [{texts[:20]!r}]")
        check_positive(buffer_size=buffer_size)
        if unit == "word" and not self.tokenizer.is_fast:
            raise UserError(
                f"{type(self.tokenizer).__name__} does not tell where its tokens stand in a text, so words "
                "cannot be found; use a tokenizer of the tokenizers library"
            )
        return self._stream(texts, unit, buffer_size, progress or (lambda count: None))

    def _stream(
        self, texts: Iterable[Text], unit: Unit, buffer_size: int, done: Callable[[int], object]
    ) -> Iterator[Any]:
        number = 0
        for buffer in buffers(texts, buffer_size):
            sentences = [as_sentence(text) for text in buffer]
            yield from self._embed_buffer(sentences, number, unit, done)
            number += len(buffer)

    def _embed_buffer(
        self, sentences: list[Sentence], number: int, unit: Unit, done: Callable[[int], object]
    ) -> list[Any]:
        """What becomes of each text; the first is the `number`th of all."""
        read = [sentence.reversed() for sentence in sentences] if self.backward else sentences
        tokens = self._encode([sentence.text for sentence in read], number, with_offsets=unit == "word")
        results: dict[int, Any] = {}
        lengths = {row: len(of_row["input_ids"]) for row, of_row in enumerate(tokens)}
        empty = [row for row in lengths if not lengths[row]]  # which no model takes
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
                f"max_length={self.max_length}; cut it off (truncation), or raise max_length if the model "
                "takes more"
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
        """The vectors of each text of a batch: [d], [T, d] or [W, d]."""
        states = self._states(tokens)
        vectors = [self._vectors(unit, *of_text) for of_text in zip(sentences, tokens, states, strict=True)]
        together = torch.cat(vectors).cpu()
        if not together.isfinite().all():
            dtype = next(self.model.parameters()).dtype
            raise RunError(f"the model's states leave the range of {dtype}; try dtype float32")
        return together.split([len(of_text) for of_text in vectors])

    def _states(self, tokens: list[Tokens]) -> list[torch.Tensor]:
        """The states of each text of a batch, [T, d], without those of padding."""
        lengths = [len(of_text["input_ids"]) for of_text in tokens]
        if not any(lengths):
            return [torch.zeros(0, self.dimension, dtype=self.dtype)] * len(tokens)
        try:
            states = self._forward(tokens)
        except torch.OutOfMemoryError as error:
            size = f"{len(tokens)} texts of up to {max(lengths)} tokens"
            raise RunError(f"out of memory with {size}; lower max_tokens_per_batch") from error
        return [of_text[:length] for of_text, length in zip(states, lengths, strict=True)]

    @torch.no_grad()
    def _forward(self, tokens: list[Tokens]) -> torch.Tensor:
        """The chosen layers of a batch, combined: [S, T, d]."""
        outputs = self.model(**self._inputs(tokens), output_hidden_states=self.layers != [self._last])
        states = [*(outputs.hidden_states or ())[:-1], outputs.last_hidden_state]
        return self.combine([states[layer - self._last - 1].to(self.dtype) for layer in self.layers])

    def _inputs(self, tokens: list[Tokens]) -> dict[str, Any]:
        """The model's arguments: what the tokenizer gives and the model takes, padded to int64 [S, T]."""
        names = [name for name in tokens[0] if name in self._arguments]
        columns = {name: [torch.tensor(of_text[name]) for of_text in tokens] for name in names}
        columns["attention_mask"] = [torch.ones_like(of_text) for of_text in columns["input_ids"]]
        fillers = {"input_ids": self.tokenizer.pad_token_id or 0}
        device = next(self.model.parameters()).device
        inputs: dict[str, Any] = {
            name: pad_sequence(column, True, fillers.get(name, 0)).to(device)
            for name, column in columns.items()
        }
        return {**inputs, "use_cache": False} if "use_cache" in self._arguments else inputs

    def _vectors(self, unit: Unit, sentence: Sentence, tokens: Tokens, states: torch.Tensor) -> torch.Tensor:
        """From the states of one text [T, d] to its vector [d], its tokens' [T, d] or its words' [W, d]."""
        if unit == "text":
            vectors = _pool(states, POOLINGS[self.pooling])
        elif unit == "word":
            vectors = self._word_vectors(sentence, tokens, states)
        else:
            vectors = states
        return F.normalize(vectors, dim=-1) if self.normalize else vectors

    def _word_vectors(self, sentence: Sentence, tokens: Tokens, states: torch.Tensor) -> torch.Tensor:
        pooling = SUBTOKEN_POOLINGS[self.subtoken_pooling]
        spans = zip(tokens["input_ids"], tokens["offset_mapping"], strict=True)
        offsets = [(0, 0) if self._is_blank(token) else span for token, span in spans]
        words = tokens_of_words(sentence, offsets)
        no_word = _pool(states[:0], pooling)[None]
        return torch.cat([no_word[:0], *(_pool(states[of_word], pooling)[None] for of_word in words)])

    def _is_blank(self, token: int) -> bool:
        """Whether a token is but white space; some tokenizers put such a one before the first word."""
        if token not in self._blank:
            self._blank[token] = not str(self.tokenizer.decode([token])).strip()
        return self._blank[token]

    def _labelled(self, unit: Unit, sentence: Sentence, tokens: Tokens, vectors: torch.Tensor) -> Any:
        if unit == "token":
            return TokenVectors(list(self.tokenizer.convert_ids_to_tokens(tokens["input_ids"])), vectors)
        return WordVectors(sentence.words, vectors) if unit == "word" else vectors


def load_scalar_mix(path: str | Path) -> ScalarMix:
    """Read what `safetensors.torch.save_file(mix.state_dict(), path)` wrote.

    Raises:
        UserError: the file cannot be read, or holds something else.
    """
    try:
        weights = load_file(path)
        mix = ScalarMix(len(weights["layer_weights"]))
        mix.load_state_dict(weights)
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise UserError(
            f"{path} holds no scalar mix ({one_line(error)}); "
            "expected what save_file(mix.state_dict(), path) of safetensors wrote"
        ) from error
    return mix


def _pool(states: torch.Tensor, pooling: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """[N, d] -> [d]; no states at all count as one of zeros."""
    return pooling(states if len(states) else states.new_zeros(1, states.shape[1]))


def _body(model: PreTrainedModel) -> Any:
    """What computes the states: the model without its head, and of an encoder-decoder the encoder."""
    body: Any = model.base_model
    return body.get_encoder() if model.config.is_encoder_decoder else body


def _longest_text(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, asked: int | None) -> int:
    """The most tokens of a text: as many as are asked for, if the model has positions for them."""
    positions = position_limit(model)
    if positions is None or positions < 0:  # XLNet's way to say that there is no limit
        return asked or length_limit(tokenizer) or DEFAULT_LENGTH
    table: Any = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    if padding is not None:
        positions -= padding + 1  # RoBERTa counts its positions from there
    return min(positions, asked or tokenizer.model_max_length)


def _choice(name: str, value: str, choices: Mapping[str, Any]) -> str:
    if value not in choices:
        expected = ", ".join(map(repr, choices))
        raise UserError(f"{name}={value!r} is unknown; expected one of {expected}")
    return value


def _layer_numbers(layers: str | Sequence[int], last: int) -> list[int]:
    """From 0, the embeddings, to the last."""
    if isinstance(layers, str):
        return {"last": [last], "all": list(range(last + 1))}[
            _choice("layers", layers, {"last": 0, "all": 0})
        ]
    if not layers:
        raise UserError("layers=[] leaves nothing to embed with; give 'last', 'all' or numbers of layers")
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
        return COMBINATIONS[_choice("combine", combine, COMBINATIONS)]
    mixed = len(combine.layer_weights)
    if mixed != num_layers:
        raise UserError(
            f"the scalar mix is of {mixed} layers, and {num_layers} are to be mixed; "
            "choose the layers that it was trained with"
        )
    return combine.to(device)
