"""The comparison of fine-tuning from a checkpoint and from scratch runs, and compares these."""

import json
from pathlib import Path

import pytest

from toy_labels import POSITIONS, save_toy_encoder, write_toy_rows

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "finetune_from_pretrained.py"


@pytest.mark.script
@pytest.mark.slow
def test_both_begin_with_the_same_shape_and_are_scored_on_the_same_rows(forking_python, tmp_path):
    command = [SCRIPT, "--quick", "--json", "--model", save_toy_encoder(tmp_path / "encoder"), "--seeds", 2]
    command += ["--data", write_toy_rows(tmp_path / "rows", "classification"), "--output", tmp_path / "runs"]
    command += ["--max_length", POSITIONS, "--use_cpu", "true", "--disable_tqdm", "true"]
    ended = forking_python.run(command, tmp_path).stdout.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in ended if line.startswith("|")]
    assert [row[0] for row in rows[2:]] == ["pre-trained", "from scratch"]
    compared = json.loads(ended[-1])
    accuracies = compared["accuracies"]
    assert compared["gain"] == pytest.approx(
        sum(accuracies["pre-trained"]) / 2 - sum(accuracies["from scratch"]) / 2
    )
    for name, values in accuracies.items():
        folders = [tmp_path / "runs" / f"{name.replace(' ', '_')}-{seed}" for seed in range(2)]
        records = [json.loads((folder / "evaluation.json").read_text()) for folder in folders]
        assert [record["metrics"]["accuracy"]["value"] for record in records] == values
        states = [json.loads((folder / "trainer_state.json").read_text()) for folder in folders]
        (cell,) = (row[4] for row in rows if row[0] == name)
        for epoch, after in enumerate(cell.split(", "), start=1):
            on_the_way = [
                entry["eval_accuracy"]
                for state in states
                for entry in state["log_history"]
                if "eval_accuracy" in entry and entry["epoch"] == epoch
            ]
            assert after == f"{sum(on_the_way) / 2:.1f}"
        assert {record["split"] for record in records} == {"test"}
        settings = [(folder / "training_config.yaml").read_text() for folder in folders]
        assert all(f"from_scratch: {str(name == 'from scratch').lower()}" in text for text in settings)
