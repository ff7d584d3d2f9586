"""A trainer of encoder-decoders that write the text that was removed from a source."""

from __future__ import annotations

from typing import Any, ClassVar

from vaswani.data.columns import Integers
from vaswani.training.trainer.data_loaders import lengths_of
from vaswani.training.trainer.pretraining import PretrainingTrainer


class DenoisingTrainer(PretrainingTrainer):
    """As `PretrainingTrainer`, for sources with targets, whose `perplexity` and `accuracy` it computes.

    Rows of a data set hold `source_length` and `target_length`, which decide how many rows fit into a batch.
    """

    labels_are_texts: ClassVar[bool] = False

    def row_lengths(self, dataset: Any) -> tuple[Integers, Integers]:
        """Tokens of each source [N] and of each target [N]."""
        return (
            lengths_of(dataset, "input_ids", "source_length"),
            lengths_of(dataset, "input_ids", "target_length"),
        )
