"""A model sharded over two processes trains the same as a whole one; each process holds only its share."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_records import assert_same_weights, logged, weights

from rank_processes import train_in_processes
from tiny_runs import as_flags
from vaswani import VaswaniForConditionalGeneration
from vaswani.cli import run

pytestmark = pytest.mark.process

TOLERANCE = 1e-4  # of losses, and norms of gradients and weights, relative: sums in another order
WAYS = {
    "ddp": {"gradient_accumulation_steps": 1},
    "fsdp": {"gradient_accumulation_steps": 1, "fsdp_size": 2},
    "tensor parallel": {"gradient_accumulation_steps": 2, "tensor_parallel_size": 2},
}
MODELS = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "two vocabularies": {"shared_vocab": False},
    "nothing shared": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    "sparse": {
        "encoder_attention": "sparse",
        "decoder_attention": "sparse",
        "sparse_block_size": 4,
        "sparse_window_blocks": 1,
        "sparse_global_blocks": 1,
        "sparse_random_blocks": 1,
    },
}


@pytest.fixture
def options(tiny_run: dict) -> dict:
    tiny_run |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "norm_order": "pre"}
    tiny_run |= {"max_steps": 8, "save_steps": 6, "generation_max_length": 8, "dropout": 0.0}
    return tiny_run | {"gradient_accumulation_steps": 2}


Train = Callable[[dict, int], Path]


@pytest.fixture(scope="module")
def train_once(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Trains with options in so many processes, once for all tests; returns the run's folder."""
    runs: dict[str, Path] = {}

    def train_once(options: dict, num_processes: int) -> Path:
        options = {name: value for name, value in sorted(options.items()) if name != "output_dir"}
        key = json.dumps([options, num_processes])
        if key not in runs:
            folder = tmp_path_factory.mktemp("once") / "run"
            train_in_processes(options | {"output_dir": str(folder)}, num_processes)
            runs[key] = folder
        return runs[key]

    return train_once


def assert_trained_alike(expected: Path, found: Path) -> None:
    for what in ("loss", "grad_norm"):
        assert logged(found, what) == pytest.approx(logged(expected, what), rel=TOLERANCE), what
    assert weights(expected).keys() == weights(found).keys()
    for name, weight in weights(expected).items():
        if not name.endswith("k_proj.bias"):  # no gradient but rounding, which Adam makes as large as any
            assert (weights(found)[name] - weight).norm() <= TOLERANCE * weight.norm(), name
    assert [(folder / "config.json").read_text() for folder in (expected, found)] == [
        (expected / "config.json").read_text()
    ] * 2
    results = [json.loads((folder / "test_results.json").read_text()) for folder in (expected, found)]
    assert results[1]["test_loss"] == pytest.approx(results[0]["test_loss"], rel=TOLERANCE)
    assert len(logged(found, "loss")) == 8


@pytest.mark.exhaustive(after=2)
@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_losses_gradients_and_weights_are_those_of_one_process(options, train_once, model):
    options |= MODELS[model]
    alone = train_once(options, 1)
    whole = json.loads((alone / "rank-0.json").read_text())
    for name, way in WAYS.items():
        if name == "ddp" and model != "tied":  # it shares out batches, whatever the model
            continue
        folder = train_once(options | way, 2)
        assert_trained_alike(alone, folder)
        held = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]
        for what in ("parameters", "bytes"):
            shares = [rank[what] / whole[what] for rank in held]
            if name == "ddp":
                assert shares == [1, 1]
            elif name == "fsdp":
                assert shares == pytest.approx([0.5, 0.5], abs=0.01)
            else:  # embeddings and norms are whole
                assert all(0.5 < share < 0.9 for share in shares)
        reloaded = VaswaniForConditionalGeneration.from_pretrained(folder)
        for tensor_name, weight in weights(folder).items():
            assert torch.equal(reloaded.get_parameter(tensor_name), weight)


@pytest.mark.slow
def test_replicated_weights_stay_equal_under_dropout(options, tmp_path):
    options |= WAYS["tensor parallel"] | {"dropout": 0.3, "activation_dropout": 0.2, "attention_dropout": 0.2}
    options |= {"word_dropout": 0.2, "consistency_weight": 5.0}
    train_in_processes(options | {"output_dir": str(tmp_path / "run")}, 2)
    held = [json.loads((tmp_path / "run" / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert held[0]["whole"] == held[1]["whole"]


@pytest.mark.slow
def test_sharded_wide_layers_with_many_rows_train_as_in_one_process(options, tmp_path):
    """Products through oneDNN keep their weights for the backward pass, which FSDP2 takes away meanwhile."""
    options |= {"d_model": 64, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "max_tokens_per_batch": 3000}
    alone = tmp_path / "alone"
    train_in_processes(options | {"output_dir": str(alone)}, 1)
    for name in ("fsdp", "tensor parallel"):
        train_in_processes(options | WAYS[name] | {"output_dir": str(tmp_path / name)}, 2)
        assert_trained_alike(alone, tmp_path / name)


@pytest.mark.exhaustive(after=1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        {"fsdp_size": 2, "gradient_accumulation_steps": 1},
        {"fsdp_size": 2, "tensor_parallel_size": 2, "gradient_accumulation_steps": 2},
        {"tensor_parallel_size": 2, "gradient_accumulation_steps": 2},
    ],
    ids=["two sharded copies", "sharded both ways", "two copies, split"],
)
def test_four_processes_in_two_dimensions_train_as_one(options, tmp_path, train_once, way):
    alone, together = train_once(options | {"gradient_accumulation_steps": 4}, 1), tmp_path / "together"
    train_in_processes(options | way | {"output_dir": str(together)}, 4)
    assert_trained_alike(alone, together)


@pytest.mark.slow
def test_every_sharding_method_resumes_checkpoints_of_the_others(options, tmp_path, train_once):
    ways = {"alone": {}, **WAYS}
    folders = {name: train_once(options | way, 1 if name == "alone" else 2) for name, way in ways.items()}
    for begun, goes_on in zip(ways, [*list(ways)[2:], *list(ways)[:2]], strict=True):
        again = tmp_path / f"{begun}, then {goes_on}"
        resumed = {"output_dir": str(again), "resume_from_checkpoint": str(folders[begun] / "checkpoint-6")}
        train_in_processes(options | ways[goes_on] | resumed, 1 if goes_on == "alone" else 2)
        assert_trained_alike(folders["alone"], again)


@pytest.mark.slow
def test_a_sharded_run_resumes_exactly_and_loads_its_best_checkpoint(options, tmp_path):
    options |= WAYS["fsdp"] | {"dropout": 0.3}
    options |= {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "max_validation_rows": 6}
    options |= {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
    whole, again = tmp_path / "whole", tmp_path / "again"
    train_in_processes(options | {"output_dir": str(whole)}, 2)
    resumed = {"output_dir": str(again), "resume_from_checkpoint": str(whole / "checkpoint-4")}
    train_in_processes(options | resumed, 2)
    assert_same_weights(whole / "checkpoint-8", again / "checkpoint-8")
    assert_same_weights(whole / "checkpoint-2", whole)  # the highest loss


@pytest.mark.exhaustive
@pytest.mark.slow
def test_sharded_distillation_equals_that_of_one_process(options, tmp_path, train_once):
    options |= {"teacher": str(train_once(options, 1)), "cosine_weight": 0.5, "baseline": False, "d_model": 8}
    options |= {"student": "random", "max_target_length": 16, "max_validation_rows": 2}  # few translations
    del options["test_file"], options["vocab_size"]
    alone = tmp_path / "alone"
    train_in_processes(options | {"output_dir": str(alone)}, 1, "distill")
    for name, way in WAYS.items():
        folder = tmp_path / name
        train_in_processes(options | way | {"output_dir": str(folder)}, 2, "distill")
        for what in ("loss", "grad_norm"):
            assert logged(folder, what) == pytest.approx(logged(alone, what), rel=TOLERANCE), (name, what)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"fsdp_size": 2}, "fsdp_size=2 times tensor_parallel_size=1 does not divide the 1 processes; start"),
        ({"tensor_parallel_size": 3}, "fsdp_size=1 times tensor_parallel_size=3 does not divide the 1 proc"),
        ({"fsdp_size": 0}, "fsdp_size=0 must be at least 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options, capsys, sizes, message):
    assert run(["train", *as_flags(options | sizes)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"FSDP_VERSION": "1"}, "fsdp_version 1 is not supported; set fsdp_version: 2"),
        ({"FSDP_VERSION": "2", "FSDP_OFFLOAD_PARAMS": "true"}, "fsdp_offload_params is not supported"),
    ],
)
def test_unsupported_launcher_settings_give_an_error(options, capsys, monkeypatch, settings, message):
    for name, value in {"ACCELERATE_USE_FSDP": "true", **settings}.items():
        monkeypatch.setenv(name, value)
    assert run(["train", *as_flags(options)]) == 2
    assert message in capsys.readouterr().err
