"""`vaswani compare` as a user runs it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from jsonl import write_jsonl
from toy_translation import save_toy_checkpoint, toy_rows
from vaswani.cli import run
from vaswani.distillation import comparison
from vaswani.files.run_files import SETTINGS_FILE
from vaswani.inference.translate.translation import Translator

FILES = {"report.md", "report.json", "quality_speed.png"}


@pytest.fixture(scope="module", autouse=True)
def little_timing() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "ROUNDS", 1)
        patch.setattr(comparison, "SPEED_ROWS", 2)
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> SimpleNamespace:
    """A teacher, and three smaller models."""
    folder = tmp_path_factory.mktemp("models")
    return SimpleNamespace(
        teacher=save_toy_checkpoint(folder / "teacher", encoder_layers=2),
        student=save_toy_checkpoint(folder / "student"),
        baseline=save_toy_checkpoint(folder / "baseline"),
        other=save_toy_checkpoint(folder / "other"),
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder with two splits."""
    folder = tmp_path_factory.mktemp("data")
    for split, rows in (("test", 8), ("validation", 5)):
        pairs = [{"words": {"en": s}, "target": t} for s, t in toy_rows(rows, seed=-1, longest=3)]
        write_jsonl(folder / f"{split}.jsonl", pairs)
    return folder


@pytest.fixture
def compare(data: Path, capfd, tmp_path: Path):
    """Run the command with the corpus; returns exit status, output, errors and the report."""

    def run_command(
        *arguments: str | Path, folder: Path = tmp_path, data: str | Path = data
    ) -> tuple[int, str, str, dict[str, Any]]:
        corpus = ["--data", data, "--source_field", "words.en"]
        status = run(list(map(str, ["compare", *arguments, *corpus, "--max_length", "12"])))
        captured = capfd.readouterr()
        report = folder / "report.json"
        return status, captured.out, captured.err, json.loads(report.read_text()) if report.exists() else {}

    return run_command


@pytest.mark.slow
def test_the_report_goes_into_the_first_student_s_folder_and_on_the_screen(
    models: SimpleNamespace, data: Path, tmp_path: Path, compare
) -> None:
    student = Path(shutil.copytree(models.student, tmp_path / "student"))
    before = {path.name for path in student.iterdir()}
    arguments = [models.teacher, student, models.other, "--baseline", models.baseline]
    status, output, errors, record = compare(*arguments, folder=student)
    assert status == 0
    assert {path.name for path in student.iterdir()} == before | FILES
    assert output == (student / "report.md").read_text()
    assert f"vaswani: wrote the report into {student}" in errors
    roles = [(model["name"], model["role"]) for model in record["models"]]
    assert roles == [
        *(("teacher", "teacher"), ("student", "student"), ("other", "student"), ("baseline", "baseline"))
    ]
    assert record["models"][1]["weight_bytes"] == (student / "model.safetensors").stat().st_size
    assert (record["data"], record["rows"], record["metric"]) == (f"test of {data.name}", 8, "bleu")
    assert record["baseline_quality"] == record["models"][3]["scores"]["bleu"]["value"]
    assert all(model["gain"] for model in record["models"][1:3])


def test_models_are_students_only_if_all_of_them_were_distilled(
    models: SimpleNamespace, tmp_path: Path, compare
) -> None:
    _, output, _, record = compare(models.teacher, models.student, models.other, "--output", tmp_path)
    assert output.startswith("## Comparison\n")
    assert "- `student` differs from `teacher` by " in output
    assert [model["role"] for model in record["models"]] == ["first", "model", "model"]
    assert record["models"][0]["differences"] == {}
    assert record["difference"] == record["models"][1]["differences"]["bleu"]["value"]
    assert 0 < record["p_value"] <= 1
    distilled = Path(shutil.copytree(models.student, tmp_path / "distilled"))
    (distilled / SETTINGS_FILE).write_text("task: translation\nteacher: [large]\n")
    roles = {}
    for others in ((distilled,), (distilled, models.other)):
        _, _, _, record = compare(models.teacher, *others, "--output", tmp_path)
        roles[len(others)] = [model["role"] for model in record["models"]]
    assert roles == {1: ["teacher", "student"], 2: ["first", "model", "model"]}


def test_every_option_reaches_the_report(
    models: SimpleNamespace, data: Path, tmp_path: Path, compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {path.stem: str(path) for path in data.iterdir()}
    of_hub = {("someone/words", "german"): datasets.load_dataset("json", data_files=files)}
    monkeypatch.setattr(datasets, "load_dataset", lambda *name, streaming: of_hub[name])
    _, _, _, plain = compare(models.teacher, models.student, "--output", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert plain["baseline_quality"] is None
    _, _, _, record = compare(
        *(models.teacher, models.student, "--output", tmp_path, "--split", "validation"),
        *("--metric", "chrf", "--num_beams", "2", "--length_penalty", "1.5", "--max_tokens_per_batch", "99"),
        *("--max_source_length", "2"),
        *("--dtype", "bfloat16", "--device", "cpu", "--dataset_config", "german"),
        data="someone/words",
    )
    assert (plain["rows"], record["rows"]) == (8, 5)
    assert (record["data"], record["metric"]) == ("validation of someone/words (german)", "chrf")
    assert record["search"] == {
        "num_beams": 2,
        "length_penalty": 1.5,
        "max_tokens_per_batch": 99,
        "max_source_length": 2,
    }
    assert plain["search"]["max_source_length"] == 1024
    given = ["--temperature", "1.5", "--no_repeat_ngram_size", "2", "--ban", "8", "--output", tmp_path]
    sampled = compare(models.teacher, models.student, *given)[3]["search"]
    more = {"temperature": 1.5, "no_repeat_ngram_size": 2, "banned_phrases": ["8"]}
    assert sampled == {**plain["search"], "num_beams": 1, **more}
    cut_off = [{model["cut_off_rows"] for model in each["models"]} for each in (plain, record)]
    longer = sum(len(source.split()) > 1 for source, _ in toy_rows(5, seed=-1, longest=3))
    assert longer > 0
    assert cut_off == [{0}, {longer}]
    assert {model["dtype"] for model in record["models"]} == {"bfloat16"}
    assert {model["max_length"] for model in record["models"]} == {12}
    assert record["machine"]["device"] == "cpu"
    scores = [each["models"][1]["scores"]["chrf"]["value"] for each in (plain, record)]
    assert scores[0] != scores[1]
    assert record["retention"] == scores[1] / record["models"][0]["scores"]["chrf"]["value"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "{teacher} {student} --metric blue",
            "metric=blue is unknown; choose one of bleu, chrf, exact_match",
        ),
        ("{teacher} {teacher}", "{teacher} is given twice; give each model once"),
        ("{teacher} {student} --baseline {student}/", "{student}/ is given twice"),
        ("{teacher} {models}/nowhere", "model folder {models}/nowhere does not exist"),
        ("{teacher} {student} --split train", "the corpus has none of the splits 'train'; it has "),
        ("{teacher} {student} --num_beams 0", "num_beams=0 must be at least 1"),
        ("{teacher} {student} --output {student}/config.json", "config.json is a file; choose a directory"),
        (
            "{teacher} {student} --target_file {teacher}/config.json",
            "--source_field is for tables, and two text",
        ),
        ("{teacher}", "Missing argument 'OTHER...'"),
    ],
)
def test_bad_input_is_one_line_before_any_decoding(
    models: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, compare, arguments: str, message: str
) -> None:
    monkeypatch.setattr(Translator, "translate", lambda *_, **__: pytest.fail("decoded"))
    names = {**vars(models), "models": models.teacher.parent}
    status, output, errors, _ = compare(*arguments.format(**names).split())
    assert (status, output) == (2, "")
    assert errors.startswith("vaswani: ")
    assert message.format(**names) in errors
    assert errors.count("\n") == 1
    assert not FILES & {path.name for path in models.student.iterdir()}


def test_a_student_from_the_hub_has_no_folder_for_the_report(
    models: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compare
) -> None:
    monkeypatch.chdir(tmp_path)
    cached = {"someone/student": models.student}  # as if it were downloaded
    monkeypatch.setattr("vaswani.hub.checkpoint.local_folder", lambda name, **_: cached.get(name, Path(name)))
    status, _, errors, _ = compare(models.teacher, "someone/student")
    assert status == 2
    assert errors == (
        "vaswani: someone/student is not a local folder that the report can go into; give --output FOLDER\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_columns_are_those_of_the_first_student_s_training_and_two_text_files_have_none(
    models: SimpleNamespace, data: Path, tmp_path: Path, capfd
) -> None:
    student = Path(shutil.copytree(models.student, tmp_path / "student"))
    (student / SETTINGS_FILE).write_text("task: translation\nsource_field: words.en\n")
    pairs = [json.loads(line) for line in (data / "test.jsonl").read_text().splitlines()]
    sources, targets = tmp_path / "test.en", tmp_path / "test.de"
    sources.write_text("".join(pair["words"]["en"] + "\n" for pair in pairs))
    targets.write_text("".join(pair["target"] + "\n" for pair in pairs))
    search = ["--max_length", "12", "--output"]
    scores = {}
    for name, given in (
        ("test of data", [data]),
        ("test of test.en and test.de", [sources, "--target_file", targets]),
    ):
        folder = tmp_path / name
        command = ["compare", models.teacher, student, "--data", *given, *search, folder]
        assert run(list(map(str, command))) == 0, capfd.readouterr().err
        record = json.loads((folder / "report.json").read_text())
        assert record["data"].endswith(name.removeprefix("test of data")), record["data"]
        scores[name] = [model["scores"] for model in record["models"]]
    assert scores["test of data"] == scores["test of test.en and test.de"]
