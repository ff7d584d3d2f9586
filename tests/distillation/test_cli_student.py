"""`vaswani student` as a user runs it."""

import shutil
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForSeq2SeqLM

from in_process import outcome
from toy_translation import save_toy_checkpoint
from vaswani.files.run_files import SETTINGS_FILE
from vaswani.files.run_settings import read_settings


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    return save_toy_checkpoint(tmp_path_factory.mktemp("teacher"), encoder_layers=3, decoder_layers=2)


def student(capsys, *arguments: str | Path) -> tuple[int, str, str]:
    return outcome(capsys, "student", *arguments)


def weights_of(folder: Path) -> dict[str, list[float]]:
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    return {name: weight.flatten().tolist() for name, weight in model.state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "encoder", "decoder"),
    [
        ("", [0, 1, 2], [0, 1]),
        ("--encoder_layers 2 --decoder_layers 1", [0, 2], [0]),
        ("--encoder_layers 2,0 --decoder_layers 1,", [2, 0], [1]),
    ],
)
def test_the_requested_layers_are_copied_and_counted(
    teacher: Path, tmp_path: Path, capsys, options: str, encoder: list[int], decoder: list[int]
) -> None:
    output = tmp_path / "student"
    status, said, errors = student(capsys, "--teacher", teacher, *options.split(), output)
    before, after = weights_of(teacher), weights_of(output)
    expected = {name: weight for name, weight in before.items() if ".layers." not in name}
    for stack, layers in (("encoder", encoder), ("decoder", decoder)):
        for place, index in enumerate(layers):
            old, new = (f"model.{stack}.layers.{number}." for number in (index, place))
            expected |= {name.replace(old, new): w for name, w in before.items() if name.startswith(old)}
    assert after == expected
    counts = [AutoModelForSeq2SeqLM.from_pretrained(folder).num_parameters() for folder in (teacher, output)]
    fewer = 100 * (counts[0] - counts[1]) / counts[0]
    assert (status, errors) == (0, "")
    assert said == (
        f"saved {output}: teacher {counts[0]:,} parameters, student {counts[1]:,} ({fewer:.1f} % fewer)\n"
    )


def test_a_student_keeps_the_evaluation_settings_of_its_teacher(
    teacher: Path, tmp_path: Path, capsys
) -> None:
    trained = tmp_path / "trained"
    shutil.copytree(teacher, trained)
    settings = {"task": "summarization", "source_field": "de", "target_field": "en", "learning_rate": 1e-3}
    (trained / SETTINGS_FILE).write_text(yaml.safe_dump(settings))
    assert student(capsys, "--teacher", trained, tmp_path / "student")[0] == 0
    del settings["learning_rate"]  # a student is not trained yet
    assert read_settings(tmp_path / "student") == settings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--encoder_layers 4", "encoder_layers=4 is impossible: the teacher has 3; give 1 to 3"),
        ("--decoder_layers 0", "decoder_layers=0 is impossible: the teacher has 2; give 1 to 2"),
        ("--decoder_layers -1", "decoder_layers=-1 is impossible"),
        ("--encoder_layers 0,3", "encoder_layers=[0, 3] names layer 3, but the teacher's are 0 to 2"),
        ("--encoder_layers 1,1", "encoder_layers=[1, 1] must name one layer or more, each once"),
        ("--encoder_layers all", "encoder_layers='all' is not a number; give so many layers (6), or"),
    ],
)
def test_impossible_layers_have_status_2_and_one_line(
    teacher: Path, tmp_path: Path, capsys, options: str, message: str
) -> None:
    status, said, errors = student(capsys, "--teacher", teacher, *options.split(), tmp_path / "student")
    assert (status, said) == (2, "")
    assert errors.startswith(f"vaswani: {message}")
    assert errors.count("\n") == 1
    assert not (tmp_path / "student").exists()


def test_unusable_teachers_and_output_folders_give_a_one_line_error(
    teacher: Path, tmp_path: Path, capsys
) -> None:
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "no such model"}')
    for source, output, message in (
        (tmp_path / "bert", tmp_path / "student", "model_type='no such model' is unknown"),
        (tmp_path / "no" / "such", tmp_path / "student", "does not exist; give the folder that a training"),
        (teacher, tmp_path / "bert", "is not an empty folder; give another one for the student"),
    ):
        status, said, errors = student(capsys, "--teacher", source, output)
        assert (status, said, errors.count("\n")) == (2, "", 1)
        assert message in errors
    assert student(capsys, "--teacher", teacher)[0] == 2


def test_the_help_advises_a_deep_encoder_and_a_shallow_decoder(capsys) -> None:
    status, said, _ = student(capsys, "--help")
    assert status == 0
    assert "deep encoder and a shallow decoder" in " ".join(said.split())
