"""The best spans against a slow search, and answers that do not depend on batches."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForQuestionAnswering

from toy_labels import (
    POSITIONS,
    save_toy_classifier,
    save_toy_encoder,
    toy_config,
    toy_tokenizer,
    write_jsonl,
)
from toy_questions import nested, toy_questions
from vaswani.cli import run
from vaswani.data.questions.windows import Window, make_windows
from vaswani.errors import RunError, UserError
from vaswani.evaluation.answers import evaluate_answers
from vaswani.inference.answer.answering import CONFIG_FIELD, QuestionAnswerer
from vaswani.inference.answer.spans import CANDIDATES, Answer, Span, answers_of, best_spans

SMALL = {"max_length": 24, "doc_stride": 6, "max_question_length": 6}


def slow_spans(start: list[float], end: list[float], first: int, count: int, longest: int) -> list[tuple]:
    """All spans of a window, best first."""
    spans = [
        (start[begin] + end[last], begin - first, last - first)
        for begin in range(first, first + count)
        for last in range(begin, min(begin + longest, first + count))
    ]
    return sorted(spans, reverse=True)


@pytest.mark.parametrize("longest", [1, 3, 50])
@pytest.mark.parametrize("most", [1, 4, 100])
def test_the_best_spans_are_those_of_a_slow_search(longest, most):
    generator = torch.Generator().manual_seed(0)
    starts, ends = torch.randn(2, 4, 9, generator=generator)
    places = torch.tensor([[0, 3, 5], [8, 2, 6], [0, 1, 8], [0, 9, 0]])
    found = best_spans(starts, ends, places, most, longest)
    most = max(most, CANDIDATES)
    assert found.shape == (4, 1 + most, 3)
    for row, (null, first, count) in enumerate(places.tolist()):
        assert found[row, 0, 0] == starts[row, null] + ends[row, null]
        expected = slow_spans(starts[row].tolist(), ends[row].tolist(), first, count, longest)[:most]
        kept = [tuple(span) for span in found[row, 1:].tolist() if span[0] != -np.inf]
        assert len(kept) == len(expected)
        np.testing.assert_allclose(
            np.array(kept).reshape(-1, 3), np.array(expected).reshape(-1, 3), rtol=1e-6
        )


def found(null: float, *spans: tuple[float, int, int]) -> np.ndarray:
    return np.array([(null, 0, 0), *spans], dtype=np.float32)


@pytest.mark.parametrize("most", [1, 3, 20])
def test_the_answer_does_not_depend_on_how_many_are_listed(most):
    """The best span may be white space, which is no answer, or the characters of another span."""
    context = "Ann  saw"
    window = Window(0, {}, 0, 1, [(0, 3), (3, 5), (5, 8)])
    logits, places = torch.tensor([[0.0, 2.0, 5.0, 1.0]]), torch.tensor([[0, 1, 3]])
    spans = best_spans(logits, logits, places, most, 30).numpy()
    (answer,) = answers_of([context], [window], spans, most)
    assert answer.text == "Ann"
    assert answer.null_odds == -7
    assert [span.text for span in answer.spans] == ["Ann", "saw", "Ann  saw"][:most]


def test_spans_of_all_windows_of_a_question_are_combined():
    """The same span counts once, with its best score; no answer needs all windows to say so."""
    context = "ann saw rome"
    first = Window(0, {}, 0, 2, [(0, 3), (3, 7), (7, 12)])
    second = Window(0, {}, 0, 2, [(3, 7), (7, 12)])
    other = Window(1, {}, 0, 2, [])
    (answer, empty) = answers_of(
        [context, " "],
        [first, second, other],
        [found(5, (2, 0, 0), (1, 2, 2)), found(3, (4, 1, 1)), found(1, (-np.inf, 0, 0))],
        n_best=5,
    )
    assert answer.spans == [Span("rome", 8, 12, 4.0), Span("ann", 0, 3, 2.0)]
    assert answer.null_score == 3
    assert answer.null_odds == -1
    assert empty.spans == []
    assert (empty.text, empty.best, empty.null_odds) == ("", None, float("inf"))


def test_the_number_of_spans_is_limited():
    windows = [Window(0, {}, 0, 0, [(0, 3), (3, 7)])]
    spans = [found(0, (2, 0, 0), (1, 1, 1), (0, 0, 1))]
    assert [len(answers_of(["ann saw"], windows, spans, most)[0].spans) for most in (1, 2, 9)] == [1, 2, 3]


@pytest.mark.parametrize(("threshold", "text"), [(None, "ann"), (0.9, ""), (1.0, "ann"), (2.0, "ann")])
def test_above_the_threshold_no_answer_is_given(threshold, text):
    answer = Answer([Span("ann", 0, 3, 2.0)], null_score=3.0, threshold=threshold)
    assert answer.text == text
    assert (answer.best is None) == (text == "")


def make_answerer(library: bool = False, **options) -> QuestionAnswerer:
    torch.manual_seed(0)
    model = AutoModelForQuestionAnswering.from_config(toy_config(library))
    return QuestionAnswerer(model, toy_tokenizer(), **{**SMALL, **options})


PAIRS = [(row["question"], row["context"]) for row in toy_questions(9, seed=3, words=40)]


@pytest.mark.parametrize("library", [False, True], ids=["ours", "library"])
def test_answers_are_those_of_a_plain_loop_over_windows(library):
    answerer = make_answerer(library, n_best=3, max_answer_length=4)
    answers, count = list(answerer.answer(PAIRS)), 0
    for (question, context), answer in zip(PAIRS, answers, strict=True):
        windows = make_windows(toy_tokenizer(), [question], [context], answerer.lengths)
        count += len(windows)
        best: dict[tuple[int, int], float] = {}
        nulls = []
        for window in windows:
            inputs = {name: torch.tensor([value]) for name, value in window.columns.items()}
            with torch.no_grad():
                outputs = answerer.model(**inputs)
            start, end = outputs.start_logits[0].tolist(), outputs.end_logits[0].tolist()
            nulls.append(start[0] + end[0])
            for score, first, last in slow_spans(start, end, window.first, len(window.offsets), 4):
                before, after = window.offsets[first][0], window.offsets[last][1]
                before += len(context[before:after]) - len(context[before:after].lstrip())
                best[before, after] = max(score, best.get((before, after), score))
        expected = sorted(best.items(), key=lambda item: -item[1])[:3]
        assert [(span.start, span.end) for span in answer.spans] == [place for place, _ in expected]
        np.testing.assert_allclose([span.score for span in answer.spans], [s for _, s in expected], rtol=1e-4)
        assert answer.null_score == pytest.approx(min(nulls), rel=1e-4)
        for span in answer.spans:
            assert context[span.start : span.end] == span.text
    assert count > 2 * len(PAIRS)


def test_batches_change_nothing():
    answers = [list(make_answerer(max_tokens_per_batch=budget).answer(PAIRS)) for budget in (24, 100, 4096)]
    for others in answers[1:]:
        assert [answer.text for answer in others] == [answer.text for answer in answers[0]]
        scores = [[answer.spans[0].score, answer.null_score] for answer in others]
        expected = [[answer.spans[0].score, answer.null_score] for answer in answers[0]]
        np.testing.assert_allclose(scores, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("max_length", 16), ("doc_stride", 12), ("max_question_length", 1), ("max_answer_length", 1)),
        *(("null_score_diff_threshold", -1e9), ("n_best", 2)),
    ],
)
def test_every_option_moves_the_answers(option, value):
    pairs = [(f"where was {question}", context) for question, context in PAIRS]
    plain, other = (list(make_answerer(**options).answer(pairs)) for options in ({}, {option: value}))
    assert [(answer.text, answer.spans) for answer in plain] != [
        (answer.text, answer.spans) for answer in other
    ]


def test_a_model_keeps_its_training_options(tmp_path):
    torch.manual_seed(0)
    model = AutoModelForQuestionAnswering.from_config(toy_config())
    known = {**SMALL, "max_answer_length": 3, "null_score_diff_threshold": 0.5}
    setattr(model.config, CONFIG_FIELD, known)
    model.save_pretrained(tmp_path)
    toy_tokenizer().save_pretrained(tmp_path)
    answerer = QuestionAnswerer.from_pretrained(tmp_path)
    assert vars(answerer.lengths) == SMALL
    assert (answerer.max_answer_length, answerer.null_score_diff_threshold) == (3, 0.5)
    answerer = QuestionAnswerer.from_pretrained(tmp_path, max_length=20, null_score_diff_threshold=1.0)
    assert (answerer.lengths.max_length, answerer.lengths.doc_stride) == (20, 6)
    assert answerer.null_score_diff_threshold == 1.0


def test_progress_counts_the_questions():
    counts: list[int] = []
    list(make_answerer().answer(PAIRS, counts.append))
    assert sum(counts) == len(PAIRS)
    assert list(make_answerer().answer([])) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": POSITIONS + 1}, "max_length=41, but the model has positions for 40 tokens"),
        ({"max_length": 10}, "max_length=10 has no room for 3 special tokens"),
        ({"max_answer_length": 0}, "max_answer_length=0 must be at least 1"),
        ({"n_best": 0}, "n_best=0 must be at least 1"),
        ({"max_tokens_per_batch": 0}, "max_tokens_per_batch=0 must be at least 1"),
    ],
)
def test_invalid_options_raise_an_error(options, message):
    with pytest.raises(UserError, match=message):
        make_answerer(**options)


def test_a_model_without_the_head_is_refused(tmp_path):
    save_toy_encoder(tmp_path)
    with pytest.raises(UserError):
        QuestionAnswerer.from_pretrained(tmp_path)


def test_questions_with_answers_are_scored():
    rows = list(toy_questions(9, seed=3, unanswerable=0.5))
    evaluation = evaluate_answers(make_answerer(), rows)
    pairs = [(row["question"], row["context"]) for row in rows]
    assert evaluation.predictions == [answer.text for answer in make_answerer().answer(pairs)]
    scores, estimates = evaluation.scores(), evaluation.estimates
    assert estimates.keys() == scores.keys() >= {"f1", "no_answer_accuracy"}
    assert all(estimates[name].value == score for name, score in scores.items())
    assert scores["no_answer_accuracy"] == 0  # without a threshold there is always an answer
    silent = evaluation.with_threshold(-1e9)
    assert set(silent.predictions) == {""}
    assert silent.scores()["no_answer_accuracy"] == 100
    best = evaluation.with_threshold(evaluation.best_threshold())
    assert best.scores()["f1"] >= max(scores["f1"], silent.scores()["f1"])
    with pytest.raises(UserError, match="there are no questions to evaluate on"):
        evaluate_answers(make_answerer(), [])


@pytest.mark.parametrize(
    "pairs", [("Who saw Rome?", "Ann saw Rome."), [{"question": "a"}], [("a", None)], [("a",)]]
)
def test_invalid_pairs_raise_an_error(pairs):
    with pytest.raises(UserError, match="expected pairs of a question and its text, got "):
        list(make_answerer().answer(pairs))
    with pytest.raises(UserError, match="expected a list of pairs, got a dict"):
        list(make_answerer().answer({("Who saw Rome?", "Ann saw Rome."): 1}))


def test_non_finite_results_raise_an_error():
    answerer = make_answerer()
    with torch.no_grad():
        answerer.model.qa_outputs.weight.fill_(torch.nan)
    with pytest.raises(RunError, match=r"leave the range of torch\.float32"):
        list(answerer.answer(PAIRS))


LONG = "who was in rome as the film of ann and bob began"  # SMALL reads its first 6 tokens


def test_answers_to_cut_questions_are_marked_and_counted():
    rows = list(toy_questions(3, seed=3, words=40))
    rows[1]["question"] = LONG
    evaluation = evaluate_answers(make_answerer(), rows)
    assert [answer.cut_off for answer in evaluation.answers] == [False, True, False]
    assert evaluation.to_dict()["cut_off_rows"] == 1
    assert str(evaluation).endswith("question cut off: 1")
    assert "cut off" not in str(evaluate_answers(make_answerer(), rows[:1]))


# The command.


def predict(capfd, *arguments: object) -> tuple[int, list[dict], str]:
    status = run(["predict", *map(str, arguments), "--device", "cpu"])
    output, errors = capfd.readouterr()
    return status, [json.loads(line) for line in output.splitlines()], errors


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("answerer")
    answerer = make_answerer()
    odds = sorted(answer.null_odds for answer in answerer.answer(PAIRS))
    known = {**SMALL, "null_score_diff_threshold": odds[4]}  # about half of the questions have an answer
    setattr(answerer.model.config, CONFIG_FIELD, known)
    answerer.model.save_pretrained(folder)
    toy_tokenizer().save_pretrained(folder)
    return folder


def test_questions_of_a_table_come_back_with_their_answers(saved, tmp_path, capfd):
    rows = [{"id": n, "question": question, "context": text} for n, (question, text) in enumerate(PAIRS)]
    table = write_jsonl(tmp_path / "rows.jsonl", [*rows, {"id": "x", "question": "who", "context": ""}])
    status, records, errors = predict(capfd, "--model", saved, "--input", table)
    assert status == 0, errors
    assert "predicted 10 rows; 1 empty" in errors
    *records, empty = records
    assert (empty["prediction"], empty["start"], empty["null_odds"]) == ("", None, None)
    found = list(QuestionAnswerer.from_pretrained(saved, device="cpu").answer(PAIRS))
    assert {answer.best is None for answer in found} == {True, False}
    for row, record, answer in zip(rows, records, found, strict=True):
        assert {name: record[name] for name in row} == row
        start, end = record["start"] or 0, record["end"] or 0
        assert record["prediction"] == answer.text == row["context"][start:end]
        assert record["score"] == (answer.best and pytest.approx(answer.best.score, abs=1e-4))
        assert record["null_odds"] == pytest.approx(answer.null_odds, abs=1e-4)
        assert "spans" not in record
    best = predict(capfd, "--model", saved, "--input", table, "--top_k", "25")[1]
    assert max(len(record["spans"]) for record in best) == 25
    assert best[0]["spans"][0]["text"] == found[0].spans[0].text
    one_by_one = predict(capfd, "--model", saved, "--input", table, "--buffer_size", "1")[1]
    assert [record["prediction"] for record in one_by_one[:-1]] == [
        record["prediction"] for record in records
    ]
    wider = predict(capfd, "--model", saved, "--input", table, "--max_length", str(POSITIONS))[1]
    assert wider != [*records, empty]


def test_predict_takes_a_threshold_for_no_answer(saved, tmp_path, capfd):
    """In place of the model's own, which leaves about half of the questions unanswered."""
    rows = [{"question": question, "context": text} for question, text in PAIRS]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    for threshold, is_empty in ((-1e6, True), (1e6, False)):
        flags = ["--null_score_diff_threshold", threshold]
        status, records, errors = predict(capfd, "--model", saved, "--input", table, *flags)
        assert status == 0, errors
        assert {record["prediction"] == "" for record in records} == {is_empty}


@pytest.mark.parametrize(
    ("option", "value"), [("doc_stride", 12), ("max_question_length", 1), ("max_answer_length", 1)]
)
def test_predict_takes_the_lengths_of_windows_and_answers(saved, tmp_path, capfd, option, value):
    pairs = [(f"where was {question}", context) for question, context in PAIRS]
    rows = [{"question": question, "context": context} for question, context in pairs]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    command = ["--model", saved, "--input", table, "--null_score_diff_threshold", "1e6", "--top_k", "3"]
    plain, (status, records, errors) = (
        predict(capfd, *command, *flags) for flags in ([], [f"--{option}", str(value)])
    )
    assert status == 0, errors
    assert records != plain[1]
    given = {option: value, "null_score_diff_threshold": 1e6, "n_best": 3}
    answerer = QuestionAnswerer.from_pretrained(saved, device="cpu", **given)
    assert [record["prediction"] for record in records] == [each.text for each in answerer.answer(pairs)]


def test_rows_with_a_cut_question_are_marked_and_counted(saved, tmp_path, capfd):
    rows = [{"question": question, "context": PAIRS[0][1]} for question in ("who", LONG, f"{LONG} today")]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    status, records, errors = predict(capfd, "--model", saved, "--input", table)
    assert status == 0, errors
    assert "predicted 3 rows; 2 of whose question only the beginning was read" in errors
    assert [record.get("cut_off") for record in records] == [None, True, True]


def test_question_columns_default_to_those_of_the_training(saved, tmp_path, capfd):
    rows = [{"q": question, "c": text, "d": "ann"} for question, text in PAIRS]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    shutil.copytree(saved, tmp_path / "trained")
    (tmp_path / "trained" / "training_config.yaml").write_text("question_field: q\ncontext_field: c\n")
    status, _, errors = predict(capfd, "--model", saved, "--input", table)
    assert status == 2
    assert "--question_field: " in errors and "has no field 'question'" in errors  # noqa: PT018
    flags = ["--question_field", "q", "--context_field", "c"]
    given = predict(capfd, "--model", saved, "--input", table, *flags)[1]
    assert predict(capfd, "--model", tmp_path / "trained", "--input", table)[1] == given
    other = predict(capfd, "--model", tmp_path / "trained", "--input", table, "--context_field", "d")[1]
    assert {record["prediction"] for record in other} <= {"", "ann"}


@pytest.mark.parametrize("name", ["squad.json", "squad.json.gz"])
def test_questions_of_squads_own_json_are_answered_too(saved, tmp_path, capfd, name):
    rows = [{"id": str(n), "question": question, "context": text} for n, (question, text) in enumerate(PAIRS)]
    empty = {"answers": {"text": [], "answer_start": []}}
    content = json.dumps(nested([{**row, **empty} for row in rows])).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    status, records, errors = predict(capfd, "--model", saved, "--input", tmp_path / name)
    assert status == 0, errors
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    assert records == predict(capfd, "--model", saved, "--input", table)[1]
    flags = ["--context_field", "context"]
    status, _, errors = predict(capfd, "--model", saved, "--input", tmp_path / name, *flags)
    assert status == 2
    assert "squad.json" in errors and "is SQuAD's own JSON; leave it out" in errors  # noqa: PT018


def test_fields_of_another_model_are_refused(saved, tmp_path, capfd):
    table = write_jsonl(tmp_path / "rows.jsonl", [{"question": "who", "context": "ann"}])
    status, _, errors = predict(capfd, "--model", saved, "--input", table, "--text_field", "context")
    assert status == 2
    assert "--text_field is for a model that predicts labels, and this one answers questions" in errors
    classifier = save_toy_classifier(tmp_path / "classifier", "classification")
    status, _, errors = predict(capfd, "--model", classifier, "--input", table, "--context_field", "context")
    assert status == 2
    refusal = "is for a model that answers questions, and this one does not; leave it out"
    assert f"--context_field {refusal}" in errors
    flags = ["--null_score_diff_threshold", "0"]
    status, _, errors = predict(capfd, "--model", classifier, "--input", table, *flags)
    assert status == 2
    assert f"--null_score_diff_threshold {refusal}" in errors


def test_of_equal_spans_the_first_and_shortest_is_best():
    windows = [Window(0, {}, 0, 0, [(0, 3), (4, 7)])]
    for spans in ([(2, 1, 1), (2, 0, 1), (2, 0, 0)], [(2, 0, 0), (2, 1, 1), (2, 0, 1)]):
        (answer,) = answers_of(["ann saw"], windows, [found(0, *spans)], n_best=3)
        assert [span.text for span in answer.spans] == ["ann", "ann saw", "saw"]


@pytest.mark.parametrize(
    ("positions", "expected"),
    [(400, (384, 128, 64)), (200, (200, 66, 64)), (128, (128, 42, 42)), (20, (20, 6, 6)), (7, (7, 1, 1))],
)
def test_lengths_that_are_not_recorded_fit_the_positions(positions, expected):
    tokenizer = toy_tokenizer()
    tokenizer.model_max_length = 10_000
    model = AutoModelForQuestionAnswering.from_config(toy_config(max_position_embeddings=positions))
    answerer = QuestionAnswerer(model, tokenizer)
    lengths = answerer.lengths
    assert (lengths.max_length, lengths.doc_stride, lengths.max_question_length) == expected
    (answer,) = answerer.answer([("where was the film of rome", "ann saw the film in rome " * 40)])
    assert answer.spans
    assert QuestionAnswerer(model, tokenizer, max_question_length=1).lengths.max_question_length == 1
