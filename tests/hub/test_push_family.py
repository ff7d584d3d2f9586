"""Encoders and decoders on a Hub on loopback: the same with the plugin and without."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from loopback_hub import LoopbackHub, Run
from toy_translation import toy_tokenizer
from vaswani import (
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniForCausalLM,
    VaswaniForMaskedLM,
    VaswaniForSequenceClassification,
)

pytestmark = pytest.mark.slow  # each command is a process of its own

SHAPE: dict[str, Any] = {"d_model": 16, "max_position_embeddings": 32}
ENCODER = {**SHAPE, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}
DECODER = {**SHAPE, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 24}
IDS = [[5, 6, 7, 8, 9, 10, 11]]

LOAD = """
import json, sys
if {plugin}:
    import vaswani
import torch
from transformers import {auto_class}, AutoTokenizer

AutoTokenizer.from_pretrained("ada/toy", **{options})
model = {auto_class}.from_pretrained("ada/toy", **{options}).eval()
with torch.no_grad():
    print(json.dumps([model(torch.tensor({ids})).logits.tolist(),
        any(name.startswith("transformers_modules.") for name in sys.modules)]))
"""


@pytest.mark.parametrize(
    ("model_class", "config_class", "fields", "auto_class"),
    [
        (VaswaniForMaskedLM, VaswaniEncoderConfig, ENCODER, "AutoModelForMaskedLM"),
        (
            VaswaniForSequenceClassification,
            VaswaniEncoderConfig,
            {**ENCODER, "encoder_attention": "sparse", "sparse_block_size": 2, "num_labels": 3},
            "AutoModelForSequenceClassification",
        ),
        (VaswaniForCausalLM, VaswaniDecoderConfig, DECODER, "AutoModelForCausalLM"),
    ],
    ids=["masked", "classification", "causal"],
)
def test_a_pushed_model_is_the_same_with_the_plugin_and_without(
    hub: LoopbackHub,
    run: Run,
    tmp_path: Path,
    python_without_plugin: Path,
    model_class: Any,
    config_class: Any,
    fields: dict[str, Any],
    auto_class: str,
) -> None:
    tokenizer, folder = toy_tokenizer(), tmp_path / "toy"
    torch.manual_seed(0)
    model = model_class(config_class(vocab_size=len(tokenizer), **fields)).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    run(["push", "--model", str(folder), "--repo", "toy"])
    card = hub.files("ada/toy")["README.md"].decode()
    assert f"{auto_class}.from_pretrained(" in card
    assert "A Transformer encoder (" in card or "A Transformer decoder (" in card
    expected = model(torch.tensor(IDS)).logits.tolist()
    for plugin, environment in (
        (False, {"python": python_without_plugin, "cache": "other"}),
        (True, {}),
    ):
        options = {} if plugin else {"trust_remote_code": True}
        code = LOAD.format(plugin=plugin, auto_class=auto_class, options=options, ids=IDS)
        logits, ran_remote_code = json.loads(run(code, **environment).stdout.splitlines()[-1])
        assert ran_remote_code == (not plugin)
        torch.testing.assert_close(torch.tensor(logits), torch.tensor(expected), rtol=0, atol=1e-6)
