"""Two real processes and one make the same updates and scores and resume each other's checkpoints."""

import json
from pathlib import Path

import pytest
import torch
from run_records import assert_same_weights, logged, weights

from rank_processes import train_in_processes

pytestmark = pytest.mark.process

TOLERANCE = 1e-4  # of a loss, relative, after a few updates: sums in another order


def scores(folder: Path) -> dict:
    record = json.loads((folder / "evaluation.json").read_text())
    return {name: record[name] for name in ("rows", "metrics", "examples")}


@pytest.fixture
def options(tiny_run: dict, tmp_path: Path) -> dict:
    """Rows of validation and test that two processes cannot share evenly."""
    for split, rows in (("validation", 7), ("test", 37)):
        lines = Path(tiny_run[f"{split}_file"]).read_text().splitlines()[:rows]
        tiny_run[f"{split}_file"] = str(tmp_path / f"{split}.jsonl")
        Path(tiny_run[f"{split}_file"]).write_text("\n".join(lines) + "\n")
    return tiny_run | {"max_steps": 8, "save_steps": 6, "generation_max_length": 8}  # 6: mid-epoch


@pytest.mark.slow
def test_resuming_in_two_processes_is_exact(options, tmp_path):
    options |= {"dropout": 0.3, "consistency_weight": 5.0}
    train_in_processes(options, 2)
    whole = Path(options["output_dir"])
    resumed = {"output_dir": tmp_path / "resumed", "resume_from_checkpoint": whole / "checkpoint-6"}
    train_in_processes(options | resumed, 2)
    assert_same_weights(whole, tmp_path / "resumed")


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [False, True], ids=["", "streaming"])
def test_one_and_two_processes_make_equal_updates_and_resume_each_other(options, tmp_path, streaming):
    options |= {"dropout": 0.0, "streaming": streaming}  # what is dropped differs from process to process
    alone = {"gradient_accumulation_steps": 2, "output_dir": tmp_path / "alone"}
    train_in_processes(options, 2)
    train_in_processes(options | alone, 1)
    together = Path(options["output_dir"])
    for what in ("loss", "grad_norm"):
        assert logged(together, what) == pytest.approx(logged(tmp_path / "alone", what), rel=TOLERANCE)
    assert logged(together, "epoch") == logged(tmp_path / "alone", "epoch")

    begun_by = {1: tmp_path / "alone", 2: together}
    for processes, begun in begun_by.items():  # one goes on for two, and two for one
        goes_on = options | ({} if processes == 2 else alone)
        goes_on |= {"output_dir": tmp_path / f"by {processes}"}
        goes_on |= {"resume_from_checkpoint": begun_by[3 - processes] / "checkpoint-6"}
        train_in_processes(goes_on, processes)
        found = logged(tmp_path / f"by {processes}", "loss")
        assert found == pytest.approx(logged(begun, "loss"), rel=TOLERANCE)
        for name, weight in weights(begun).items():
            torch.testing.assert_close(weights(tmp_path / f"by {processes}")[name], weight, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_consistency_loss_does_not_depend_on_the_number_of_processes(options, tmp_path):
    options |= {"dropout": 1e-9, "max_steps": 2}  # which drops nothing
    train_in_processes(options | {"consistency_weight": 5.0}, 2)
    alone = {"gradient_accumulation_steps": 2, "output_dir": tmp_path / "alone"}
    train_in_processes(options | alone | {"consistency_weight": 5.0}, 1)
    train_in_processes(options | {"output_dir": tmp_path / "once"}, 2)
    for what in ("loss", "grad_norm"):
        found = logged(Path(options["output_dir"]), what)
        for other in ("alone", "once"):
            assert found == pytest.approx(logged(tmp_path / other, what), rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_too_few_to_share_among_processes_are_scored_once(options, tmp_path, rows):
    for split in ("validation", "test"):
        lines = Path(options[f"{split}_file"]).read_text().splitlines()[-rows:]
        options[f"{split}_file"] = str(tmp_path / f"few {split}.jsonl")
        Path(options[f"{split}_file"]).write_text("\n".join(lines) + "\n")
    options |= {"max_steps": 2, "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "dropout": 0.0}
    longest = {"max_tokens_per_batch": 160}  # so that three rows do not fit one batch of each process
    train_in_processes(options | longest, 2)
    alone = {"output_dir": tmp_path / "alone", "gradient_accumulation_steps": 2}
    train_in_processes(options | longest | alone, 1)
    together = Path(options["output_dir"])
    assert scores(together)["rows"] == rows
    assert scores(together)["metrics"] == scores(tmp_path / "alone")["metrics"]
    for what in ("eval_loss", "eval_chrf"):
        assert logged(together, what) == pytest.approx(logged(tmp_path / "alone", what), rel=TOLERANCE)


@pytest.mark.slow
def test_two_processes_score_as_one_does(options, tmp_path):
    train_in_processes(options, 2)
    evaluated = {"resume_from_checkpoint": Path(options["output_dir"]) / "checkpoint-8", "dropout": 0.1}
    for processes in (1, 2):  # nothing is left to train
        more = {"output_dir": tmp_path / str(processes), "gradient_accumulation_steps": 3 - processes}
        train_in_processes(options | evaluated | more, processes)
    assert scores(tmp_path / "1")["rows"] == 37
    assert scores(tmp_path / "1") == scores(tmp_path / "2")
    losses = [json.loads((tmp_path / name / "test_results.json").read_text())["test_loss"] for name in "12"]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
