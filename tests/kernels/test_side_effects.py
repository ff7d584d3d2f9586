"""Importing the package and computing with its models changes nothing else in the process."""

import subprocess
import sys

import pytest

SCRIPT = """
import os, torch, transformers
from transformers import (
    AttentionInterface, GenerationMixin, MarianConfig, MarianMTModel, PreTrainedModel, PreTrainedConfig
)
from transformers.utils import PushToHubMixin

def settings():
    return {
        "matmul": torch.backends.mkldnn.matmul.fp32_precision,
        "conv": torch.backends.mkldnn.conv.fp32_precision,
        "precision": torch.get_float32_matmul_precision(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "environment": dict(os.environ),
        **{f"{kind.__name__}.{name}": value for kind in (
            PreTrainedModel, PreTrainedConfig, GenerationMixin, MarianMTModel, PushToHubMixin,
            torch.nn.Module, torch.nn.Linear,
        ) for name, value in vars(kind).items() if callable(value)},
        **{f"attention {name}": AttentionInterface()[name] for name in ("sdpa", "flex_attention")},
    }

def marian_loss():
    torch.manual_seed(0)
    sizes = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = MarianConfig(vocab_size=99, pad_token_id=98, decoder_start_token_id=98, **sizes, **heads)
    model = MarianMTModel(config)
    tokens = torch.randint(0, 90, (40, 20))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    return loss.item(), model.model.encoder.layers[0].fc1.weight.grad.sum().item()

loss = marian_loss()
before = settings()
import vaswani
config = vaswani.VaswaniConfig(
    vocab_size=99, d_model=512, encoder_layers=1, decoder_layers=1,
    encoder_attention="sparse", sparse_block_size=8,
)
model = vaswani.VaswaniForConditionalGeneration(config)
tokens = torch.randint(3, 90, (16, 40))
model(input_ids=tokens, labels=tokens, smoothing=0.1).loss.backward()
model.eval().generate(input_ids=tokens, num_beams=2, max_new_tokens=5)
after = settings()
changed = [name for name in before if before[name] is not after[name] and before[name] != after[name]]
assert not changed, changed
assert set(before) == set(after), set(before) ^ set(after)
assert marian_loss() == loss
print("unchanged")
"""


@pytest.mark.slow
def test_importing_and_computing_changes_no_process_settings() -> None:
    finished = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=600)
    assert finished.stdout == "unchanged\n", finished.stderr
