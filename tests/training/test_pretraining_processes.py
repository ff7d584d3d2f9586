"""Pre-training in two real processes and in one: the same masks, updates and scores."""

import json
from pathlib import Path

import pytest
import torch
from run_records import logged, weights

from rank_processes import train_in_processes
from tiny_runs import TINY_MODEL
from toy_texts import write_texts

pytestmark = pytest.mark.process

OPTIONS = {
    "d_model": 16,
    "vocab_size": 320,
    "max_length": 24,
    "dropout": 0.0,  # what is dropped differs from process to process
    "attention_dropout": 0.0,
    "learning_rate": 3e-3,
    "warmup_steps": 4,
    "max_steps": 8,
    "max_tokens_per_batch": 300,
    "logging_steps": 1,
    "save_steps": 6,
    "use_cpu": True,
    "disable_tqdm": True,
}
OBJECTIVES = {
    "masked": {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32},
    "causal": {
        "objective": "causal",
        "decoder_layers": 1,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 32,
    },
    "spans": {"objective": "span_denoising", **TINY_MODEL, "vocab_size": 420},
}


@pytest.mark.exhaustive(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_one_and_two_processes_give_the_same_updates_and_scores(tmp_path, objective):
    texts = write_texts(tmp_path, train=60, test=7)
    options = {**OPTIONS, **OBJECTIVES[objective], **texts}
    folders = {}
    for processes in (1, 2):
        folders[processes] = tmp_path / str(processes)
        more = {"output_dir": folders[processes], "gradient_accumulation_steps": 3 - processes}
        train_in_processes({**options, **more}, processes, "pretrain")
    alone, together = folders.values()
    assert logged(together, "loss") == pytest.approx(logged(alone, "loss"), rel=1e-4)
    for name, weight in weights(alone).items():
        torch.testing.assert_close(weights(together)[name], weight, rtol=0, atol=1e-5)
    scores = [json.loads(Path(folder, "evaluation.json").read_text()) for folder in (alone, together)]
    assert scores[0]["rows"] == scores[1]["rows"]
    for name, metric in scores[0]["metrics"].items():
        assert scores[1]["metrics"][name]["value"] == pytest.approx(metric["value"], rel=1e-4)

    resumed = {"output_dir": tmp_path / "resumed", "resume_from_checkpoint": together / "checkpoint-6"}
    train_in_processes({**options, **resumed, "gradient_accumulation_steps": 2}, 1, "pretrain")
    for name, weight in weights(together).items():  # one goes on for two
        torch.testing.assert_close(weights(tmp_path / "resumed")[name], weight, rtol=0, atol=1e-5)


@pytest.mark.exhaustive(after=2)
@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("way", ["fsdp_size", "tensor_parallel_size"])
def test_a_sharded_model_learns_the_same_as_a_whole_one(tmp_path, objective, way):
    texts = write_texts(tmp_path, train=60, test=7)
    options = {**OPTIONS, **OBJECTIVES[objective], **texts}
    copies = 2 if way == "fsdp_size" else 1  # with shares of the products, both have the same batches
    for name, processes, more in (
        ("whole", 1, {"gradient_accumulation_steps": 2}),
        ("shares", 2, {"gradient_accumulation_steps": 2 // copies, way: 2}),
    ):
        train_in_processes({**options, **more, "output_dir": tmp_path / name}, processes, "pretrain")
    whole, shares = tmp_path / "whole", tmp_path / "shares"
    assert logged(shares, "loss") == pytest.approx(logged(whole, "loss"), rel=1e-4)
    assert weights(shares).keys() == weights(whole).keys()
    for name, weight in weights(whole).items():
        if not name.endswith("k_proj.bias"):  # no gradient but rounding, which Adam makes as large as any
            assert (weights(shares)[name] - weight).norm() <= 1e-3 * weight.norm(), name
