"""A pushed model gives the same outputs without the plugin, in this and in another environment."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.hub.push import code_files

# `make test-oldest` names the interpreter of the newest versions here.
PYTHONS = [sys.executable, *filter(None, [os.environ.get("VASWANI_OTHER_PYTHON")])]

LOAD = """
import json, sys
sys.modules["vaswani"] = None  # as if the plugin were not there
import torch
from transformers import AutoModelForSeq2SeqLM
model = AutoModelForSeq2SeqLM.from_pretrained({folder!r}, trust_remote_code=True).eval()
ids = torch.tensor({ids})
mask = (ids != model.config.pad_token_id).long()
with torch.no_grad():
    logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=ids).logits
tokens = model.generate(input_ids=ids, attention_mask=mask, max_length=12, num_beams=2)
print(json.dumps([type(model).__module__, logits.tolist(), tokens.tolist()]))
"""

SPARSE = {
    "encoder_attention": "sparse",
    "decoder_attention": "sparse",
    "sparse_block_size": 4,
    "sparse_global_blocks": 1,
    "sparse_random_blocks": 1,
}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64}
IDS = [[5 + (7 * row + 3 * i) % 11 for i in range(33)] for row in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("fields", [{}, SPARSE], ids=["dense", "sparse"])
def test_a_model_and_its_code_compute_the_same_without_the_plugin(
    fields: dict[str, Any], python: str, tmp_path: Path
) -> None:
    config = VaswaniConfig(vocab_size=20, d_model=32, encoder_layers=2, decoder_layers=2, **HEADS, **fields)
    model = VaswaniForConditionalGeneration(config).eval()
    ids = torch.tensor(IDS)
    with torch.no_grad():
        logits = model(
            input_ids=ids, attention_mask=ids.ne(config.pad_token_id), decoder_input_ids=ids
        ).logits
    tokens = model.generate(input_ids=ids, max_length=12, num_beams=2)
    model.save_pretrained(tmp_path / "model")
    for file in code_files(config):
        shutil.copy(file, tmp_path / "model")

    code = LOAD.format(folder=str(tmp_path / "model"), ids=IDS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["HF_HOME"] = str(tmp_path / "cache")
    command = [os.path.abspath(python), "-c", code]
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    module, theirs, their_tokens = json.loads(run.stdout.splitlines()[-1])
    assert module.startswith("transformers_modules.")
    torch.testing.assert_close(torch.tensor(theirs), logits, rtol=1e-5, atol=1e-5)
    assert their_tokens == tokens.tolist()
