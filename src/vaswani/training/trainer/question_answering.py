"""A trainer of models that answer questions by spans of texts.

B windows of a batch · T tokens · N spans
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from accelerate.utils import send_to_device

from vaswani.inference.answer.spans import best_spans
from vaswani.model.losses import token_loss_function
from vaswani.training.config.training_arguments import FinetuningTrainingArguments
from vaswani.training.trainer.base import BaseTrainer


def span_loss(
    outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Mean cross-entropy of the first and the last tokens of answers, in nats per label, a float32 scalar.

    Args:
        outputs: `start_logits` and `end_logits`, [B, T].
        labels: int64 [B, 2], the first and the last token.
        num_items_in_batch: number of labels in the whole batch, of which these may be a part; default: these.
    """
    logits = torch.stack([outputs.start_logits, outputs.end_logits], dim=1)  # [B, 2, T]
    return token_loss_function(logits, labels, num_items_in_batch)


class QuestionTrainer(BaseTrainer):
    """Trains a model on windows of texts, and finds the best spans of evaluated windows.

    Windows hold `input_ids`, `labels` and, where the model has token types, `token_type_ids`; batches of an
    evaluation also `places` (see `WindowCollator`).

    Args:
        max_answer_length: most tokens of an answer.
        n_best: number of spans to keep of each window.
        kwargs: as for `BaseTrainer`.
    """

    args: FinetuningTrainingArguments

    def __init__(self, *, max_answer_length: int, n_best: int, **kwargs: Any):
        super().__init__(compute_loss_func=span_loss, **kwargs)
        self.label_smoother = None
        self.max_answer_length, self.n_best = max_answer_length, n_best

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As in transformers, without the logits of padding, whose number depends on the batch."""
        return super().compute_loss(partial(_outputs, model), inputs, *args, **kwargs)  # type: ignore[arg-type]

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Loss per label, best spans [B, 1 + N, 3] (see `best_spans`) and labels of one batch."""
        inputs = send_to_device({**inputs}, self.args.device)
        labels, places = inputs.pop("labels"), inputs.pop("places")
        with torch.no_grad(), self.accelerator.autocast():
            outputs = _outputs(model, **inputs)
        loss = span_loss(outputs, labels)
        if prediction_loss_only:
            return loss, None, None
        logits = outputs.start_logits, outputs.end_logits
        return loss, best_spans(*logits, places, self.n_best, self.max_answer_length), labels


def _outputs(model: torch.nn.Module, **inputs: Any) -> Any:
    """Return the logits of a model in float32, −inf for padding: `start_logits`, `end_logits`."""
    outputs, padded = model(**inputs), inputs["attention_mask"] == 0
    return SimpleNamespace(
        start_logits=outputs.start_logits.float().masked_fill(padded, -torch.inf),
        end_logits=outputs.end_logits.float().masked_fill(padded, -torch.inf),
    )
