"""Throughput of a training: tokens, padding and arithmetic per second, of all processes together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from accelerate import Accelerator
from transformers import TrainerCallback

from vaswani.data.collation import IGNORED_LABEL
from vaswani.insight.arithmetic.calibration import matrix_peak
from vaswani.insight.arithmetic.flops import (
    FORWARD_AND_BACKWARD,
    prediction_flops,
    stack_flops,
    training_flops,
)
from vaswani.model.configuration_vaswani import (
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniFamilyConfig,
)

_peak_of = lru_cache(matrix_peak)  # measured once for all trainings of a process


class Meter(TrainerCallback):
    """Counts the batches of a training, and reports its speed since the last report.

    Args:
        accelerator: the accelerator of the processes that train together.
        config: the model's configuration; only the arithmetic of this project's models is counted.
        copies: number of processes that have the same batch.
        predicts_tokens: whether labels are tokens, so that a model of one stack computes logits for each.

    Attributes:
        passes: number of passes of each batch through the model. Its tokens count once; the arithmetic of
            each pass counts.
    """

    def __init__(
        self, accelerator: Accelerator, config: Any, copies: int, predicts_tokens: bool = True
    ) -> None:
        self.accelerator = accelerator
        self.config = config
        self.copies = copies
        self.predicts_tokens = predicts_tokens
        self.passes = 1
        self._peak: float | None = None  # operations per second of this process
        self._start_again()

    def _start_again(self) -> None:
        self._real: torch.Tensor | int = 0
        self._flops: torch.Tensor | int = 0
        self._padded = 0
        self._since = time.perf_counter()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Measure the peak speed, and start to count."""
        if self._peak is None and isinstance(self.config, VaswaniFamilyConfig):
            dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
            dtype = dtypes.get(self.accelerator.mixed_precision, torch.float32)
            self._peak = _peak_of(self.accelerator.device, dtype)
            if self.accelerator.device.type == "cuda":  # the measured products are not part of the training
                torch.cuda.reset_peak_memory_stats(self.accelerator.device)
        self._start_again()

    def count(self, inputs: dict[str, Any]) -> None:
        """Count a training batch, without waiting for the device."""
        mask, labels = inputs.get("attention_mask"), inputs["labels"]
        rows, length = (inputs["input_ids"] if mask is None else mask).shape
        self._real += rows * length if mask is None else mask.sum()
        self._padded += rows * length
        num_labels = (labels != IGNORED_LABEL).sum()
        if self.config.is_encoder_decoder:
            self._real += num_labels
            self._padded += labels.numel()
        if isinstance(self.config, VaswaniConfig):
            self._flops += training_flops(self.config, rows * self.passes, length, labels.shape[1])
        elif isinstance(self.config, VaswaniEncoderConfig | VaswaniDecoderConfig):
            forward = stack_flops(self.config, self.config.stacks[0], rows, length)
            predicted = prediction_flops(self.config, num_labels) if self.predicts_tokens else 0
            self._flops += FORWARD_AND_BACKWARD * (forward + predicted)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of evaluations and checkpoints."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._since += time.perf_counter() - start

    def report(self) -> dict[str, float]:
        """Return real tokens, tokens per second, the share of padding, TFLOP/s and MFU since the last report.

        The model FLOPs utilization (MFU) is relative to a measured peak: the speed of a large matrix product
        on the same devices. All processes must call this.
        """
        if not self._padded:
            return {}
        seconds = time.perf_counter() - self._since
        counts = [float(self._real), self._padded, float(self._flops), self._peak or 0.0]
        mine = torch.tensor(counts, dtype=torch.float64, device="cpu").to(
            self.accelerator.device, torch.float32
        )
        real, padded, flops, peak = self.accelerator.gather(mine[None]).sum(0).tolist()
        self._start_again()
        tokens = real / self.copies
        told = {"tokens": tokens, "tokens_per_second": tokens / seconds, "padding": 1 - real / padded}
        if flops:
            speed = flops / self.copies / seconds
            told |= {"tflops": speed / 1e12, "mfu": speed / peak}
        return told
