"""Reports: their numbers, files written completely or not at all, and the plot."""

import errno
import json
import logging
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unprivileged import file_modes_hold
from vaswani.distillation.comparison import Comparison, ModelResult
from vaswani.distillation.measuring import retention_of
from vaswani.distillation.report import as_dict, as_markdown, conclusions, write_report
from vaswani.errors import RunError, UserError
from vaswani.evaluation.estimates import Difference, Estimate

DIFFERENCES = {
    "bleu": Difference(-1.0, -2.5, 0.5, 0.0774),
    "chrf": Difference(0.0, -0.25, 0.25, 0.5),
    "exact_match": Difference(2.0, 1.0, 3.0, 1 / 1001),
}


def a_model(name: str, role: str, bleu: float, **fields: Any) -> ModelResult:
    scores = {
        "bleu": Estimate(bleu, bleu - 1, bleu + 2),
        "chrf": Estimate(55.5, 54.25, 56.75),
        "exact_match": Estimate(12.5, 10.0, 15.0),
    }
    values: dict[str, Any] = {
        "parameters": 2_000_000,
        "parameter_ratio": 1.0,
        "weight_bytes": 8_000_000,
        "dtype": "float32",
        "max_length": 1024,
        "untranslated_rows": 0,
        "cut_off_rows": 0,
        "scores": scores,
        "differences": {} if role in ("teacher", "first") else DIFFERENCES,
        "retention": Estimate(bleu / 40, bleu / 40 - 0.01, bleu / 40 + 0.02),
        "retentions": {"bleu": Estimate(bleu / 40, bleu / 40 - 0.01, bleu / 40 + 0.02), "exact_match": None},
        "gain": None,
        "seconds": [2.0, 3.0, 4.0],
        "sentences_per_second": 100.0,
        "speedup": 1.0,
    }
    return ModelResult(name, role, **{**values, **fields})


STUDENT = a_model(
    *("small", "student", 39.0),
    parameters=1_000_000,
    parameter_ratio=0.5,
    weight_bytes=4_000_000,
    gain=Estimate(3.0, 1.5, 4.5),
    sentences_per_second=180.0,
    speedup=1.8,
)
COMPARISON = Comparison(
    metric="bleu",
    data="test of toys",
    rows=1200,
    models=[a_model("large", "teacher", 40.0), STUDENT, a_model("plain", "baseline", 36.0)],
    signatures={"bleu": "nrefs:1|tok:13a", "chrf": "nrefs:1|nc:6"},
    search={"num_beams": 4, "length_penalty": 0.6, "max_tokens_per_batch": 8192},
    bootstrap={"resamples": 1000, "percentiles": (2.5, 97.5), "seed": 3},
    speed={"rows": 500, "rounds": 5},
    machine={"device": "cpu", "threads": 2, "torch": "2.11.0"},
)


def with_student(**fields: Any) -> Comparison:
    teacher, student, baseline = COMPARISON.models
    return replace(COMPARISON, models=[teacher, replace(student, **fields), baseline])


# Words.


def table(comparison: Comparison) -> list[dict[str, str]]:
    """The cells of each row, by their column."""
    return tables(comparison)[0]


def tables(comparison: Comparison) -> list[list[dict[str, str]]]:
    """The tables of a report, in order."""
    paragraphs = as_markdown(comparison).split("\n\n")
    return [rows_of(paragraph) for paragraph in paragraphs if paragraph.startswith("|")]


def rows_of(markdown: str) -> list[dict[str, str]]:
    lines = markdown.splitlines()
    columns, rule, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert set(rule) <= {"---", "---:"}
    return [dict(zip(columns, row, strict=True)) for row in rows]


def test_the_table_has_a_row_for_each_model() -> None:
    rows = table(COMPARISON)
    assert [row["model"] for row in rows] == ["large", "small", "plain"]
    assert rows[1] == {
        "model": "small",
        "role": "student",
        "parameters": "1,000,000 (50.0 %)",
        "weights": "4.0 MB",
        "BLEU": "39.00 [38.00, 41.00]",
        "chrF2": "55.50 [54.25, 56.75]",
        "exact match": "12.50 [10.00, 15.00]",
        "retention": "97.5 % [96.5, 99.5]",
        "sentences/s": "180.0",
        "speed-up": "1.80×",
    }
    assert table(with_student(weight_bytes=None))[1]["weights"] == "not saved"


def test_a_table_has_the_differences_from_the_first_model() -> None:
    texts = {
        "BLEU": "-1.00 [-2.50, +0.50], p = 0.077",
        "chrF2": "+0.00 [-0.25, +0.25], p = 0.500",
        "exact match": "+2.00 [+1.00, +3.00], p = 0.001",
    }
    expected = [{"difference from `large`": name, **texts} for name in ("small", "plain")]
    assert tables(COMPARISON)[1] == expected


def test_models_that_are_no_students_are_compared_in_neutral_words() -> None:
    first, other = a_model("large", "first", 40.0), replace(STUDENT, role="model", gain=None)
    comparison = replace(COMPARISON, models=[first, other, replace(other, name="third")])
    text = as_markdown(comparison)
    assert text.startswith("## Comparison\n")
    assert not any(word in text for word in ("teacher", "student", "istill", "retains"))
    assert [list(row)[:2] for row in table(comparison)] == [["model", "parameters"]] * 3
    retentions = ["100.0 % [99.0, 102.0]", "97.5 % [96.5, 99.5]", "97.5 % [96.5, 99.5]"]
    assert [row["retention"] for row in table(comparison)] == retentions
    for name in ("small", "third"):
        assert (
            f"- `{name}` differs from `large` by -1.00 [-2.50, +0.50] points of BLEU (p = 0.077). It has "
            "50.0 % of the parameters of `large` and decodes 1.80 times as fast.\n"
        ) in text
    assert "- Retention: a model's BLEU as a share of that of `large`.\n" in text
    record = as_dict(comparison)
    assert (record["difference"], record["p_value"], record["retention"]) == (-1.0, 0.0774, 0.975)


def test_the_text_says_how_everything_was_measured() -> None:
    text = as_markdown(COMPARISON)
    for part in (
        "Data: test of toys, 1,200 rows.",
        "BLEU: `nrefs:1|tok:13a`.",
        "chrF2: `nrefs:1|nc:6`.",
        "95 % confidence intervals, from 1,000 bootstrap resamples",
        "seed 3.",
        "p: paired bootstrap test of the difference on these resamples, as `sacrebleu --paired-bs` defines",
        "Search: num_beams 4, length_penalty 0.6, max_tokens_per_batch 8192, max_length 1024.",
        "median of 5 rounds of 500 rows",
        "cpu, CPU threads: 2, torch 2.11.0, float32.",
        "`small` has 50.0 % of the teacher's parameters and decodes 1.80 times as fast",
        "it retains 97.5 % [96.5, 99.5] of the teacher's BLEU.",
    ):
        assert part in text
    assert "Too long" not in text


def test_differences_between_models_are_reported() -> None:
    text = as_markdown(with_student(dtype="bfloat16", max_length=512, untranslated_rows=3, cut_off_rows=1002))
    assert "max_length 1024, 512." in text
    assert "float32, bfloat16." in text
    assert "Not translated by `small`, counted as empty: 3 rows." in text
    assert "Source cut off for `small`: 1,002 rows." in text
    assert "for `large`" not in text


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        (Estimate(3.0, 0.1, 4.5), "+3.00 [+0.10, +4.50] points of BLEU, better by more than the confidence"),
        (
            Estimate(-3.0, -4.5, -0.1),
            "-3.00 [-4.50, -0.10] points of BLEU, worse by more than the confidence",
        ),
        (
            Estimate(1.0, -0.1, 2.0),
            "+1.00 [-0.10, +2.00] points of BLEU, no difference outside the confidence",
        ),
        (Estimate(0.0, 0.0, 0.0), "no difference outside the confidence"),
    ],
)
def test_a_gain_is_judged_by_its_interval(gain: Estimate, verdict: str) -> None:
    text = as_markdown(with_student(gain=gain))
    assert "Against `plain`, which was trained without distillation: " in text
    assert verdict in text


def test_without_a_baseline_the_report_has_no_gain() -> None:
    teacher, student, _ = COMPARISON.models
    comparison = replace(COMPARISON, models=[teacher, replace(student, gain=None)])
    assert "Against" not in as_markdown(comparison)
    assert as_dict(comparison)["baseline_quality"] is None


def test_retention_of_a_teacher_that_scores_0_is_undefined() -> None:
    comparison = with_student(retention=None)
    assert table(comparison)[1]["retention"] == "undefined"
    assert "the teacher's BLEU is not above 0, so its retention is undefined." in as_markdown(comparison)
    assert as_dict(comparison)["retention"] is None


def test_a_negative_correlation_of_a_teacher_is_not_called_0() -> None:
    score = (-0.01, np.array([-0.03, 0.02]))
    told = next(conclusions(with_student(retention=retention_of(score, score)), "Pearson's r", "works"))
    assert "the teacher's Pearson's r is not above 0, so its retention is undefined." in told


def test_the_record_begins_with_the_first_students_numbers() -> None:
    teacher, student, baseline = COMPARISON.models
    second = replace(student, name="second", speedup=9.0)
    record = as_dict(replace(COMPARISON, models=[teacher, student, second, baseline]))
    main = ["retention", "parameter_ratio", "speedup", "baseline_quality", "difference", "p_value"]
    assert list(record)[:6] == main
    assert (record["difference"], record["p_value"]) == (-1.0, 0.0774)
    assert record["retention"] == 0.975
    assert record["parameter_ratio"] == 0.5
    assert record["speedup"] == 1.8
    assert record["baseline_quality"] == 36.0
    assert [model["name"] for model in record["models"]] == ["large", "small", "second", "plain"]


def test_another_metric_is_named_and_reported() -> None:
    comparison = replace(COMPARISON, metric="chrf")
    assert "of the teacher's chrF2." in as_markdown(comparison)
    assert as_dict(comparison)["baseline_quality"] == 55.5


# Files.


def test_three_files_are_written_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    write_report(COMPARISON, folder)
    assert {path.name for path in folder.iterdir()} == {"report.md", "report.json", "quality_speed.png"}
    assert (folder / "report.md").read_text() == as_markdown(COMPARISON)
    record = json.loads((folder / "report.json").read_text())
    assert record == json.loads(json.dumps(as_dict(COMPARISON)))
    assert record["models"][1] == asdict(STUDENT)
    with Image.open(folder / "quality_speed.png") as image:
        assert image.format == "PNG"


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_report(COMPARISON, tmp_path)
    old = (tmp_path / "report.json").read_text()
    replace = os.replace

    def fail(source: Path, target: Path) -> None:
        if target.name == "report.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(RunError, match=r"cannot write .*report\.json: No space left on device"):
        write_report(with_student(speedup=7.0), tmp_path)
    assert (tmp_path / "report.json").read_text() == old
    assert not list(tmp_path.glob("unfinished-*"))


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("")
    with pytest.raises(UserError, match=r"output=.*report is a file; choose a directory"):
        write_report(COMPARISON, tmp_path / "report")


def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    message = r"output=.* cannot be written to \(Permission denied\); choose another"
    with file_modes_hold(), pytest.raises(UserError, match=message):
        write_report(COMPARISON, tmp_path)
    tmp_path.chmod(0o700)


def test_without_matplotlib_the_report_is_written_and_the_remedy_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with caplog.at_level(logging.WARNING, logger="vaswani.distillation.report"):
        write_report(COMPARISON, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", "report.json"}
    assert caplog.messages == [
        "quality_speed.png is not drawn: drawing needs matplotlib: pip install 'vaswani[plots]'"
    ]
