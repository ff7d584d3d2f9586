"""`vaswani plot`: every option changes the plot, and invalid plots give an error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toy_translation import save_toy_checkpoint
from vaswani.cli import run
from vaswani.insight.positions import sinusoids
from vaswani.insight.themed_figure import ThemedFigure
from vaswani.training.config.schedule import PlannedSchedule, paper_peak_learning_rate

Outcome = tuple[int, str, str]
LOG = [
    {"step": 1, "loss": 3.0, "tokens": 7.0},
    {"step": 2, "loss": 2.0, "tokens": 7.0},
    {"step": 2, "eval_loss": 2.5},
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with runs, a report and a file of another kind."""
    monkeypatch.chdir(tmp_path)
    for name, log in {"first": LOG, "second": LOG[:1]}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    (tmp_path / "none").mkdir()
    models = []
    for name, role, value in (("large", "teacher", 40.0), ("small", "student", 30.0)):
        score = {"value": value, "low": value - 1, "high": value + 1}
        share = {"value": value / 40, "low": value / 40 - 0.1, "high": value / 40}
        scores = {"bleu": score, "chrf": {"value": 50.0, "low": 49.0, "high": 51.0}}
        models.append({"name": name, "role": role, "parameters": 10**6, "scores": scores, "retention": share})
    report = json.dumps({"metric": "bleu", "models": models})
    (tmp_path / "report.json").write_text(report)
    (tmp_path / "worse.json").write_text(report.replace("30.0", "20.0").replace("0.75", "0.5"))
    (tmp_path / "other.json").write_text("{}")
    return tmp_path


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[ThemedFigure]:
    """The figures that commands would save; nothing is written."""
    figures: list[ThemedFigure] = []
    monkeypatch.setattr("vaswani.insight.figures.save_figure", lambda figure, output: figures.append(figure))
    return figures


def plotted(figure: ThemedFigure) -> list[Any]:
    """All numbers in a figure, and its background."""
    found: list[Any] = [figure.get_facecolor()]
    for axes in figure.axes:
        found += [np.asarray(line.get_xydata()).tolist() for line in axes.lines]
        found += [np.asarray(image.get_array()).tolist() for image in axes.images]
    return found


PLOTS = {
    "sparse-pattern --length 512": ["--heads 1"],  # its other options: tests/test_cli.py
    "positions --length 12 --width 8": [
        *("--length 13", "--width 10", "--layout concatenated", "--layout tensor2tensor"),
        "--layout interleaved --layout concatenated",
    ],
    "masks": [
        *("--source_lengths 9,5", "--target_lengths 6,3", "--block_size 2", "--window 5", "--global 2"),
        *("--random 2", "--seed 1"),
    ],
    "schedule": [
        *("linear", "inverse_sqrt cosine", "--warmup_steps 10", "--warmup_steps 4000,10", "--max_steps 99"),
        *("--learning_rate 0.1", "--d_model 64", "--config dates", "--config mlm"),
    ],
    "curves first": ["second", "--against tokens"],
    "quality report.json": ["worse.json", "--metric chrf"],
}
CASES = [(command, more) for command, options in PLOTS.items() for more in [*options, "--dark"]]


def replaced(command: str, more: str) -> list[str]:
    """The words of a command with more options, which take the place of those of the same name."""
    words = command.split()
    name = more.split()[0]
    if name in words:
        del words[words.index(name) : words.index(name) + 2]
    return ["plot", *words, *more.split()]


@pytest.mark.parametrize(("command", "more"), CASES)
def test_every_option_changes_the_plot(place, saved, command, more):
    assert run(["plot", *command.split()]) == 0
    assert run(replaced(command, more)) == 0
    base, moved = map(plotted, saved)
    assert base != moved
    assert (base[0] != moved[0]) == (more == "--dark")


def test_retention_is_read_from_the_report(place, saved):
    for words in ("report.json", "worse.json", "report.json --dark"):
        assert run(["plot", "retention", *words.split()]) == 0
    points = [figure.axes[0].lines[1].get_xdata().tolist() for figure in saved]
    assert points == [[75.0], [50.0], [75.0]]
    assert saved[0].theme != saved[2].theme


def test_positions_have_the_sizes_and_layouts_that_are_given(place, saved):
    options = "--length 12 --width 8 --layout concatenated --layout tensor2tensor"
    assert run(["plot", "positions", *options.split()]) == 0
    images = [axes.images[0].get_array() for axes in saved[0].axes if axes.get_xlabel() == "feature"]
    for image, layout in zip(images, ("concatenated", "tensor2tensor"), strict=True):
        assert image.tolist() == sinusoids(12, 8, layout).tolist()
    assert run(["plot", "positions"]) == 0
    assert saved[1].axes[0].images[0].get_array().shape == (128, 128)


def test_positions_of_a_model_are_plotted(place, saved):
    save_toy_checkpoint(place / "model")
    assert run(["plot", "positions", "--model", "model", "--length", "5"]) == 0
    assert saved[0].axes[0].images[0].get_array().shape[0] == 5


def test_schedules_equal_those_of_a_training(place, saved):
    assert run(["plot", "schedule", "cosine", "--warmup_steps", "3,5", "--max_steps", "20"]) == 0
    for line, warmup in zip(saved[0].axes[0].lines, (3, 5), strict=True):
        plan = PlannedSchedule("cosine", paper_peak_learning_rate(512, warmup), warmup, 20)
        assert line.get_xdata().tolist() == list(range(1, 21))
        assert line.get_ydata().tolist() == plan.learning_rates(range(1, 21))
    assert [text.get_text() for text in saved[0].legends[0].get_texts()] == [
        "cosine, 3 updates of warm-up",
        "cosine, 5 updates of warm-up",
    ]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_is_saved_to_the_given_path(place, capsys, suffix):
    assert run(["plot", "curves", "first", "--output", f"a.{suffix}"]) == 0
    assert capsys.readouterr().out == f"saved a.{suffix}\n"
    assert Path(f"a.{suffix}").stat().st_size > 1000


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "curves none",
            "neither none nor a checkpoint in it has trainer_state.json; give a run's output_dir",
        ),
        ("curves first first", "first is given twice; give each run once"),
        ("curves first --against hours", "against='hours' is unknown; expected updates or tokens"),
        ("masks --source_lengths 0", "source_lengths=0 must be at least 1 and at most 64, to be drawn"),
        ("masks --target_lengths a", "target_lengths=a must be whole numbers with commas between them"),
        ("masks --window 2", "window_blocks=2 must be odd"),
        ("schedule cosin", "schedule 'cosin' is unknown; expected one of linear, cosine"),
        ("schedule --config nowhere", "configuration file nowhere does not exist"),
        ("schedule --warmup_steps 0", "the paper's learning rate needs warmup_steps of at least 1"),
        ("schedule linear --warmup_steps x", "warmup_steps=x must be whole numbers"),
        ("schedule linear --warmup_steps -5 --learning_rate 1", "warmup_steps=-5 must be at least 0"),
        ("schedule --config dates --warmup_steps 5", "--warmup_steps=5 has no effect: the configuration"),
        ("schedule --config dates --learning_rate 1", "--learning_rate=1.0 has no effect: the configuration"),
        ("schedule --config dates --d_model 8", "--d_model=8 has no effect: the configuration"),
        ("schedule --learning_rate 1 --d_model 8", "--d_model=8 has no effect with --learning_rate"),
        ("positions --length 0", "length=0 must be at least 1"),
        ("positions --width 7", "d_model=7 must be even for sinusoidal positions; try d_model=8"),
        ("positions --layout diagonal", "Field 'sinusoidal_layout' expected one of"),
        ("positions --model none --width 8", "--width has no effect with --model, which has its own"),
        ("positions --model none --layout concatenated", "--layout has no effect with --model"),
        ("positions --model none", "none holds no model (it has no config.json)"),
        ("quality none", "none has neither evaluation.json nor report.json; give the folder of a training"),
        ("quality other.json", "other.json cannot be read as a report of a comparison (KeyError"),
        ("quality report.json --metric rouge1", "large has no score 'rouge1'; expected one of bleu, chrf"),
        ("retention first", "first has neither evaluation.json nor report.json"),
        ("retention nowhere.json", "nowhere.json cannot be read as a report of a comparison (No such file"),
    ],
)
def test_invalid_plots_give_a_one_line_error(place, capsys, command, message):
    before = sorted(place.iterdir())
    status = run(["plot", *command.split()])
    errors = capsys.readouterr().err
    assert status == 2
    assert errors.startswith(f"vaswani: {message}")
    assert errors.count("\n") == 1
    assert sorted(place.iterdir()) == before


@pytest.mark.parametrize("command", [*PLOTS, "retention report.json"])
def test_the_suffix_is_checked_before_all_work(place, capsys, command):
    assert run(["plot", *command.split(), "--output", "a.bmp"]) == 2
    assert capsys.readouterr().err.startswith("vaswani: cannot draw a.bmp: its suffix is .bmp")
