"""A trainer of encoder-decoders that write the text that was removed from a source."""

from __future__ import annotations

from inspect import signature
from typing import Any, ClassVar

import torch

from vaswani.data.columns import Integers
from vaswani.model.losses import token_loss_function
from vaswani.training.trainer.data_loaders import lengths_of
from vaswani.training.trainer.pretraining import PretrainingTrainer


class DenoisingTrainer(PretrainingTrainer):
    """As `PretrainingTrainer`, for sources with targets, whose `perplexity` and `accuracy` it computes.

    Rows of a data set hold `source_length` and `target_length`, which decide how many rows fit into a batch.
    """

    labels_are_texts: ClassVar[bool] = False

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        if "smoothing" not in signature(self.model.forward).parameters:
            # The library's own loss would give batches of any size the same weight.
            self.compute_loss_func = self._token_loss

    def row_lengths(self, dataset: Any) -> tuple[Integers, Integers]:
        """Tokens of each source [N] and of each target [N]."""
        return (
            lengths_of(dataset, "input_ids", "source_length"),
            lengths_of(dataset, "input_ids", "target_length"),
        )

    def _token_loss(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        return token_loss_function(outputs.logits, labels, num_items_in_batch)
