"""ELMo's scalar mix: equation 1 term by term, and that it learns which layer a task needs."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from vaswani.inference.embed.scalar_mix import ScalarMix


def random_mix(num_layers: int) -> ScalarMix:
    mix = ScalarMix(num_layers).double()
    with torch.no_grad():
        mix.layer_weights.normal_()
        mix.gamma.normal_()
    return mix


def test_a_scalar_mix_equals_equation_1_of_the_paper() -> None:
    mix, layers = random_mix(4), torch.randn(4, 2, 3, 5, dtype=torch.float64)
    exponentials = [math.exp(weight) for weight in mix.layer_weights.tolist()]
    expected = torch.zeros_like(layers[0])
    for exponential, layer in zip(exponentials, layers, strict=True):
        expected += mix.gamma.item() * exponential / sum(exponentials) * layer
    torch.testing.assert_close(mix(tuple(layers)), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(mix(layers), expected, rtol=0, atol=1e-10)


def test_a_new_mix_is_the_mean_of_the_layers() -> None:
    layers = torch.randn(3, 2, 5)
    torch.testing.assert_close(ScalarMix(3)(layers), layers.mean(dim=0))


def test_gradients_reach_the_weights_gamma_and_the_layers() -> None:
    mix, layers = random_mix(3), torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)

    def mixed(weights: torch.Tensor, gamma: torch.Tensor, layers: torch.Tensor) -> torch.Tensor:
        parameters = {"layer_weights": weights, "gamma": gamma}
        return torch.func.functional_call(mix, parameters, (layers,))

    assert torch.autograd.gradcheck(mixed, (mix.layer_weights, mix.gamma, layers))


@pytest.mark.parametrize("informative", [0, 2])
def test_a_probe_on_frozen_layers_learns_to_prefer_the_informative_one(informative: int) -> None:
    layers = torch.randn(3, 256, 8)
    labels = (layers[informative] @ torch.randn(8) > 0).float()
    mix, probe = ScalarMix(3), nn.Linear(8, 1)
    optimizer = torch.optim.Adam([*mix.parameters(), *probe.parameters()], lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(probe(mix(layers))[:, 0], labels).backward()
        optimizer.step()
    assert mix.layer_weights.softmax(dim=0)[informative] > 0.8
    assert mix.gamma != 1


def test_a_mix_is_saved_and_loaded_in_safetensors(tmp_path: Path) -> None:
    mix, loaded = random_mix(3), ScalarMix(3).double()
    save_file(mix.state_dict(), tmp_path / "mix.safetensors")
    loaded.load_state_dict(load_file(tmp_path / "mix.safetensors"))
    layers = torch.randn(3, 4, dtype=torch.float64)
    assert torch.equal(loaded(layers), mix(layers))


def test_another_number_of_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 3 layers to mix, got 2"):
        ScalarMix(3)(torch.randn(2, 4))
