"""Our layers compute what PyTorch's own Transformer layers compute: outputs and gradients."""

import pytest
import torch
from torch import nn

from tiny import tiny_config
from vaswani.model.attention import VaswaniAttention
from vaswani.model.stacks import VaswaniDecoderLayer, VaswaniEncoderLayer

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


def copy_attention(ours: VaswaniAttention, theirs: nn.MultiheadAttention) -> None:
    with torch.no_grad():
        weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
        for name, weight, bias in zip(("q_proj", "k_proj", "v_proj"), weights, biases, strict=True):
            getattr(ours, name).weight.copy_(weight)
            getattr(ours, name).bias.copy_(bias)
    ours.out_proj.load_state_dict(theirs.out_proj.state_dict())


def copy_layer(ours: nn.Module, theirs: nn.Module) -> None:
    copy_attention(ours.self_attn, theirs.self_attn)
    norms = [ours.self_attn_layer_norm, ours.final_layer_norm]
    if isinstance(ours, VaswaniDecoderLayer):
        copy_attention(ours.encoder_attn, theirs.multihead_attn)
        norms.insert(1, ours.encoder_attn_layer_norm)
    for index, norm in enumerate(norms, start=1):
        norm.load_state_dict(getattr(theirs, f"norm{index}").state_dict())
    ours.fc1.load_state_dict(theirs.linear1.state_dict())
    ours.fc2.load_state_dict(theirs.linear2.state_dict())


def randomise(module: nn.Module) -> None:
    """Biases and norms start at 0 and 1, which would hide a mistake in them."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


def gradients(output: torch.Tensor, inputs: list[torch.Tensor], module: nn.Module) -> list[torch.Tensor]:
    weights = torch.randn(output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(1))
    leaves = [*inputs, module.fc1.weight if hasattr(module, "fc1") else module.linear1.weight]
    return list(torch.autograd.grad((output * weights).sum(), leaves))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_encoder_layer(norm_order: str, activation: str, implementation: str) -> None:
    config = tiny_config(norm_order=norm_order, activation_function=activation, encoder_attention_heads=8)
    config._attn_implementation = implementation
    ours = VaswaniEncoderLayer(config, 0).double()
    theirs = nn.TransformerEncoderLayer(
        32, 8, 48, 0.0, activation, batch_first=True, norm_first=norm_order == "pre"
    ).double()
    randomise(theirs)
    copy_layer(ours, theirs)
    x = torch.randn(3, 9, 32, dtype=torch.float64, requires_grad=True)
    visible = torch.ones(3, 9, dtype=torch.bool)
    visible[1, 5:] = visible[2, :3] = False

    expected = theirs(x, src_key_padding_mask=~visible)
    actual = ours(x, visible[:, None, None])
    torch.testing.assert_close(actual, expected, **TOLERANCE)
    for mine, reference in zip(gradients(actual, [x], ours), gradients(expected, [x], theirs), strict=True):
        torch.testing.assert_close(mine, reference, **TOLERANCE)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_decoder_layer(norm_order: str, implementation: str) -> None:
    config = tiny_config(norm_order=norm_order, decoder_attention_heads=4)
    config._attn_implementation = implementation
    ours = VaswaniDecoderLayer(config, 0).double()
    theirs = nn.TransformerDecoderLayer(
        32, 4, 40, 0.0, batch_first=True, norm_first=norm_order == "pre"
    ).double()
    randomise(theirs)
    copy_layer(ours, theirs)
    x = torch.randn(3, 6, 32, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(3, 9, 32, dtype=torch.float64, requires_grad=True)
    visible = torch.ones(3, 9, dtype=torch.bool)
    visible[1, 5:] = False
    causal = torch.ones(6, 6, dtype=torch.bool).tril()

    expected = theirs(x, memory, tgt_mask=~causal, memory_key_padding_mask=~visible)
    actual = ours(x, causal, memory, visible[:, None, None])
    torch.testing.assert_close(actual, expected, **TOLERANCE)
    leaves = [x, memory]
    for mine, reference in zip(
        gradients(actual, leaves, ours), gradients(expected, leaves, theirs), strict=True
    ):
        torch.testing.assert_close(mine, reference, **TOLERANCE)
