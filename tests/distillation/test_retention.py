"""Distillation retains the quality of the teacher, at a small size: dates of two languages."""

import json
from pathlib import Path

import pytest
import yaml

from tiny_runs import write_dates
from vaswani.distillation.config import DistillationConfig
from vaswani.distillation.run import distill
from vaswani.training.config.config_file import load_config

SCHEDULE = {"learning_rate": 3e-3, "lr_scheduler_type": "linear", "warmup_steps": 50, "dropout": 0.0}
SCHEDULE |= {"max_tokens_per_batch": 1000, "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}


def shape(width: int, layers: int) -> dict[str, int]:
    sizes = {"layers": layers, "attention_heads": 4, "ffn_dim": 4 * width}
    stacks = {f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in sizes.items()}
    return {"d_model": width, **stacks}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_student_keeps_what_its_teacher_knows_in_half_its_parameters(tmp_path: Path) -> None:
    dates = write_dates(tmp_path, train_rows=20_000, validation_rows=100, test_rows=300)
    common = {**SCHEDULE, **dates, "retention_metric": "exact_match"}
    teacher = {**SCHEDULE, **shape(64, 2), "vocab_size": 400, "max_steps": 500}
    teacher |= {"output_dir": str(tmp_path / "teacher"), **dates}
    (tmp_path / "teacher.yaml").write_text(yaml.safe_dump(teacher))
    student = {**common, **shape(56, 1), "teacher": [str(tmp_path / "teacher.yaml")], "max_steps": 600}
    student |= {"targets": "references", "soft_target_weight": 5, "label_weight": 2, "cosine_weight": 1}
    student |= {"temperature": 2, "baseline": False, "output_dir": str(tmp_path / "student")}
    (tmp_path / "student.yaml").write_text(yaml.safe_dump(student))
    distill(load_config(tmp_path / "student.yaml", [], DistillationConfig))

    report = json.loads((tmp_path / "student" / "report.json").read_text())
    assert report["models"][0]["scores"]["exact_match"]["value"] > 95
    assert report["parameter_ratio"] < 0.6
    assert report["retention"] > 0.95
