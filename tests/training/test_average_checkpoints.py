"""Averages of a run's checkpoints: `vaswani average`, and `average_checkpoints` at the end of a training."""

import json
import logging
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from run_records import assert_same_weights, logged, weights

from rank_processes import train_in_processes
from tiny_runs import TINY_MODEL, TINY_RUN, as_flags, in_file
from toy_texts import write_texts
from vaswani import TrainingArguments, Translator
from vaswani.cli import run
from vaswani.errors import UserError
from vaswani.training.trainer.base import BaseTrainer
from vaswani.training.trainer.checkpoint_choice import best_checkpoints, last_checkpoints
from vaswani.training.trainer.final_average import FinalAverage

EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "predict_with_generate": False}
EVALUATED |= {"max_validation_rows": 8, "metric_for_best_model": "loss"}


def trained(folder: Path, status: int = 0, **more) -> Path:
    """A run with the checkpoints 2, 4, 6 and 8, each of them evaluated, unless `more` says otherwise."""
    options = {**TINY_RUN, **EVALUATED, "max_steps": 8, "save_steps": 2, "output_dir": str(folder)}
    options |= {
        "max_test_rows": 4,
        "generation_max_length": 4,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        **more,
    }
    given = {name: value for name, value in options.items() if value is not None}
    assert run(["train", "--config", str(in_file(given, folder.parent))]) == status
    return folder


@pytest.fixture(scope="module")
def finished(dates, tmp_path_factory) -> Path:
    return trained(tmp_path_factory.mktemp("finished") / "run", **dates)


def mean_of(*folders: Path) -> dict[str, torch.Tensor]:
    every = [weights(folder) for folder in folders]
    return {name: (sum(each[name].double() for each in every) / len(every)).float() for name in every[0]}


def checkpoint(folder: Path, step: int) -> Path:
    return folder / f"checkpoint-{step}"


def copied(folder: Path, place: Path) -> Path:
    return Path(shutil.copytree(folder, place))


@pytest.mark.parametrize(("count", "steps"), [(1, [8]), (2, [6, 8]), (4, [2, 4, 6, 8])])
def test_the_last_checkpoints_are_averaged(finished, tmp_path, capsys, count, steps):
    assert run(["average", str(finished), str(tmp_path / "out"), "--last", str(count)]) == 0
    chosen = [checkpoint(finished, step) for step in steps]
    assert f"the mean of {' '.join(map(str, chosen))}" in capsys.readouterr().out
    expected, found = mean_of(*chosen), weights(tmp_path / "out")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_output_has_the_files_of_the_run(finished, tmp_path):
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
    assert "No scores are known: the mean of the checkpoints has not been evaluated" in card
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


def test_the_best_checkpoints_are_averaged(finished, tmp_path):
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


def test_fewer_checkpoints_than_requested_give_an_error(finished, tmp_path, capsys):
    out = tmp_path / "out"
    for option in ("--last", "--best"):
        said = refused(capsys, finished, out, option, 5)
        assert f"{finished} has 4 checkpoints, fewer than the 5 to average" in said
    folder = with_scores(copied(finished, tmp_path / "run"), {2: float("nan"), 4: float("inf")})
    said = refused(capsys, folder, out, "--best", 3)
    assert f"{folder} has 2 checkpoints that were evaluated by loss, fewer than the 3 to average" in said
    assert not out.exists()


def test_a_run_without_a_metric_has_no_best_checkpoints(finished, tmp_path, capsys):
    folder = with_scores(copied(finished, tmp_path / "run"), {}, metric_for_best_model=None)
    said = refused(capsys, folder, tmp_path / "out", "--best", 2)
    assert "has no metric_for_best_model to rank its checkpoints by; give --metric, such as bleu" in said
    said = refused(capsys, folder, tmp_path / "out", "--best", 2, "--metric", "nothing")
    assert f"no checkpoint of {folder} was evaluated by nothing; expected one of loss" in said
    losses = logged(folder, "eval_loss")
    best = sorted(sorted((2, 4, 6, 8), key=lambda step: losses[step // 2 - 1])[:2])
    for metric in ("loss", "eval_loss"):
        assert best_checkpoints(folder, 2, metric) == [checkpoint(folder, step) for step in best]
    assert run(["average", str(folder), str(tmp_path / "out"), "--best", "2", "--metric", "loss"]) == 0
    assert averaged(tmp_path / "out") == names(*best)


def test_higher_scores_rank_higher(finished, tmp_path):
    folder = copied(finished, tmp_path / "run")
    for step, score in {2: 9.0, 4: 30.0, 6: 31.5, 8: 30.5}.items():
        path = checkpoint(folder, step) / "trainer_state.json"
        state = json.loads(path.read_text())
        state["log_history"].append({"step": step, "eval_bleu": score})
        path.write_text(json.dumps(state))
    assert best_checkpoints(folder, 2, "bleu") == [checkpoint(folder, step) for step in (6, 8)]
    assert best_checkpoints(folder, 3, "bleu") == [checkpoint(folder, step) for step in (4, 6, 8)]


@pytest.mark.parametrize("option", ["--last", "--best"])
@pytest.mark.parametrize("missing", ["manifest.json", "model.safetensors", "config.json"])
def test_an_incomplete_checkpoint_is_refused(finished, tmp_path, capsys, option, missing):
    folder = copied(finished, tmp_path / "run")
    (checkpoint(folder, 8) / missing).unlink()
    said = refused(capsys, folder, tmp_path / "out", option, 4)
    assert f"{checkpoint(folder, 8)} is not a complete checkpoint: {missing}" in said
    assert not (tmp_path / "out").exists()


def test_contradictory_options_give_an_error(finished, tmp_path, capsys):
    out = tmp_path / "out"
    assert "--last=1 and --best=1 exclude" in refused(capsys, finished, out, "--last", 1, "--best", 1)
    said = refused(capsys, checkpoint(finished, 2), checkpoint(finished, 4), out, "--last", 1)
    assert "take the folder of one run, got 2" in said
    said = refused(capsys, finished, out, "--last", 1, "--metric", "bleu")
    assert "--metric=bleu ranks the checkpoints for --best; give --best N, or leave it out" in said
    assert "is the folder of a run; give --last N or --best N" in refused(capsys, finished, out)
    assert not out.exists()


def test_named_checkpoints_of_several_runs_are_averaged(finished, tmp_path):
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


# ----------------------------------------------------------------------------------- at the end of a training


def loss_on_test(folder: Path) -> float:
    return json.loads((folder / "test_results.json").read_text())["test_loss"]


def averaged(folder: Path) -> list[str]:
    return json.loads((folder / "averaged.json").read_text())["checkpoints"]


def names(*steps: int) -> list[str]:
    return [f"checkpoint-{step}" for step in steps]


def assert_mean_of(folder: Path, *steps: int) -> None:
    expected, found = mean_of(*(checkpoint(folder, step) for step in steps)), weights(folder)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert averaged(folder) == names(*steps)


def test_the_mean_is_saved_and_evaluated(finished, dates, tmp_path):
    folder = trained(tmp_path / "run", **dates, average_checkpoints=3)
    assert_mean_of(folder, 4, 6, 8)
    assert_same_weights(checkpoint(folder, 8), checkpoint(finished, 8))
    assert run(["average", str(finished), str(tmp_path / "out"), "--last", "3"]) == 0
    assert_same_weights(folder, tmp_path / "out")
    assert loss_on_test(folder) != loss_on_test(finished)
    card = (folder / "README.md").read_text()
    assert (
        "Its weights are the mean of 3 checkpoints (`checkpoint-4`, `checkpoint-6`, `checkpoint-8`)." in card
    )
    assert "`average_checkpoints` | 3" in card
    evaluated = trained(
        tmp_path / "of mean",
        **dates,
        max_steps=1,
        save_steps=1,
        eval_strategy="no",
        metric_for_best_model=None,
        model=str(folder),
        learning_rate=1e-30,
        **dict.fromkeys([*TINY_MODEL, "vocab_size"]),
    )
    assert loss_on_test(evaluated) == pytest.approx(loss_on_test(folder), rel=1e-6)


def test_averaging_one_checkpoint_gives_the_last(finished, dates, tmp_path):
    folder = trained(tmp_path / "run", **dates, average_checkpoints=1)
    assert_mean_of(folder, 8)
    assert loss_on_test(folder) == loss_on_test(finished)


def stop_in(monkeypatch, update: int) -> None:
    """Let the next training get SIGTERM in an update."""

    def step(trainer, *args):
        if trainer.state.global_step == update - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return training_step(trainer, *args)

    training_step = BaseTrainer.training_step
    monkeypatch.setattr(BaseTrainer, "training_step", step)


@pytest.mark.exhaustive(after=2)
@pytest.mark.parametrize("limit", [4, None])
@pytest.mark.parametrize("stops", [[5], [6], [3, 5, 7], [8]], ids=str)
def test_a_resumed_run_averages_the_same(dates, tmp_path, monkeypatch, limit, stops):
    options = {**dates, "average_checkpoints": 3, "save_total_limit": limit}
    whole = trained(tmp_path / "whole", **options)
    assert_mean_of(whole, 4, 6, 8)
    folder, again = tmp_path / "stopped", {}
    for stop in stops:
        with monkeypatch.context() as patch:
            stop_in(patch, stop)
            trained(folder, status=143, **options, **again)
        assert checkpoint(folder, stop).is_dir()
        assert not (folder / "model.safetensors").exists()
        for path in folder.glob("checkpoint-*"):  # as of a copy that began with the last one
            os.utime(path, (0, 1000 - 10 * int(path.name.split("-")[1])))
        again = {"resume_from_checkpoint": "true"}
    trained(folder, **options, **again)
    assert averaged(folder) == names(4, 6, 8)
    assert_same_weights(folder, whole)
    assert loss_on_test(folder) == loss_on_test(whole)


def test_a_resumed_run_without_averaging_saves_the_last_weights(dates, tmp_path):
    folder = trained(tmp_path / "run", **dates, average_checkpoints=2)
    trained(folder, **dates, resume_from_checkpoint="true")
    assert_same_weights(folder, checkpoint(folder, 8))
    assert not (folder / "averaged.json").exists()
    trained(folder, **dates, average_checkpoints=4, resume_from_checkpoint="true")
    assert_mean_of(folder, 2, 4, 6, 8)


def test_checkpoints_outside_the_save_interval_are_not_averaged(dates, tmp_path):
    """As SIGTERM leaves them; nor do they push out those that count."""
    rank = {"metric_for_best_model": None, "average_checkpoints": 3}
    folder = trained(tmp_path / "run", **dates, **rank, save_total_limit=3, max_steps=7)
    assert averaged(folder) == names(4, 6, 7)
    trained(folder, **dates, **rank, save_total_limit=3, resume_from_checkpoint="true", max_steps=9)
    assert averaged(folder) == names(6, 8, 9)
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == names(6, 8, 9)


def test_checkpoints_of_epochs_are_averaged(dates, tmp_path):
    options = {
        **dates,
        "max_steps": -1,
        "save_strategy": "epoch",
        "num_train_epochs": 3,
        "eval_strategy": "no",
    }
    options |= {"metric_for_best_model": None, "max_tokens_per_batch": 4000}
    folder = trained(tmp_path / "run", **options, average_checkpoints=2)
    steps = sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))
    assert len(steps) == 3
    assert_mean_of(folder, *steps[1:])
    shutil.copytree(checkpoint(folder, steps[1]), checkpoint(folder, steps[1] + 1))
    state = checkpoint(folder, steps[1] + 1) / "trainer_state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "epoch": 2.5}))
    trained(folder, **options, average_checkpoints=3, resume_from_checkpoint="true")
    assert_mean_of(folder, *steps)


def test_early_stopping_averages_the_available_checkpoints_with_a_warning(dates, tmp_path, caplog):
    logging.getLogger("transformers").addHandler(caplog.handler)
    options = {"average_checkpoints": 4, "early_stopping_patience": 1, "greater_is_better": True}
    folder = trained(tmp_path / "run", **dates, **options)
    logging.getLogger("transformers").removeHandler(caplog.handler)
    steps = sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))
    assert steps == [2, 4]
    assert_mean_of(folder, *steps)
    assert "2 checkpoints are averaged and not 4: there are no more." in caplog.text


REFUSED = {
    "limit": (
        {"save_total_limit": 2, "metric_for_best_model": None},
        "average_checkpoints=3 is more than save_total_limit=2 keeps; set save_total_limit to at least 3",
    ),
    "limit with the best": (
        {"save_total_limit": 3},
        "save_total_limit=3 keeps; with metric_for_best_model=loss the best is kept too; set "
        "save_total_limit to at least 4",
    ),
    "best": (
        {"load_best_model_at_end": True},
        "average_checkpoints=3 and load_best_model_at_end=True exclude each other",
    ),
    "never": (
        {"save_strategy": "no"},
        "average_checkpoints=3 needs save_strategy steps or epoch, which is no",
    ),
    "when better": ({"save_strategy": "best"}, "needs save_strategy steps or epoch, which is best"),
    "too rare": (
        {"save_steps": 4},
        "average_checkpoints=3 is more than the 2 checkpoints that there will be at "
        "the end (save_steps=4, 8 updates, 0 there now)",
    ),
    "share": (
        {"save_steps": 0.5},
        "more than the 2 checkpoints that there will be at the end (save_steps=4,",
    ),
    "zero": ({"average_checkpoints": 0}, "average_checkpoints=0 must be at least 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_averaging_options_give_an_error_before_training(dates, tmp_path, capsys, monkeypatch, case):
    monkeypatch.setattr(BaseTrainer, "training_step", lambda *_, **__: pytest.fail("training begins"))
    more, message = REFUSED[case]
    options = {**TINY_RUN, **dates, **EVALUATED, "max_steps": 8, "save_steps": 2, "average_checkpoints": 3}
    options |= {"output_dir": str(tmp_path / "run"), **more}
    options = {name: value for name, value in options.items() if value is not None}
    assert run(["train", *as_flags(options)]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_resumed_run_whose_checkpoints_are_gone_is_refused(dates, tmp_path, capsys):
    folder = trained(tmp_path / "run", **dates, max_steps=6)
    for step in (2, 4):
        shutil.rmtree(checkpoint(folder, step))
    options = {**TINY_RUN, **dates, **EVALUATED, "save_steps": 2, "output_dir": str(folder)}
    options |= {
        "max_test_rows": 4,
        "generation_max_length": 4,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
    }
    options |= {"max_steps": 8, "average_checkpoints": 3, "resume_from_checkpoint": "true"}
    assert run(["train", *as_flags(options)]) == 2
    assert "more than the 2 checkpoints that there will be" in capsys.readouterr().err.splitlines()[-1]


def test_an_adapter_has_no_average_in_python_either(tmp_path):
    args = TrainingArguments(str(tmp_path), use_cpu=True, average_checkpoints=2)
    trainer = SimpleNamespace(args=args, model=SimpleNamespace(peft_config={}))
    with pytest.raises(UserError, match="average_checkpoints=2 cannot be combined with an adapter"):
        FinalAverage(trainer).check(8, 1, 0, 0)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_models_of_one_stack_are_averaged(tmp_path, stack):
    shape = {f"{stack}_{size}": 2 for size in ("layers", "attention_heads", "ffn_dim")}
    options = {name: TINY_RUN[name] for name in TINY_RUN if "coder" not in name} | shape
    options |= write_texts(tmp_path, train=60, validation=10, test=12) | {"max_tokens_per_batch": 400}
    options |= {"objective": "masked" if stack == "encoder" else "causal", "max_length": 24}
    options |= {"output_dir": str(tmp_path / "run"), "average_checkpoints": 2}
    assert run(["pretrain", *as_flags(options)]) == 0
    assert_mean_of(tmp_path / "run", 3, 6)
    assert run(["average", str(tmp_path / "run"), str(tmp_path / "out"), "--last", "2"]) == 0
    assert_same_weights(tmp_path / "run", tmp_path / "out")


@pytest.mark.process
@pytest.mark.parametrize("sharded", [{}, {"fsdp_size": 2}, {"tensor_parallel_size": 2}], ids=str)
def test_several_processes_average_the_same(dates, tmp_path, sharded):
    options = {**TINY_RUN, **dates, "output_dir": str(tmp_path / "run"), "average_checkpoints": 2}
    options |= {"max_test_rows": 4, "generation_max_length": 4, **sharded}
    train_in_processes(options, 2)
    assert_mean_of(tmp_path / "run", 3, 6)
