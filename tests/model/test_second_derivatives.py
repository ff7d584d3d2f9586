"""Gradients of gradients, as of a penalty on them: right with eager attention, and else an error."""

import pytest
import torch

from vaswani import VaswaniDecoderConfig, VaswaniForCausalLM


def gradients_of_penalty(implementation: str, dtype: torch.dtype) -> torch.Tensor:
    """Of the summed squares of the loss's gradients, by all parameters; large enough for the kernels."""
    torch.manual_seed(0)
    shape = {"d_model": 128, "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 512}
    config = VaswaniDecoderConfig(vocab_size=60, **shape, dropout=0.0, attn_implementation=implementation)
    model, tokens = VaswaniForCausalLM(config).to(dtype), torch.randint(4, 60, (32, 20))
    loss = model(input_ids=tokens, labels=tokens).loss
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    sum(gradient.square().sum() for gradient in gradients).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()


def test_eager_attention_has_second_derivatives() -> None:
    expected = gradients_of_penalty("eager", torch.float64)
    found = gradients_of_penalty("eager", torch.float32)
    assert (found - expected).norm() < 1e-5 * expected.norm()


def test_attention_kernels_refuse_second_derivatives() -> None:
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradients_of_penalty("sdpa", torch.float32)
