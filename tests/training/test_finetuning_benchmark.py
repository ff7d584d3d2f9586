"""The comparison of fine-tuning from a checkpoint and from scratch runs, and compares these."""

import json
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from run_records import logged

from toy_labels import POSITIONS, save_toy_encoder, write_toy_rows

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "finetune_from_pretrained.py"
BEGINNINGS = ("pre-trained", "from scratch")
LABELS, RATES = ("20", "60"), ("0.001", "0.004")


def runs_of(output: Path, begins: str, labels: str, seed: int) -> list[Path]:
    return [
        folder
        for rate in RATES
        if (folder := output / labels / f"{begins.replace(' ', '_')}-{rate}-{seed}").exists()
    ]


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "evaluation.json").read_text())


def eval_accuracies(folder: Path) -> list[float]:
    return logged(folder, "eval_accuracy")


@pytest.mark.exhaustive
@pytest.mark.script
@pytest.mark.slow
def test_both_models_tune_the_learning_rate_and_share_test_rows(forking_python, tmp_path):
    command = [SCRIPT, "--quick", "--json", "--model", save_toy_encoder(tmp_path / "encoder"), "--seeds", 2]
    command += ["--data", write_toy_rows(tmp_path / "rows", "classification"), "--output", tmp_path / "runs"]
    command += ["--labels", *LABELS, "--epochs", 2, 1, "--learning-rates", *RATES, "--eval_strategy", "steps"]
    command += ["--eval_steps", 1, "--picture", tmp_path / "gain.png", "--max_length", POSITIONS]
    command += ["--use_cpu", "true", "--disable_tqdm", "true"]
    assert forking_python.run([*command, "--only", "from scratch"], tmp_path).stdout == ""
    ended = forking_python.run(command, tmp_path).stdout.splitlines()

    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in ended if line.startswith("|")]
    assert [row[:2] for row in rows[2:]] == [[labels, begins] for labels in LABELS for begins in BEGINNINGS]
    compared = json.loads(ended[-1])
    for labels, begins, rate, *_, way, _ in rows[2:]:
        searched = runs_of(tmp_path / "runs", begins, labels, seed=0)
        assert len(searched) == 2  # each rate once, and the best of them for the other seed
        (other,) = runs_of(tmp_path / "runs", begins, labels, seed=1)
        (chosen,) = (folder for folder in searched if folder.name.split("-")[-2] == rate)
        assert other.name.split("-")[-2] == rate
        assert eval_accuracies(chosen)[-1] == max(eval_accuracies(folder)[-1] for folder in searched)
        records = [record(folder) for folder in (chosen, other)]
        assert {found["split"] for found in records} == {"test"}
        values = [found["metrics"]["accuracy"]["value"] for found in records]
        assert compared["accuracies"][begins][labels] == values
        means = [mean(pair) for pair in zip(eval_accuracies(chosen), eval_accuracies(other), strict=True)]
        assert way == ", ".join(f"{value:.1f}" for value in means)
        settings = (chosen / "training_config.yaml").read_text()
        assert f"from_scratch: {str(begins == 'from scratch').lower()}" in settings
    for labels in LABELS:
        means = [mean(compared["accuracies"][begins][labels]) for begins in BEGINNINGS]
        gain, width = compared["gains"][labels]
        assert gain == pytest.approx(means[0] - means[1])
        assert width > 0
        rows_of_training = (tmp_path / "runs" / labels / "data" / "train.jsonl").read_text().splitlines()
        assert len(rows_of_training) == int(labels)
    few, many = ((tmp_path / "runs" / labels / "data" / "train.jsonl").read_text() for labels in LABELS)
    assert many.startswith(few)
    assert (tmp_path / "gain.png").read_bytes().startswith(b"\x89PNG")
