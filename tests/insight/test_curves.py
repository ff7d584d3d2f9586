"""`vaswani report`: the curves of a run, from its folder or while it goes on."""

import json
from pathlib import Path

import pytest

from vaswani.cli import run
from vaswani.errors import UserError
from vaswani.insight.curves import draw_curves, read_history

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


def test_what_was_logged_is_drawn_at_its_update():
    figure = draw_curves(HISTORY)
    panels = {axes.get_title(): axes for axes in figure.axes if axes.get_visible()}
    losses = {line.get_label(): line.get_xydata().tolist() for line in panels["loss, per token"].lines}
    assert losses == {"training": [[10, 3], [20, 2], [30, 1.5]], "validation": [[10, 2.9], [20, 2.5]]}
    assert panels["norm of the gradient"].get_yscale() == "log"
    assert [line.get_label() for line in panels["validation"].lines] == ["BLEU", "exact match, %"]
    assert "share" not in panels


def test_rouge_is_drawn_and_its_best_reported(tmp_path, capsys):
    scores = [
        {"rouge1": 20.0, "rouge2": 3.0, "rougeL": 15.0},
        {"rouge1": 19.0, "rouge2": 4.0, "rougeL": 16.0},
    ]
    history = [HISTORY[0]]
    for step, values in zip((10, 20), scores, strict=True):
        history.append({"step": step, **{f"eval_{name}": value for name, value in values.items()}})
    panel = next(axes for axes in draw_curves(history).axes if axes.get_title() == "validation")
    drawn = {line.get_label(): line.get_ydata().tolist() for line in panel.lines}
    assert drawn == {"ROUGE-1": [20, 19], "ROUGE-2": [3, 4], "ROUGE-L": [15, 16]}
    assert run(["report", str(write(tmp_path / "run", history))]) == 0
    assert "best validation ROUGE-1: 20.00 at update 10" in capsys.readouterr().out


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


def test_a_run_that_goes_on_is_read_from_its_last_checkpoint(tmp_path):
    write(tmp_path / "checkpoint-10", HISTORY[:2])
    write(tmp_path / "checkpoint-20", HISTORY[:4])
    assert read_history(tmp_path) == HISTORY[:4]


@pytest.mark.parametrize(
    ("history", "message"),
    [
        (None, "nor a checkpoint in it has trainer_state.json; give a run's output_dir"),
        ([], "logged nothing that could be drawn"),
    ],
)
def test_nothing_to_draw_is_said(tmp_path, history, message):
    if history is not None:
        write(tmp_path, history)
    with pytest.raises(UserError, match=message):
        draw_curves(read_history(tmp_path))


def test_a_damaged_record_is_said(tmp_path, capsys):
    write(tmp_path, []).joinpath("trainer_state.json").write_text("{")
    assert run(["report", str(tmp_path)]) == 2
    assert f"{tmp_path}/trainer_state.json cannot be read" in capsys.readouterr().err
