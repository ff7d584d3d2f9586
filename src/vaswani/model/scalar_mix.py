# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""A learned weighted sum of a model's layers, as in ELMo (Peters et al., 2018, arXiv:1802.05365, eq. 1)."""

from collections.abc import Sequence

import torch
from torch import nn


class ScalarMix(nn.Module):
    """γ · Σ softmax(w)_l · h_l over layers l, with w and γ that train with a task.

    The model may stay as it is, and its layers be computed once; what learns is the mix and the task's head:

        mix, head = ScalarMix(config.num_hidden_layers + 1), nn.Linear(config.hidden_size, num_labels)
        logits = head(mix(model(**batch, output_hidden_states=True).hidden_states))

    The paper's layer normalisation, which "in some cases also helped", is not in it. The parameters are
    `layer_weights`, w, float32 [num_layers], which begin at 0: all layers count alike; and `gamma`, γ,
    float32 [], which begins at 1.

    Args:
        num_layers: layers that are mixed; all of a model are one more than its `num_hidden_layers`, for the
            embeddings count.
    """

    def __init__(self, num_layers: int):
        super().__init__()
        self.layer_weights = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[torch.Tensor] | torch.Tensor) -> torch.Tensor:
        """Mix so many tensors of one shape, or one tensor [num_layers, ...]: the result has their shape.

        Raises:
            ValueError: the layers are not `num_layers`.
        """
        if len(layers) != len(self.layer_weights):
            raise ValueError(f"expected {len(self.layer_weights)} layers to mix, got {len(layers)}")
        weights = self.layer_weights.softmax(dim=0)
        weighted = [weight * layer for weight, layer in zip(weights, layers, strict=True)]
        return self.gamma * torch.stack(weighted).sum(dim=0)
