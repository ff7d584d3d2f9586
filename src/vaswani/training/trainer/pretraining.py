"""A trainer of masked and causal language models, and its scores.

B rows of a batch · S its longest sequence of labels · N labels of a batch · V vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from accelerate.utils import send_to_device
from torch.nn.functional import cross_entropy, pad
from transformers import PreTrainedModel

from vaswani.data.collation import IGNORED_LABEL
from vaswani.data.text.sequences import boundary_token_ids
from vaswani.data.tokenization import bytes_in_front, bytes_of_tokens, is_byte_level
from vaswani.model.losses import next_sentence_loss, token_loss_function
from vaswani.training.trainer.adapted import base_model
from vaswani.training.trainer.base import BaseTrainer, without_cache

LOGITS_AT_ONCE = 1 << 26  # most logits of an evaluated batch in memory; 256 MiB
MAX_NATS = 700  # a float can hold the exponential of this number


class Sums(NamedTuple):
    """The sums of an evaluation: values [B] for the rows of a batch, or their totals over all rows."""

    nats: Any  # summed loss of the labels
    labels: Any  # number of labels
    correct: Any  # number of labels that are the likeliest tokens
    bytes: Any  # bytes of the labels' text
    pairs: Any = 0  # 1 where the row is a pair of segments
    pair_nats: Any = 0  # next-sentence loss
    pairs_correct: Any = 0  # 1 where the next-sentence prediction is correct


class PretrainingTrainer(BaseTrainer):
    """Trains a language model on sequences of tokens.

    A collator adds `labels`: the masked tokens or, for a causal model, all tokens, which the model shifts.
    Evaluation computes over the whole data set: `loss`, nats per label, plus the next-sentence loss;
    `perplexity` and `accuracy` (%) of the labels; for a causal model `bits_per_byte` of the text, `</s>`
    included; and, where rows are pairs, `next_sentence_accuracy` (%).

    Attributes:
        is_causal: whether each state predicts the next token.
        measures_bytes: whether labels are whole texts of a byte-level tokenizer, predicted from left to
            right.
        sums: the sums for each row of the latest evaluation (see `Sums`): float64 [rows, 7].
    """

    sums: np.ndarray
    labels_are_texts: ClassVar[bool] = True

    def __init__(self, *, model: Any, **kwargs: Any):
        whole = base_model(model)
        self.is_causal = whole.can_generate() and not whole.config.is_encoder_decoder
        super().__init__(model=model, **kwargs)
        self.forward_options = without_cache(whole)
        if "smoothing" in signature(whole.forward).parameters:
            # Our models then compute the loss in one pass with the output projection, of the labels alone.
            self.forward_options["smoothing"] = 0.0
        elif not getattr(whole.config, "output_router_logits", False):  # its loss is the model's alone
            # Many models of the library give each batch the same weight, whatever its labels, and some
            # causal ones (BART's) do not shift the labels.
            self.compute_loss_func = self._loss_of_outputs
        self._next_sentence_label: torch.Tensor | None = None  # of the current batch
        tokenizer: Any = self.processing_class
        self.measures_bytes = self.is_causal and self.labels_are_texts and is_byte_level(tokenizer)
        if self.measures_bytes:
            self._bytes = torch.from_numpy(bytes_of_tokens(tokenizer)).to(self.args.device)
            self._bytes_in_front = bytes_in_front(tokenizer)
            self._begin, _ = boundary_token_ids(tokenizer)

    # ---------------------------------------------------------------------------------------------- training

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As in `BaseTrainer`."""
        self._next_sentence_label = inputs.get("next_sentence_label")
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _loss_of_outputs(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """The loss that our models compute, from the outputs of other models."""
        follows = self._next_sentence_label
        if self.is_causal:
            labels = predicted_tokens(labels)
        logits = outputs.logits if follows is None else outputs.prediction_logits
        loss = token_loss_function(logits, labels, num_items_in_batch)
        if follows is not None:
            relation_logits = outputs.seq_relationship_logits
            loss = loss + next_sentence_loss(relation_logits, follows, labels, num_items_in_batch)
        return loss

    # -------------------------------------------------------------------------------------------- evaluation

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: Any = None,
    ) -> tuple[None, torch.Tensor, None]:
        """The sums of each row: float64 [B, 7] (see `Sums`)."""
        inputs = send_to_device({**inputs}, self.args.device)
        with torch.no_grad():
            return None, torch.cat([self._sums(part) for part in self._parts(inputs)]), None

    def _parts(self, inputs: dict[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
        """Split the batch into parts, of one row or more, whose logits fit in `LOGITS_AT_ONCE`."""
        rows, length = inputs["labels"].shape
        most = max(1, LOGITS_AT_ONCE // (length * self.model.config.vocab_size))
        for start in range(0, rows, most):
            yield {name: value[start : start + most] for name, value in inputs.items()}

    def _sums(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """The sums of each row: float64 [B, 7]."""
        tokens, labels = inputs["input_ids"], inputs.pop("labels")
        follows = inputs.pop("next_sentence_label", None)
        if self.is_causal:
            labels = predicted_tokens(labels)
        kept = labels != IGNORED_LABEL
        with self.accelerator.autocast(), logits_of(kept, self.model):
            outputs = self.model(**inputs, **self.forward_options)
        logits = outputs.logits if follows is None else outputs.prediction_logits
        sums = self._label_sums(tokens, logits.float(), labels, kept)
        if follows is not None:
            relation = outputs.seq_relationship_logits.float()
            sums = sums._replace(
                pairs=torch.ones_like(follows),
                pair_nats=cross_entropy(relation, follows, reduction="none"),
                pairs_correct=relation.argmax(-1) == follows,
            )
        columns = [torch.as_tensor(column, device=tokens.device).double() for column in sums]
        return torch.stack([column.expand(len(tokens)) for column in columns], dim=1)

    def _label_sums(
        self, tokens: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor, kept: torch.Tensor
    ) -> Sums:
        """The sums of each row that concern its labels: float64 [B] each.

        Args:
            tokens: int64 [B, S], whose states predict the labels.
            logits: float32 [N, V], of the tokens with a label.
            labels: int64 [B, S].
            kept: bool [B, S], which tokens have a label.
        """
        rows, found = kept.nonzero()[:, 0], labels[kept]

        def of_rows(values: torch.Tensor) -> torch.Tensor:
            zeros = torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device)
            return zeros.index_add(0, rows, values.double())

        return Sums(
            nats=of_rows(cross_entropy(logits, found, reduction="none")),
            labels=kept.sum(1),
            correct=of_rows(logits.argmax(-1) == found),
            bytes=of_rows(self._bytes_of(tokens[kept], found)) if self.measures_bytes else 0,
        )

    def _bytes_of(self, before: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Bytes of the text of labels [N], given the tokens before them [N]."""
        return self._bytes[labels] - (before == self._begin).long() * self._bytes_in_front

    def scores(
        self, dataset: Any, predictions: np.ndarray | None, labels: np.ndarray | None
    ) -> dict[str, float]:
        """The scores over all rows; the sums of the rows [rows, 7] are kept as `sums`."""
        if predictions is None:
            return {}
        self.sums = predictions
        return self.scores_of(predictions.sum(0))

    def scores_of(self, total: np.ndarray) -> dict[str, float]:
        """The scores of rows whose sums (see `Sums`) add up to these: float64 [7]."""
        sums = Sums(*total.tolist())
        loss = sums.nats / max(sums.labels, 1)
        scores = {
            "loss": loss + (sums.pair_nats / sums.pairs if sums.pairs else 0.0),
            "perplexity": math.exp(min(loss, MAX_NATS)),
            "accuracy": 100 * sums.correct / max(sums.labels, 1),
        }
        if self.measures_bytes:
            scores["bits_per_byte"] = sums.nats / math.log(2) / max(sums.bytes, 1)
        if sums.pairs:
            scores["next_sentence_accuracy"] = 100 * sums.pairs_correct / sums.pairs
        return scores


def predicted_tokens(labels: torch.Tensor) -> torch.Tensor:
    """The label of the next token for each token of a causal model, −100 for the last: int64 [B, S]."""
    return pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL)


@contextmanager
def logits_of(kept: torch.Tensor, *models: PreTrainedModel) -> Iterator[None]:
    """Let output projections see only the states of `kept` tokens, bool [B, S]: logits are [N, V]."""
    hooks = [
        model.get_output_embeddings().register_forward_pre_hook(lambda _, states: states[0][kept])
        for model in models
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
