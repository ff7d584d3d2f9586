"""`vaswani report`: the curves of a finished or running training."""

import json
import math
from pathlib import Path

import pytest
from transformers.trainer import TRAINER_STATE_NAME

from drawn import check_nothing_is_cut_off
from vaswani.cli import run
from vaswani.errors import UserError
from vaswani.evaluation.answer_metrics import AnswerMetric
from vaswani.evaluation.label_metrics import METRICS_OF_TASK
from vaswani.evaluation.text_metrics import METRICS as TEXT_METRICS
from vaswani.files.run_files import LOG_FILE
from vaswani.insight.curves import PANELS, draw_curves, read_histories, read_history, summary
from vaswani.training.runs.language_modelling import SCORE_NAMES as LANGUAGE_MODEL_SCORES

HISTORY = [
    {"step": 10, "loss": 3.0, "grad_norm": 2.0, "learning_rate": 0.1, "tokens_per_second": 900.0},
    {"step": 10, "eval_loss": 2.9, "eval_bleu": 10.0, "eval_exact_match": 1.0},
    {"step": 20, "loss": 2.0, "grad_norm": 1.0, "learning_rate": 0.2, "tokens_per_second": 1100.0},
    {"step": 20, "eval_loss": 2.5, "eval_bleu": 9.0, "eval_exact_match": 2.0},
    {"step": 30, "loss": 1.5, "grad_norm": 1.0, "learning_rate": 0.2, "tokens_per_second": 1000.0},
]


def write(folder: Path, history: list) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    return folder


def test_logged_values_are_drawn_at_their_updates():
    figure = draw_curves({"run": HISTORY})
    check_nothing_is_cut_off(figure)
    panels = {axes.get_title(): axes for axes in figure.axes if axes.get_visible()}
    losses = {line.get_label(): line.get_xydata().tolist() for line in panels["loss"].lines}
    assert losses == {"training": [[10, 3], [20, 2], [30, 1.5]], "validation": [[10, 2.9], [20, 2.5]]}
    assert panels["norm of the gradient"].get_yscale() == "log"
    assert [line.get_label() for line in panels["validation, 0 to 100"].lines] == ["BLEU", "exact match"]
    assert "share" not in panels


def test_rouge_is_drawn_and_its_best_reported(tmp_path, capsys):
    scores = [
        {"rouge1": 20.0, "rouge2": 3.0, "rougeL": 15.0},
        {"rouge1": 19.0, "rouge2": 4.0, "rougeL": 16.0},
    ]
    history = [HISTORY[0]]
    for step, values in zip((10, 20), scores, strict=True):
        history.append({"step": step, **{f"eval_{name}": value for name, value in values.items()}})
    lines = drawn(draw_curves({"run": history}), "validation, 0 to 100")
    assert {label: [y for _, y in points] for label, _, _, points in lines} == {
        "ROUGE-1": [20, 19],
        "ROUGE-2": [3, 4],
        "ROUGE-L": [15, 16],
    }
    assert run(["report", str(write(tmp_path / "run", history))]) == 0
    assert "best validation ROUGE-1: 20.00 at update 10" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "best"), [("loss", "0.50 at update 3"), ("bleu", "2.00 at update 2")])
def test_the_best_score_is_a_number_if_another_is_none(name, best):
    history = [{"step": step, f"eval_{name}": value} for step, value in enumerate((math.nan, 2.0, 0.5), 1)]
    assert summary(history).endswith(best)
    assert summary(history[:1]).endswith("nan at update 1")


REGISTERED = {
    *TEXT_METRICS,
    *(name for metric in METRICS_OF_TASK.values() for name in metric.names),
    *AnswerMetric.names,
    *LANGUAGE_MODEL_SCORES,
}


def test_every_score_that_a_run_can_log_is_drawn_and_its_best_reported():
    history = [{"step": 10, "eval_loss": 1.0, **{f"eval_{name}": 0.5 for name in REGISTERED}}]
    history.append({"step": 20, "eval_loss": 2.0, **{f"eval_{name}": 0.75 for name in REGISTERED}})
    keys = [key for _, labels, _ in PANELS for key in labels if key.startswith("eval_")]
    assert sorted(keys) == sorted(f"eval_{name}" for name in {"loss", *REGISTERED})
    figure = draw_curves({"run": history})
    validations = [axes for axes in figure.axes if axes.get_title().startswith("validation")]
    assert sum(len(axes.lines) for axes in validations) == len(REGISTERED - {"loss"})
    lines = summary(history).splitlines()
    assert len(lines) == len(REGISTERED | {"loss"})
    assert "best validation Pearson's r: 0.75 at update 20" in lines
    assert "best validation micro F1: 0.75 at update 20" in lines
    for lower in ("mean squared error", "perplexity", "bits per byte"):
        assert f"best validation {lower}: 0.50 at update 10" in lines


def test_scores_on_other_scales_have_panels_of_their_own():
    history = [{"step": 10, "eval_accuracy": 80.0, "eval_matthews": 0.6, "eval_perplexity": 12.0}]
    panels = {axes.get_title(): axes for axes in draw_curves({"run": history}).axes if axes.get_visible()}
    assert {title: [line.get_label() for line in axes.lines] for title, axes in panels.items()} == {
        "validation, 0 to 100": ["accuracy"],
        "validation, −1 to 1": ["Matthews' correlation"],
        "validation, perplexity": ["validation"],
    }


def test_a_run_is_reported_with_its_best(tmp_path, capsys):
    assert run(["report", str(write(tmp_path / "run", HISTORY))]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "update 30, loss 1.500, 1,000 real tokens a second (median)",
        "best validation loss: 2.50 at update 20",
        "best validation BLEU: 10.00 at update 10",
        "best validation exact match: 2.00 at update 20",
        f"saved {tmp_path}/run/curves.png",
    ]
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_an_unfinished_run_is_read_from_its_last_checkpoint(tmp_path):
    write(tmp_path / "checkpoint-20", HISTORY[:4])
    write(tmp_path / "checkpoint-10", HISTORY[:2])  # copied last
    assert read_history(tmp_path) == HISTORY[:4]


@pytest.mark.parametrize(
    ("history", "message"),
    [
        (None, "nor a checkpoint in it has trainer_state.json; give a run's output_dir"),
        ([], "logged nothing that could be drawn"),
    ],
)
def test_a_run_without_curves_raises_an_error(tmp_path, history, message):
    if history is not None:
        write(tmp_path, history)
    with pytest.raises(UserError, match=message):
        draw_curves({"run": read_history(tmp_path)})


def test_a_damaged_trainer_state_raises_an_error(tmp_path, capsys):
    write(tmp_path, []).joinpath("trainer_state.json").write_text("{")
    assert run(["report", str(tmp_path)]) == 2
    assert f"{tmp_path}/trainer_state.json cannot be read" in capsys.readouterr().err


def test_the_log_has_the_name_that_the_library_gives_it():
    assert LOG_FILE == TRAINER_STATE_NAME  # spelled out, because its module takes seconds to import


# Several runs.


def drawn(figure, title):
    """The lines of a panel: label, colour, dashes and points."""
    (panel,) = [axes for axes in figure.axes if axes.get_title() == title]
    return [
        (line.get_label(), line.get_color(), line.get_linestyle(), line.get_xydata().tolist())
        for line in panel.lines
    ]


def test_each_run_is_drawn_in_its_own_colour():
    second = [{"step": 5, "loss": 9.0}, {"step": 5, "eval_loss": 8.0}]
    figure = draw_curves({"first": HISTORY, "二つ目": second})
    check_nothing_is_cut_off(figure)
    lines = drawn(figure, "loss")
    assert [(label, points) for label, _, _, points in lines] == [
        ("training", [[10, 3], [20, 2], [30, 1.5]]),
        ("validation", [[10, 2.9], [20, 2.5]]),
        ("training", [[5, 9]]),
        ("validation", [[5, 8]]),
    ]
    colours, dashes = [line[1] for line in lines], [line[2] for line in lines]
    assert colours[0] == colours[1] != colours[2] == colours[3]
    assert dashes[0] == dashes[2] != dashes[1] == dashes[3]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["first", "二つ目"]


def test_tokens_are_counted_up_to_each_entry():
    history = [{**entry, **({"tokens": 50.0} if "loss" in entry else {})} for entry in HISTORY]
    points = {label: points for label, _, _, points in drawn(draw_curves({"run": history}, "tokens"), "loss")}
    assert points == {"training": [[50, 3], [100, 2], [150, 1.5]], "validation": [[50, 2.9], [100, 2.5]]}


def test_runs_are_named_by_their_folders_or_by_paths_where_these_are_equal(tmp_path):
    for name in ("a/run", "b/run", "c"):
        write(tmp_path / name, HISTORY)
    assert list(read_histories([tmp_path / "a/run", tmp_path / "c"])) == ["run", "c"]
    both = [tmp_path / "a/run", tmp_path / "b/run"]
    assert list(read_histories(both)) == list(map(str, both))
    with pytest.raises(UserError, match="c is given twice; give each run once"):
        read_histories([tmp_path / "c", tmp_path / "a/../c"])


@pytest.mark.parametrize(
    ("against", "message"),
    [
        ("tokens", "the log of run has no numbers of tokens; draw it against updates"),
        ("hours", "against='hours' is unknown; expected updates or tokens"),
    ],
)
def test_invalid_x_axes_raise_an_error(against, message):
    with pytest.raises(UserError, match=message):
        draw_curves({"run": HISTORY}, against)


def test_a_run_without_anything_to_draw_is_named(tmp_path, monkeypatch, capsys):
    message = "empty logged nothing that could be drawn; set logging_steps"
    with pytest.raises(UserError, match=message):
        draw_curves({"run": HISTORY, "empty": [{"step": 1}]})
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(write(tmp_path / "empty", []))
    assert run(["report", "."]) == 2
    assert f"vaswani: {message}" in capsys.readouterr().err
