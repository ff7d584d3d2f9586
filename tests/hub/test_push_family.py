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
import torch, transformers

logits = []
for name in {auto_classes}:
    transformers.AutoTokenizer.from_pretrained("ada/" + name, **{options})
    model = getattr(transformers, name).from_pretrained("ada/" + name, **{options}).eval()
    with torch.no_grad():
        logits.append(model(torch.tensor({ids})).logits.tolist())
print(json.dumps([logits, any(name.startswith("transformers_modules.") for name in sys.modules)]))
"""
SPARSE = {"encoder_attention": "sparse", "sparse_block_size": 2}


def models() -> dict[str, Any]:
    """One of each kind, by the class that loads it."""
    vocab_size = len(toy_tokenizer())
    torch.manual_seed(0)
    return {
        "AutoModelForMaskedLM": VaswaniForMaskedLM(VaswaniEncoderConfig(vocab_size=vocab_size, **ENCODER)),
        "AutoModelForSequenceClassification": VaswaniForSequenceClassification(
            VaswaniEncoderConfig(vocab_size=vocab_size, **ENCODER, **SPARSE, num_labels=3)
        ),
        "AutoModelForCausalLM": VaswaniForCausalLM(VaswaniDecoderConfig(vocab_size=vocab_size, **DECODER)),
    }


def test_a_pushed_model_gives_the_same_outputs_with_and_without_the_plugin(
    hub: LoopbackHub, run: Run, run_without_plugin: Run, tmp_path: Path
) -> None:
    expected = []
    for auto_class, model in models().items():
        folder = tmp_path / auto_class
        model.save_pretrained(folder)
        toy_tokenizer().save_pretrained(folder)
        run(["push", "--model", str(folder), "--repo", auto_class])
        card = hub.card(f"ada/{auto_class}")
        assert f"{auto_class}.from_pretrained(" in card
        assert "A Transformer encoder (" in card or "A Transformer decoder (" in card
        expected.append(model.eval()(torch.tensor(IDS)).logits)
    for plugin, run_code in ((False, run_without_plugin), (True, run)):
        options = {} if plugin else {"trust_remote_code": True}
        code = LOAD.format(plugin=plugin, auto_classes=list(models()), options=options, ids=IDS)
        all_logits, ran_remote_code = json.loads(run_code(["-c", code]).stdout.splitlines()[-1])
        assert ran_remote_code == (not plugin)
        for logits, of_the_model in zip(all_logits, expected, strict=True):
            torch.testing.assert_close(torch.tensor(logits), of_the_model, rtol=0, atol=1e-6)


def test_a_classifier_takes_max_length_from_settings_on_the_hub(
    hub: LoopbackHub, run: Run, tmp_path: Path
) -> None:
    model = models()["AutoModelForSequenceClassification"]
    model.save_pretrained(tmp_path)
    toy_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "training_config.yaml").write_text("task: classification\nmax_length: 7\n")
    run(["push", "--model", str(tmp_path), "--repo", "short"])
    code = "from vaswani.inference.classify.classification import Classifier\n"
    code += "print(Classifier.from_pretrained('ada/short', device='cpu').max_length)"
    assert run(["-c", code]).stdout.split() == ["32"]  # a push leaves the settings out, which hold paths
    whole = f"upload_folder(repo_id='ada/short', folder_path={str(tmp_path)!r}, allow_patterns='*.yaml')"
    run(["-c", f"from huggingface_hub import upload_folder\n{whole}"])
    assert run(["-c", code]).stdout.split() == ["7"]
