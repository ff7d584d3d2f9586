"""Real processes: killed while the teacher or the student runs, and two that share the work."""

import json
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rank_processes import log_of, start_processes, train_in_processes
from tiny_runs import write_dates
from toy_labels import save_toy_decoder, save_toy_encoder
from toy_texts import write_texts

pytestmark = pytest.mark.process


@pytest.fixture
def options(tiny_run, teacher) -> dict:
    options = {name: value for name, value in tiny_run.items() if name != "vocab_size"}
    options |= {"teacher": teacher, "targets": "both", "teacher_top_k": 8, "baseline": "true"}
    options |= {"generation_num_beams": 1, "teacher_num_beams": 2, "max_target_length": 16, "max_steps": 20}
    return {**options, "dropout": 0.3, "save_steps": 4, "cosine_weight": 0}


def kill_when(sign: Path, options: dict) -> None:
    """Start a distillation and kill it as soon as a file or folder exists."""
    (process,) = start_processes(options, 1, "distill")
    while not sign.exists():
        assert process.exitcode is None, log_of(options["output_dir"], 0).read_text()
        time.sleep(0.001)
    process.kill()
    process.join()


def contents(folder: Path, pattern: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob(pattern))}


@pytest.mark.slow
def test_a_distillation_killed_in_every_phase_resumes_with_the_same_weights(options, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train_in_processes({**options, "output_dir": whole}, 1, "distill")
    caches = ["teacher_cache/targets/manifest.json", "teacher_cache/logits/manifest.json"]
    begun = {**options, "output_dir": killed}
    for sign in [*caches, "checkpoint-8", "baseline/checkpoint-4"]:
        kill_when(killed / sign, begun)
        begun["resume_from_checkpoint"] = "true"
    train_in_processes(begun, 1, "distill")
    for pattern in ("teacher_cache/*/shard-*", "model.safetensors", "baseline/model.safetensors"):
        expected = contents(whole, pattern)
        assert expected
        assert contents(killed, pattern) == expected
    assert (killed / "report.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("objectives", [{}, {"cosine_weight": 1, "relation_weight": 1, "relation_heads": 2}])
def test_two_processes_train_as_one_does(options, tmp_path, objectives):
    options |= {"dropout": 0, "max_steps": 4, "save_steps": 4, "optim": "sgd", **objectives}
    options |= {"learning_rate": 0.1, "max_tokens_per_batch": 320}  # 16 batches, 8 of the references
    if objectives:
        del options["teacher_top_k"]
    del options["test_file"], options["validation_file"]
    one, two = tmp_path / "one", tmp_path / "two"
    output = train_in_processes({**options, "output_dir": two}, 2, "distill")
    assert output.count("rows have the teacher's translation") == 1
    train_in_processes({**options, "output_dir": one, "gradient_accumulation_steps": 2}, 1, "distill")
    for model in (".", "baseline"):
        expected, found = (load_file(folder / model / "model.safetensors") for folder in (one, two))
        for name, weight in expected.items():
            torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_two_processes_share_shards(options, tmp_path):
    """More rows than a shard holds."""
    files = write_dates(tmp_path, train_rows=1030, validation_rows=8, test_rows=8)
    options |= {**files, "targets": "teacher", "max_steps": 1, "soft_target_weight": 0, "baseline": "false"}
    options |= {"teacher_num_beams": 1, "max_target_length": 12}
    del options["teacher_top_k"]
    one, two = tmp_path / "one", tmp_path / "two"
    for count, output in ((2, two), (1, one)):
        train_in_processes({**options, "output_dir": output}, count, "distill")
    shards = contents(one, "teacher_cache/targets/shard-*")
    assert len(shards) == 2
    assert contents(two, "teacher_cache/targets/shard-*") == shards


@pytest.mark.slow
def test_two_processes_continue_texts_as_one_does(tmp_path):
    """More texts than a shard holds."""
    teacher, files = tmp_path / "teacher", write_texts(tmp_path, train=1030)
    save_toy_decoder(teacher, dropout=0.0, attention_dropout=0.0)
    options = {**files, "objective": "causal", "teacher": teacher, "targets": "teacher", "baseline": "false"}
    options |= {"soft_target_weight": 0, "cosine_weight": 0, "max_length": 20, "prompt_tokens": 15}
    options |= {"max_tokens_per_batch": 20_000, "max_steps": 2, "optim": "sgd", "learning_rate": 0.1}
    options |= {"eval_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    one, two = tmp_path / "one", tmp_path / "two"
    output = train_in_processes({**options, "output_dir": two}, 2, "distill")
    assert output.count("train: the teacher continues") == 1
    train_in_processes({**options, "output_dir": one, "gradient_accumulation_steps": 2}, 1, "distill")
    shards = contents(one, "teacher_cache/texts/shard-*")
    assert len(shards) == 2
    assert contents(two, "teacher_cache/texts/shard-*") == shards
    expected, found = (load_file(folder / "model.safetensors") for folder in (one, two))
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"fsdp_size": 2}], ids=["", "sharded"])
def test_two_processes_report_the_scores_of_one(more, tmp_path):
    """Both evaluate the rows of an encoder's report; the main process writes it."""
    teacher, files = tmp_path / "teacher", write_texts(tmp_path, train=40, test=7)
    save_toy_encoder(teacher, dropout=0.0, attention_dropout=0.0)
    options = {**files, "objective": "masked", "teacher": teacher, "max_length": 30, "max_steps": 2}
    options |= {"max_tokens_per_batch": 300, "learning_rate": 1e-2, "use_cpu": True, "disable_tqdm": True}
    one, two = tmp_path / "one", tmp_path / "two"
    output = train_in_processes({**options, **more, "output_dir": two}, 2, "distill")
    assert output.count("2 processes.") == 1
    train_in_processes({**options, "output_dir": one, "gradient_accumulation_steps": 2}, 1, "distill")
    expected, found = (json.loads((folder / "report.json").read_text()) for folder in (one, two))
    assert found["rows"] == expected["rows"]
    for before, model in zip(expected["models"], found["models"], strict=True):
        assert {name: model[name] for name in ("name", "parameters")} == {
            name: before[name] for name in ("name", "parameters")
        }
        for metric, score in before["scores"].items():
            assert model["scores"][metric] == pytest.approx(score, rel=1e-4)
