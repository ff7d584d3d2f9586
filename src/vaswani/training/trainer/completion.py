"""A trainer of causal language models on completions of prompts."""

from typing import ClassVar

from vaswani.training.trainer.pretraining import PretrainingTrainer


class CompletionTrainer(PretrainingTrainer):
    """As `PretrainingTrainer`, with labels only for completions, whose bytes are not counted."""

    labels_are_texts: ClassVar[bool] = False
