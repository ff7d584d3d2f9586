"""Averages of a run's checkpoints: `vaswani average RUN OUT --last N` and `--best N`."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from run_records import assert_same_weights, logged, weights

from tiny_runs import TINY_RUN, as_flags
from vaswani import Translator
from vaswani.cli import run
from vaswani.training.trainer.averaging import best_checkpoints, last_checkpoints

EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "predict_with_generate": False}
EVALUATED |= {"max_validation_rows": 8, "metric_for_best_model": "loss"}


@pytest.fixture(scope="module")
def finished(dates, tmp_path_factory) -> Path:
    """A run with the checkpoints 2, 4, 6 and 8, each of them evaluated."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    options = {**TINY_RUN, **dates, **EVALUATED, "max_steps": 8, "save_steps": 2, "output_dir": str(folder)}
    options |= {"max_test_rows": 4, "generation_max_length": 4, "lr_scheduler_type": "constant"}
    assert run(["train", *as_flags(options)]) == 0
    return folder


def mean_of(*folders: Path) -> dict[str, torch.Tensor]:
    every = [weights(folder) for folder in folders]
    return {name: (sum(each[name].double() for each in every) / len(every)).float() for name in every[0]}


def checkpoint(folder: Path, step: int) -> Path:
    return folder / f"checkpoint-{step}"


def copied(folder: Path, place: Path) -> Path:
    return Path(shutil.copytree(folder, place))


@pytest.mark.parametrize(("count", "steps"), [(1, [8]), (2, [6, 8]), (4, [2, 4, 6, 8])])
def test_the_last_checkpoints(finished, tmp_path, capsys, count, steps):
    assert run(["average", str(finished), str(tmp_path / "out"), "--last", str(count)]) == 0
    chosen = [checkpoint(finished, step) for step in steps]
    assert f"the mean of {' '.join(map(str, chosen))}" in capsys.readouterr().out
    expected, found = mean_of(*chosen), weights(tmp_path / "out")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_it_holds_what_the_folder_of_the_run_holds(finished, tmp_path):
    assert run(["average", str(finished), str(tmp_path / "out"), "--last", "2"]) == 0
    of_run = {path.name for path in finished.iterdir() if path.is_file()}
    of_mean = {path.name for path in (tmp_path / "out").iterdir()}
    of_training = {"all_results.json", "test_results.json", "trainer_state.json", "training_args.bin"}
    assert of_run - of_mean == {*of_training, "evaluation.json"} & of_run
    assert of_mean - of_run == {"averaged.json"}
    for name in ("training_config.yaml", "corpus.json", "config.json", "tokenizer.json"):
        assert (tmp_path / "out" / name).read_bytes() == (finished / name).read_bytes(), name
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Its weights are the mean of 2 checkpoints (`checkpoint-6`, `checkpoint-8`)." in card
    assert "No scores are known" in card
    assert len(Translator.from_pretrained(tmp_path / "out", max_length=4)(["1 May 2024"])) == 1


def with_scores(folder: Path, scores: dict[int, float], **settings) -> Path:
    """Let a run have had other scores, and other settings."""
    for step in (2, 4, 6, 8):
        path = checkpoint(folder, step) / "trainer_state.json"
        state = json.loads(path.read_text())
        for entry in [entry for entry in state["log_history"] if "eval_loss" in entry]:
            entry["eval_loss"] = scores.get(entry["step"], entry["eval_loss"])
        path.write_text(json.dumps(state))
        path = checkpoint(folder, step) / "manifest.json"
        manifest = json.loads(path.read_text())
        manifest["settings"] |= settings
        path.write_text(json.dumps(manifest))
    return folder


def test_the_best_checkpoints(finished, tmp_path):
    losses = logged(finished, "eval_loss")
    assert len(losses) == 4
    ranked = sorted((2, 4, 6, 8), key=lambda step: losses[step // 2 - 1])
    for count in (1, 2, 3):
        expected = [checkpoint(finished, step) for step in sorted(ranked[:count])]
        assert best_checkpoints(finished, count) == expected
    assert run(["average", str(finished), str(tmp_path / "out"), "--best", "2"]) == 0
    expected, found = mean_of(*best_checkpoints(finished, 2)), weights(tmp_path / "out")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("scores", "settings", "steps"),
    [
        ({2: 1.0, 4: 3.0, 6: 2.0, 8: 4.0}, {}, [2, 6]),
        ({2: 1.0, 4: 3.0, 6: 2.0, 8: 4.0}, {"greater_is_better": True}, [4, 8]),
        ({2: 1.0, 4: 3.0, 6: 2.0, 8: 4.0}, {"greater_is_better": None}, [2, 6]),
        ({2: 1.0, 4: 1.0, 6: 1.0, 8: 1.0}, {}, [2, 4]),
        ({2: float("nan"), 4: 3.0, 6: 2.0, 8: 4.0}, {}, [4, 6]),
    ],
)
def test_the_metric_ranks_as_it_does_in_training(finished, tmp_path, scores, settings, steps):
    folder = with_scores(copied(finished, tmp_path / "run"), scores, **settings)
    assert best_checkpoints(folder, 2) == [checkpoint(folder, step) for step in steps]
    assert last_checkpoints(folder, 2) == [checkpoint(folder, step) for step in (6, 8)]


def refused(capsys, *arguments) -> str:
    assert run(["average", *map(str, arguments)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_fewer_checkpoints_than_asked_are_refused(finished, tmp_path, capsys):
    out = tmp_path / "out"
    for option in ("--last", "--best"):
        said = refused(capsys, finished, out, option, 5)
        assert f"{finished} has 4 checkpoints, and 5 are to be averaged" in said
    folder = with_scores(copied(finished, tmp_path / "run"), {2: float("nan"), 4: float("inf")})
    said = refused(capsys, folder, out, "--best", 3)
    assert f"{folder} has 2 checkpoints that were evaluated by loss, and 3 are to be averaged" in said
    assert not out.exists()


def test_a_run_without_a_metric_has_no_best_checkpoints(finished, tmp_path, capsys):
    folder = with_scores(copied(finished, tmp_path / "run"), {}, metric_for_best_model=None)
    said = refused(capsys, folder, tmp_path / "out", "--best", 2)
    assert "has no metric_for_best_model to rank its checkpoints by; use --last" in said


@pytest.mark.parametrize("option", ["--last", "--best"])
@pytest.mark.parametrize("missing", ["manifest.json", "model.safetensors", "config.json"])
def test_an_incomplete_checkpoint_is_refused(finished, tmp_path, capsys, option, missing):
    folder = copied(finished, tmp_path / "run")
    (checkpoint(folder, 8) / missing).unlink()
    said = refused(capsys, folder, tmp_path / "out", option, 4)
    assert f"{checkpoint(folder, 8)} is not a complete checkpoint: {missing}" in said
    assert not (tmp_path / "out").exists()


def test_options_that_contradict_each_other(finished, tmp_path, capsys):
    out = tmp_path / "out"
    assert "--last=1 and --best=1 exclude" in refused(capsys, finished, out, "--last", 1, "--best", 1)
    said = refused(capsys, checkpoint(finished, 2), checkpoint(finished, 4), out, "--last", 1)
    assert "take the folder of one run, got 2" in said
    assert "is the folder of a run; give --last N or --best N" in refused(capsys, finished, out)
    assert not out.exists()


def test_named_checkpoints_and_those_of_several_runs(finished, tmp_path):
    other = copied(finished, tmp_path / "other")
    settings = (other / "training_config.yaml").read_text().replace("seed: 42", "seed: 43")
    (other / "training_config.yaml").write_text(settings.replace("dropout: 0.1\n", "dropout: 0.2\n", 1))
    names = [str(checkpoint(finished, 6)), str(checkpoint(finished, 8))]
    assert run(["average", *names, str(tmp_path / "out")]) == 0
    assert run(["average", str(finished), str(tmp_path / "last"), "--last", "2"]) == 0
    assert_same_weights(tmp_path / "out", tmp_path / "last")
    names[1] = str(checkpoint(other, 8))
    assert run(["average", *names, str(tmp_path / "of both")]) == 0
    assert_same_weights(tmp_path / "of both", tmp_path / "last")
    shared = (tmp_path / "of both" / "training_config.yaml").read_text()
    assert "max_source_length: 256" in shared
    assert "\ndropout: " not in shared
    assert (tmp_path / "of both" / "corpus.json").read_bytes() == (finished / "corpus.json").read_bytes()
