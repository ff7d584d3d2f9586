"""The evaluation that a finished training saves for its card."""

import json
from pathlib import Path

import pytest

from tiny_runs import as_flags
from vaswani import Translator
from vaswani.training.config.config_file import load_config
from vaswani.training.runs.translation import train


def run(options: dict, **more: object) -> Path:
    config = load_config(None, as_flags({**options, **more}))
    train(config)
    return config.output_dir


@pytest.mark.slow
def test_scores_have_intervals_examples_and_search_settings(tiny_run: dict) -> None:
    folder = run(tiny_run, max_steps=30, generation_num_beams=2)
    record = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    scores = json.loads((folder / "test_results.json").read_text(encoding="utf-8"))
    assert (record["split"], record["rows"]) == ("test", 40)
    assert record["search"] == {"num_beams": 2, "length_penalty": 0.6}
    for name, score in record["metrics"].items():
        assert score["value"] == scores[f"test_{name}"]
        assert score["low"] <= score["value"] <= score["high"]
    assert record["metrics"]["chrf"]["low"] < record["metrics"]["chrf"]["high"]
    assert record["metrics"]["bleu"]["signature"].startswith("nrefs:1|")
    assert record["metrics"]["exact_match"]["signature"] is None
    assert record["versions"]["torch"]

    translator = Translator.from_pretrained(folder, num_beams=2)
    sources = [example["source"] for example in record["examples"]]
    assert translator(sources) == [example["translation"] for example in record["examples"]]
    assert len(set(sources)) == 8

    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"{scores['test_chrf']:.2f}" in card


@pytest.mark.slow
def test_greedy_search_has_no_length_penalty(tiny_run: dict) -> None:
    folder = run(tiny_run, generation_num_beams=1)
    record = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    assert record["search"] == {"num_beams": 1}


@pytest.mark.parametrize("reason", ["no test rows", "nothing is translated"])
def test_without_translations_there_are_no_scores(tiny_run: dict, reason: str) -> None:
    options = dict(tiny_run)
    if reason == "no test rows":
        del options["test_file"], options["validation_file"]
    else:
        options["predict_with_generate"] = False
    folder = run(options)
    assert not (folder / "evaluation.json").exists()
    assert "No scores are known" in (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_resumed_training_deletes_an_earlier_evaluation(tiny_run: dict) -> None:
    folder = run(tiny_run)
    before = (folder / "evaluation.json").read_text(encoding="utf-8")
    config = load_config(None, as_flags({**tiny_run, "max_steps": 9, "resume_from_checkpoint": "true"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vaswani.training.runs.translation.TrainingRun.evaluate", lambda *arguments: {})
        train(config)
    assert before
    assert not (folder / "evaluation.json").exists()
