"""Plots of quality and retention show the numbers of reports and trainings."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drawn import check_no_texts_overlap, check_nothing_is_cut_off, legend
from vaswani.distillation.comparison import Comparison, ModelResult
from vaswani.distillation.report import write_texts
from vaswani.errors import UserError
from vaswani.evaluation.estimates import Difference, Estimate
from vaswani.insight.quality import draw_quality, draw_retention
from vaswani.insight.saved_results import MeasuredModel, read_measured
from vaswani.insight.themed_figure import ThemedFigure


def a_model(name: str, role: str, bleu: float, parameters: int, speed: float | None) -> MeasuredModel:
    scores = {"bleu": Estimate(bleu, bleu - 1, bleu + 2), "chrf": Estimate(55.5, 54.25, 56.75)}
    return MeasuredModel(name, role, parameters, speed, scores, {"bleu": Estimate(bleu / 40, 0.8, 0.99)})


MODELS = [
    a_model("large", "teacher", 40.0, 2_000_000, 100.0),
    a_model("small", "student", 39.0, 1_000_000, 180.0),
    a_model("plain", "baseline", 36.0, 1_000_000, 175.0),
    a_model("other", "model", 30.0, 500_000, None),
]


def points(figure: ThemedFigure, panel: int) -> list[tuple[list[float], list[float]]]:
    return [tuple(list(map(float, part)) for part in line.get_data()) for line in figure.axes[panel].lines]


@pytest.mark.parametrize("dark", [False, True])
def test_points_and_intervals_lie_where_they_were_measured(dark: bool) -> None:
    figure = draw_quality(MODELS, dark=dark)
    assert [axes.get_xlabel() for axes in figure.axes] == ["rows per second", "million parameters"]
    for panel, places in enumerate(([100, 180, 175], [2, 1, 1, 0.5])):
        expected: list[Any] = []
        for place, model in zip(places, MODELS, strict=False):
            score = model.scores["bleu"]
            expected += [([place] * 2, [score.low, score.high]), ([place], [score.value])]
        assert points(figure, panel) == expected
        assert figure.axes[panel].get_xlim()[0] == 0
        assert figure.axes[panel].get_ylabel() == "BLEU, with 95 % interval"
    assert legend(figure) == [
        "large\nteacher, 2.0 M parameters",
        "small\nstudent, 1.0 M parameters",
        "plain\nbaseline, 1.0 M parameters",
        "other\n0.5 M parameters",
    ]
    check_nothing_is_cut_off(figure)
    check_no_texts_overlap(figure)


def test_models_with_the_same_role_share_a_colour_but_no_marker() -> None:
    figure = draw_quality([*MODELS[:3], replace(MODELS[1], name="second")])
    large, small, plain, second = figure.axes[1].lines[1::2]
    assert len({line.get_color() for line in (large, small, plain)}) == 3
    assert second.get_color() == small.get_color()
    assert second.get_marker() != small.get_marker()


def test_the_metric_selects_the_points() -> None:
    figure = draw_quality(MODELS, "chrf")
    assert figure.axes[0].get_ylabel() == "chrF2, with 95 % interval"
    assert points(figure, 1)[1] == ([2.0], [55.5])


def test_models_that_were_not_timed_have_one_panel() -> None:
    (axes,) = draw_quality(MODELS[3:]).axes
    assert axes.get_xlabel() == "million parameters"


def test_models_without_a_common_score_raise_an_error() -> None:
    accurate = replace(MODELS[3], scores={"accuracy": Estimate(90.0, 89.0, 91.0)})
    with pytest.raises(UserError, match=r"no score in common \(large: bleu, chrf; other: accuracy\)"):
        draw_quality([MODELS[0], accurate])
    with pytest.raises(UserError, match="other has no score 'bleu'; expected one of accuracy"):
        draw_quality([MODELS[0], accurate], "bleu")


def test_models_scored_on_different_numbers_of_rows_raise_an_error() -> None:
    few, many = (replace(MODELS[0], name=str(rows), rows=rows) for rows in (10, 100))
    draw_quality([few, few, MODELS[1]])
    with pytest.raises(
        UserError, match=r"different numbers of rows \(10: 10; 100: 100; small: unknown\), so"
    ):
        draw_quality([few, many, MODELS[1]])


@pytest.mark.parametrize(
    ("first", "second", "warning"),
    [
        (("test of a", ()), ("test of a", ()), ""),
        (("test of a", ()), (None, ()), ""),
        (("test of a", ("1",)), ("test of b", ("1",)), ""),
        (("test of a", ("1",)), ("test of a", ()), ""),
        (
            ("test of a", ()),
            ("validation of a", ()),
            "data with different names (large: test of a; small: val",
        ),
        (
            ("test of a", ("1",)),
            ("test of b", ()),
            "data with different names (large: test of a; small: test",
        ),
        (
            ("test of a", ("1",)),
            ("test of a", ("2",)),
            "files with different contents (large: test of a; sma",
        ),
    ],
)
def test_models_scored_on_different_data_are_named(
    first: Any, second: Any, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    draw_quality(
        [
            replace(model, rows=10, data=data, hashes=hashes)
            for model, (data, hashes) in zip(MODELS, (first, second), strict=False)
        ]
    )
    assert warning in caplog.text
    assert bool(caplog.text) == bool(warning)


def test_retentions_are_drawn_in_percent() -> None:
    figure = draw_retention(MODELS[:3])
    (axes,) = figure.axes
    *lines, whole = axes.lines
    drawn = [[float(number) for number in line.get_xdata()] for line in lines]
    assert drawn == [[80.0, 99.0], [97.5], [80.0, 99.0], [90.0]]
    assert set(whole.get_xdata()) == {100}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["small: BLEU", "plain: BLEU"]
    assert [text.get_text() for text in axes.texts] == ["97.5 %", "90.0 %"]
    check_nothing_is_cut_off(figure)
    check_no_texts_overlap(figure)


def test_retentions_of_models_that_are_no_students() -> None:
    figure = draw_retention([replace(MODELS[0], role="first"), MODELS[3]])
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["other: BLEU"]
    assert axes.get_xlabel() == "share of the first model's score, %, with 95 % interval"
    assert draw_retention(MODELS).axes[0].get_xlabel().startswith("share of the teacher's score")


def test_a_distillation_without_retention() -> None:
    with pytest.raises(UserError, match="no model has a retention, which needs a teacher or first model"):
        draw_retention([MODELS[0], replace(MODELS[1], retentions={})])


# Files.


def write_report(folder: Path) -> Path:
    """A report as `vaswani compare` writes it."""
    models = [
        ModelResult(
            name=each.name, role=each.role, parameters=each.parameters, parameter_ratio=1.0,
            weight_bytes=None, dtype="float32", max_length=9, untranslated_rows=0, cut_off_rows=0,
            scores=each.scores, retention=each.retentions["bleu"],
            differences={name: Difference(-1.0, -2.0, 0.5, 0.25) for name in each.scores},
            retentions={**each.retentions, "chrf": None}, gain=None, seconds=[1.0],
            sentences_per_second=each.speed or 0.0, speedup=1.0,
        )
        for each in MODELS[:3]
    ]  # fmt: skip
    settings: dict[str, Any] = {"signatures": {}, "search": {}, "bootstrap": {}, "speed": {}, "machine": {}}
    write_texts(Comparison(metric="bleu", data="toys", rows=3, models=models, **settings), "", folder)
    return folder / "report.json"


def test_a_report_is_read_from_its_file_or_folder(tmp_path: Path) -> None:
    path = write_report(tmp_path)
    assert (
        read_measured(path)
        == read_measured(tmp_path)
        == [replace(each, rows=3, data="toys") for each in MODELS[:3]]
    )


def test_an_older_report_has_the_retention_of_its_metric(tmp_path: Path) -> None:
    path = write_report(tmp_path)
    report = json.loads(path.read_text())
    for model in report["models"]:
        del model["retentions"]
    path.write_text(json.dumps(report))
    assert read_measured(path) == [replace(each, rows=3, data="toys") for each in MODELS[:3]]


def test_a_training_is_read_from_its_folder(tmp_path: Path) -> None:
    run = Path(__file__).parents[2] / "docs" / "dates_run"
    record = json.loads((run / "evaluation.json").read_text())
    (model,) = read_measured(run)
    assert (model.name, model.role, model.speed) == ("dates_run", "model", None)
    assert model.parameters > 1_000_000
    score = record["metrics"]["bleu"]
    assert model.scores["bleu"] == Estimate(score["value"], score["low"], score["high"])
    assert model.names["exact_match"] == "exact match"
    assert (model.rows, model.hashes) == (record["rows"], ())
    assert model.data == "test of dates in 55 languages and in ISO 8601"
    for name in ("config.json", "evaluation.json"):
        (tmp_path / name).write_text((run / name).read_text())
    (tmp_path / "test_results.json").write_text('{"test_samples_per_second": 7.5}')
    assert read_measured(tmp_path)[0].speed == 7.5
    (tmp_path / "corpus.json").write_text(
        '{"test": {"files": [{"path": "a", "sha256": "1"}, {"path": "b"}]}}'
    )
    assert read_measured(tmp_path)[0].hashes == ("1",)
    (tmp_path / "evaluation.json").write_text(json.dumps({**record, "data": "other.jsonl"}))
    (model,) = read_measured(tmp_path)
    assert model.speed is None  # of vaswani evaluate, perhaps with another search
    assert (model.data, model.hashes) == ("test of other.jsonl", ())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("", None, "has neither evaluation.json nor report.json; give the folder of a training that was"),
        (
            "nowhere.json",
            None,
            r"nowhere.json cannot be read as a report of a comparison \(No such file or directory\)",
        ),
        (
            "other.json",
            "{}",
            r"other.json cannot be read as a report .* \(KeyError: 'models'\); give a report.json that",
        ),
        ("other.json", '{"models": [1]}', r"other.json cannot be read as a report .* \(TypeError"),
        ("other.json", "{", r"other.json cannot be read as a report .* \(JSONDecodeError"),
    ],
)
def test_files_of_another_kind(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read_measured(tmp_path / name)
