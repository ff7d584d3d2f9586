"""Random draws for training rows, different in each epoch but reproducible."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
import torch


class RowNoise:
    """Random draws for each row: a pure function of the seed, the epoch and the row's tokens.

    The draws do not depend on the row's batch, its process or earlier draws, so a resumed run repeats them
    exactly.

    Args:
        seed: not negative.
    """

    def __init__(self, seed: int = 0):
        self.seed = seed
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers of a loader see it

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which selects the draws; 0 at first."""
        self._epoch.fill_(epoch)

    def generator(self, tokens: npt.NDArray[np.int64]) -> np.random.Generator:
        """Return the generator of a row with these tokens: int64 [N]."""
        return np.random.default_rng((self.seed, int(self._epoch), zlib.crc32(tokens.tobytes())))
