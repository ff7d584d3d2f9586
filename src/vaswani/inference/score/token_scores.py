"""The log-probability of each token of a text, by encoder-decoders, causal and masked language models.

R rows of a batch · T tokens of the longest · V vocabulary
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.text_codec import TextCodec, begin_token_id
from vaswani.errors import UserError
from vaswani.inference.batches import padded, padded_inputs
from vaswani.inference.language_model import check_causal
from vaswani.inference.pairs import Pair, PairEncoder
from vaswani.inference.position_limits import longest_text
from vaswani.inference.token_log_probs import rows_at_once, token_log_probs
from vaswani.kernels.cross_entropy_native import log_probs_of


@dataclass(frozen=True)
class Encoded:
    """An encoded text that a model can score.

    Args:
        columns: the model's inputs by name; each is a list with one number per token.
        scored: the ids of the tokens that are scored.
        size: number of tokens of one of its rows in a batch.
        rows: number of its rows in batches; a masked model needs one row for each scored token.
        problem: why the text is not scored; None if it is.
        cut_off: whether its source is truncated.
    """

    columns: dict[str, list[int]]
    scored: list[int]
    size: int
    rows: int = 1
    problem: str | None = None
    cut_off: bool = False


class TokenScores(ABC):
    """Scores the tokens of texts by one kind of model.

    Attributes:
        codec: encodes the texts.
        forced_token_id: begins every text if the model forces a first token; else None.
    """

    codec: TextCodec
    forced_token_id: int | None = None

    @abstractmethod
    def encode(self, texts: Sequence[Any]) -> list[Encoded]:
        """Encode texts for scoring."""

    @abstractmethod
    def log_probs(self, batch: Sequence[tuple[Encoded, int]]) -> list[list[float]]:
        """Return, for each row of a batch, the log-probabilities of the tokens that the row scores.

        Args:
            batch: pairs of a text and the number of one of its rows.
        """


class PairScores(TokenScores):
    """Scores targets by an encoder-decoder: log P(y_t | y_<t, X).

    Args:
        model: an encoder-decoder.
        pairs: encodes sources and targets.
    """

    def __init__(self, model: PreTrainedModel, pairs: PairEncoder):
        self.model, self.pairs, self.codec = model, pairs, pairs.targets
        self.forced_token_id = pairs.forced_token_id
        self._pad_token_id: int | None = model.config.pad_token_id

    def encode(self, texts: Sequence[Pair]) -> list[Encoded]:
        """Encode pairs for scoring; a source with several targets is encoded once."""
        distinct = list(dict.fromkeys(pair.source for pair in texts))
        sources = dict(zip(distinct, self.pairs.encode_sources(distinct), strict=True))
        targets = self.pairs.encode_targets(
            [pair.target for pair in texts], [pair.complete for pair in texts]
        )
        encoded = []
        for pair, target in zip(texts, targets, strict=True):
            source = sources[pair.source]
            problems = {"source": source.problem, "target": target.problem}
            named = (f"its {side} {problem}" for side, problem in problems.items() if problem)
            columns = {"source": source.token_ids, "target": target.token_ids}
            size = len(source.token_ids) + len(target.token_ids)
            problem = next(named, None)
            encoded.append(Encoded(columns, target.token_ids, size, problem=problem, cut_off=source.cut_off))
        return encoded

    def log_probs(self, batch: Sequence[tuple[Encoded, int]]) -> list[list[float]]:
        """Return the log-probabilities of the tokens of each target."""
        device = self.model.device
        sources = [tuple(text.columns["source"]) for text, _ in batch]
        numbers = {source: number for number, source in enumerate(dict.fromkeys(sources))}
        targets = [[self.pairs.start_token_id, *text.columns["target"]] for text, _ in batch]
        lengths = [len(text.columns["target"]) for text, _ in batch]
        log_probs = token_log_probs(
            self.model,
            *padded(numbers, self._pad_token_id, device),
            padded(targets, self._pad_token_id, device)[0],
            torch.tensor(lengths, device=device),
            torch.tensor([numbers[source] for source in sources], device=device),
        )
        return [row[:length] for row, length in zip(log_probs.tolist(), lengths, strict=True)]


class TextScores(TokenScores):
    """Scores texts by a language model.

    Args:
        model: a causal or masked language model.
        tokenizer: adds the special tokens that the model was trained with.
        max_length: maximum tokens of a text; longer texts get a `problem`. None means the limit of the model
            and tokenizer, or 4,096 if they have none.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None
    ):
        self.model, self.tokenizer, self.codec = model, tokenizer, TextCodec(tokenizer)
        self.max_length = longest_text(model, tokenizer, max_length)
        self._frame = self.codec.frame()
        self._frame.check_room(max_length=self.max_length)
        self._arguments = inspect.signature(model.forward).parameters

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Encode texts for scoring."""
        columns = self.codec.encode(list(texts)) if texts else {}
        return [
            self._encoded({name: column[number] for name, column in columns.items()})
            for number in range(len(texts))
        ]

    def _encoded(self, columns: dict[str, list[int]]) -> Encoded:
        raise NotImplementedError

    def _problem(self, length: int) -> str | None:
        if length <= self.max_length:
            return None
        return (
            f"it has {length:,} tokens, and at most {self.max_length:,} can be read; split it, or raise "
            "max_length where the model has positions for more"
        )

    @torch.inference_mode()
    def _logits(self, rows: Sequence[dict[str, list[int]]]) -> torch.Tensor:
        """Return the logits of a few rows: [R, T, V]."""
        outputs: Any = self.model(
            **padded_inputs(rows, self._arguments, self.tokenizer.pad_token_id, self.model.device)
        )
        of_two = getattr(outputs, "prediction_logits", None)  # for models with BERT's two objectives
        return outputs.logits if of_two is None else of_two

    def _parts(self, rows: Sequence[dict[str, list[int]]]) -> list[list[int]]:
        """Split the row numbers into parts whose logits fit into memory."""
        embeddings: Any = self.model.get_input_embeddings()  # a row for each token, as of the logits
        logits = max(len(row["input_ids"]) for row in rows) * embeddings.weight.shape[0]
        return [part.tolist() for part in rows_at_once(len(rows), logits, torch.device("cpu"))]


class CausalScores(TextScores):
    """Scores texts by a causal language model: log P(x_t | x_<t).

    A begin token (`<s>`) precedes each text, even if the tokenizer does not add it. All tokens of the text
    are scored, and its end token if the tokenizer adds one. If the tokenizer has no begin token, the first
    token of the text is not scored.

    Raises:
        UserError: the model is not causal.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None
    ):
        super().__init__(model, tokenizer, max_length)
        check_causal(model)
        begin = begin_token_id(tokenizer)
        self._begin = [] if self._frame.leading or begin is None else [begin]
        self._start = max(1, len(self._frame.leading))

    def _encoded(self, columns: dict[str, list[int]]) -> Encoded:
        ids = [*self._begin, *columns["input_ids"]]
        # The last token predicts nothing; a text of one token is read, although nothing is scored.
        inputs, scored = ids[:-1], ids[self._start :]
        return Encoded(
            {"input_ids": inputs},
            scored,
            len(inputs),
            rows=1 if scored else 0,
            problem=self._problem(len(ids) - len(self._begin)) or self._problem(len(inputs)),
        )

    def log_probs(self, batch: Sequence[tuple[Encoded, int]]) -> list[list[float]]:
        """Return the log-probabilities of the scored tokens of each text."""
        device, first = self.model.device, self._start - 1
        found: list[list[float]] = []
        for part in self._parts([text.columns for text, _ in batch]):
            texts = [batch[number][0] for number in part]
            targets = [torch.tensor(text.scored, device=device) for text in texts]
            logits = self._logits([text.columns for text in texts])[:, first:]
            log_probs = log_probs_of(logits, pad_sequence(targets, True))
            rows = zip(log_probs.tolist(), texts, strict=True)
            found += [row[: len(text.scored)] for row, text in rows]
        return found


class MaskedScores(TextScores):
    """Scores texts by a masked language model: log P(x_t | all other tokens).

    Each token is masked in turn. The sum of the log-probabilities is the pseudo-log-likelihood of Salazar et
    al. (2020, arXiv:1910.14659). Special tokens that the tokenizer adds are neither masked nor scored.

    Raises:
        UserError: the tokenizer has no mask token.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None
    ):
        super().__init__(model, tokenizer, max_length)
        if tokenizer.mask_token_id is None:
            raise UserError(
                "the tokenizer has no mask_token, so that no token can be masked; give the model's tokenizer"
            )
        self._mask_token_id: int = tokenizer.mask_token_id

    def _encoded(self, columns: dict[str, list[int]]) -> Encoded:
        ids = columns["input_ids"]
        scored = ids[len(self._frame.leading) : len(ids) - len(self._frame.trailing)]
        return Encoded(columns, scored, len(ids), rows=len(scored), problem=self._problem(len(ids)))

    def log_probs(self, batch: Sequence[tuple[Encoded, int]]) -> list[list[float]]:
        """Return the log-probability of the token that is masked in each row."""
        device = self.model.device
        rows, places, targets = [], [], []
        for text, number in batch:
            place = len(self._frame.leading) + number
            ids = [*text.columns["input_ids"]]
            ids[place] = self._mask_token_id
            rows.append({**text.columns, "input_ids": ids})
            places.append(place)
            targets.append(text.scored[number])
        found: list[float] = []
        for part in self._parts(rows):
            logits = self._logits([rows[number] for number in part])
            masked = torch.tensor([places[number] for number in part], device=device)
            logits = logits[torch.arange(len(part), device=device), masked]  # [R, V]
            predicted = torch.tensor([targets[number] for number in part], device=device)
            found += log_probs_of(logits, predicted).tolist()
        return [[log_prob] for log_prob in found]
