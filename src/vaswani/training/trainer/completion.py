"""A trainer of causal language models on completions of prompts."""

from typing import ClassVar

from vaswani.training.trainer.pretraining import PretrainingTrainer


class CompletionTrainer(PretrainingTrainer):
    """As `PretrainingTrainer`, with labels only for completions, and any tokenizer: bytes are not counted."""

    measures_bytes: ClassVar[bool] = False
