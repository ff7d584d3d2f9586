"""A learned weighted sum of a model's layers, as in ELMo (Peters et al., 2018, arXiv:1802.05365, eq. 1)."""

from collections.abc import Sequence

import torch
from torch import nn


class ScalarMix(nn.Module):
    """γ · Σ softmax(w)_l · h_l over layers l, where w and γ are trained with a task.

    The model may be frozen and its layers computed once; then only the mix and the task's head are trained:

        mix, head = ScalarMix(config.num_hidden_layers + 1), nn.Linear(config.hidden_size, num_labels)
        logits = head(mix(model(**batch, output_hidden_states=True).hidden_states))

    The parameters are `layer_weights`, w, float32 [num_layers], initially 0 (layers have equal weight), and
    `gamma`, γ, float32 [], initially 1. The paper's optional layer normalisation is left out.

    Args:
        num_layers: number of layers to mix. A model has `num_hidden_layers` + 1, with the embeddings.
    """

    def __init__(self, num_layers: int):
        super().__init__()
        self.layer_weights = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[torch.Tensor] | torch.Tensor) -> torch.Tensor:
        """Mix `num_layers` tensors of equal shape, or one tensor [num_layers, ...], into one tensor [...].

        Raises:
            ValueError: for another number of layers.
        """
        if len(layers) != len(self.layer_weights):
            raise ValueError(f"expected {len(self.layer_weights)} layers to mix, got {len(layers)}")
        weights = self.layer_weights.softmax(dim=0)
        weighted = [weight * layer for weight, layer in zip(weights, layers, strict=True)]
        return self.gamma * torch.stack(weighted).sum(dim=0)
