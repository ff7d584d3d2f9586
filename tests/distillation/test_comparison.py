"""What changes the results of a comparison, and its errors."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from toy_translation import save_toy_checkpoint, toy_model, toy_reverse_model, toy_rows, toy_tokenizer
from vaswani import Scorer
from vaswani.distillation import comparison as module
from vaswani.distillation import measuring
from vaswani.distillation.comparison import (
    Candidate,
    Comparison,
    compare,
    decoding_seconds,
    load_candidates,
    sentences_to_decode,
)
from vaswani.distillation.report import as_markdown
from vaswani.errors import UserError
from vaswani.evaluation.estimates import Difference, Estimate
from vaswani.evaluation.text_metrics import score_texts
from vaswani.inference.translate.translation import Translator

ROWS = [{"source": source, "target": target} for source, target in toy_rows(40, seed=-1)]


@pytest.fixture(scope="module", autouse=True)
def little_timing() -> Iterator[None]:
    """Shorten the timing; tests of times set their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROUNDS", 1)
        patch.setattr(module, "SPEED_ROWS", 2)
        yield


def translator_of(damage: float = 0.0, fields: dict[str, Any] | None = None, **options: Any) -> Translator:
    """The toy model, or one with noise added to its weights."""
    model = toy_model(**(fields or {}))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(damage * torch.randn(parameter.shape, generator=generator))
    return Translator(model, toy_tokenizer(), **{"max_length": 12, **options})


@pytest.fixture(scope="module")
def whole() -> Candidate:
    return Candidate("whole", translator_of())


@pytest.fixture(scope="module")
def damaged() -> Candidate:
    return Candidate("damaged", translator_of(damage=0.3))


@pytest.fixture(scope="module")
def compared(whole: Candidate, damaged: Candidate) -> Comparison:
    """A student that equals its teacher, one that is damaged, and a baseline that is damaged too."""
    return compare(whole, [whole, damaged], ROWS, data="toys", baseline=damaged)


def quality(comparison: Comparison) -> list[Any]:
    """All but times."""
    return [
        replace(model, seconds=[], sentences_per_second=0, speedup=0).__dict__ for model in comparison.models
    ]


# Comparisons.


def test_a_student_that_equals_its_teacher_retains_all_of_it(compared: Comparison) -> None:
    assert compared.students[0].retention == Estimate(1.0, 1.0, 1.0)
    assert compared.students[0].scores == compared.teacher.scores
    assert compared.teacher.retention == Estimate(1.0, 1.0, 1.0)


def test_scores_are_those_of_the_metrics_and_lie_in_their_intervals(
    whole: Candidate, compared: Comparison
) -> None:
    translations = whole.translator([row["source"] for row in ROWS])
    expected, _ = score_texts(translations, [row["target"] for row in ROWS])
    for metric, score in compared.teacher.scores.items():
        assert score.value == expected[metric]
        assert score.low < score.value < score.high
    assert set(compared.signatures) == {"bleu", "chrf", "bleu_lowercased"}
    assert compared.rows == 40


def test_a_damaged_student_has_lower_scores_and_retention(compared: Comparison) -> None:
    student = compared.students[1]
    for metric in ("bleu", "chrf"):
        assert student.scores[metric].high < compared.teacher.scores[metric].low
    ratio = student.scores["bleu"].value / compared.teacher.scores["bleu"].value
    assert student.retention is not None
    assert student.retention.value == ratio
    assert student.retention.low <= ratio <= student.retention.high < 1


def test_gains_are_differences_to_the_baseline_in_the_same_resamples(compared: Comparison) -> None:
    better, equal = (student.gain for student in compared.students)
    assert compared.baseline is not None
    assert better is not None
    scores = [model.scores["bleu"] for model in (compared.teacher, compared.baseline)]
    assert better.value == scores[0].value - scores[1].value
    assert 0 < better.low < better.value < better.high
    assert equal == Estimate(0.0, 0.0, 0.0)  # only because the resamples are the same
    assert compared.teacher.gain is None
    assert compared.baseline.gain is None


def test_differences_are_from_the_first_model_in_the_same_resamples(compared: Comparison) -> None:
    teacher, equal, damaged, baseline = compared.models
    assert teacher.differences == {}
    assert set(equal.differences.values()) == {Difference(0.0, 0.0, 0.0, 1.0)}
    assert list(damaged.differences) == list(teacher.scores)
    for metric in ("bleu", "chrf"):
        difference = damaged.differences[metric]
        assert difference.value == damaged.scores[metric].value - teacher.scores[metric].value
        assert difference.low < difference.value < difference.high < 0
        assert difference.p_value == 1 / 1001
    assert baseline.differences == damaged.differences


def test_models_of_other_origins_have_other_roles_and_the_same_numbers(
    whole: Candidate, damaged: Candidate
) -> None:
    rows = ROWS[:10]
    distilled = compare(whole, [damaged], rows, data="toys")
    others = compare(whole, [damaged], rows, data="toys", is_distillation=False)
    assert [model.role for model in distilled.models] == ["teacher", "student"]
    assert [model.role for model in others.models] == ["first", "model"]
    assert others.students == others.models[1:]
    named = [replace(model, role="") for model in distilled.models]
    assert quality(replace(distilled, models=named)) == quality(
        replace(others, models=[replace(model, role="") for model in others.models])
    )


def test_without_a_baseline_there_is_no_gain(whole: Candidate, damaged: Candidate) -> None:
    comparison = compare(whole, [damaged], ROWS[:10], data="toys")
    assert comparison.baseline is None
    assert [model.gain for model in comparison.models] == [None, None]


def test_the_metric_decides_what_retention_and_gains_are_of(
    whole: Candidate, damaged: Candidate, compared: Comparison
) -> None:
    chrf = compare(whole, [whole, damaged], ROWS, data="toys", baseline=damaged, metric="chrf")
    assert chrf.students[1].scores == compared.students[1].scores
    assert chrf.students[1].retention != compared.students[1].retention
    assert chrf.students[0].gain != compared.students[0].gain


def test_summaries_are_compared_by_rouge(whole: Candidate, damaged: Candidate) -> None:
    comparison = compare(whole, [whole, damaged], ROWS, data="toys", metric="rouge2")
    assert list(comparison.teacher.scores) == ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    values = [model.scores["rouge2"].value for model in comparison.models]
    assert comparison.students[1].retention is not None
    assert comparison.students[1].retention.value == values[2] / values[0]
    table = as_markdown(comparison)
    assert "| ROUGE-1 | ROUGE-2 | ROUGE-L | ROUGE-Lsum | retention |" in table
    assert "of the teacher's ROUGE-2" in table


def test_a_seed_gives_the_same_intervals_and_another_gives_others(
    whole: Candidate, damaged: Candidate, compared: Comparison
) -> None:
    again = compare(whole, [whole, damaged], ROWS, data="toys", baseline=damaged)
    assert quality(again) == quality(compared)
    other = compare(whole, [whole, damaged], ROWS, data="toys", baseline=damaged, seed=1)
    assert other.teacher.scores["bleu"].value == compared.teacher.scores["bleu"].value
    assert other.teacher.scores["bleu"].low != compared.teacher.scores["bleu"].low
    assert [each.bootstrap["seed"] for each in (again, other)] == [0, 1]


def test_a_teacher_that_scores_0_leaves_retention_undefined(whole: Candidate) -> None:
    impossible = [{**row, "target": "x"} for row in ROWS[:5]]
    comparison = compare(whole, [whole], impossible, data="toys", metric="exact_match")
    assert comparison.teacher.scores["exact_match"] == Estimate(0.0, 0.0, 0.0)
    assert comparison.students[0].retention is None


def test_resamples_in_which_the_teacher_scores_0_are_left_out_of_retention(whole: Candidate) -> None:
    """One row in five is right, which a third of the resamples do not draw."""
    right = {"source": "one", "target": whole.translator(["one"])[0]}
    rows = [right, *({**row, "target": "x"} for row in ROWS[:4])]
    comparison = compare(whole, [whole], rows, data="toys", metric="exact_match")
    assert comparison.teacher.scores["exact_match"].low == 0
    assert comparison.students[0].retention == Estimate(1.0, 1.0, 1.0)


@pytest.mark.slow
def test_size_dtype_and_limits_are_each_model_s_own(tmp_path: Path) -> None:
    teacher = Candidate("teacher", translator_of(fields={"encoder_layers": 2}, max_length=50))
    learned = {"position_embedding": "learned", "max_position_embeddings": 40}
    short = translator_of(fields=learned, max_length=50)
    short.model.to(torch.bfloat16)
    student = Candidate("student", short, tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"12345")
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(b"678")
    (tmp_path / "optimizer.pt").write_bytes(b"no weights")
    rows = [*ROWS[:4], {"source": "one " * 60, "target": "1"}]
    large, small = compare(teacher, [student], rows, data="toys").models
    counts = [
        sum(weight.numel() for weight in model.parameters())
        for model in (teacher.translator.model, short.model)
    ]
    assert [large.parameters, small.parameters] == counts
    assert (large.parameter_ratio, small.parameter_ratio) == (1.0, counts[1] / counts[0])
    assert (large.weight_bytes, small.weight_bytes) == (None, 8)
    assert (large.dtype, small.dtype) == ("float32", "bfloat16")
    assert (large.max_length, small.max_length) == (50, 40)
    assert (large.untranslated_rows, small.untranslated_rows) == (0, 1)


def test_pickled_weights_count_where_there_are_no_others(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"1234")
    assert measuring.weight_bytes(tmp_path) == 4
    (tmp_path / "model.safetensors").write_bytes(b"12")
    assert measuring.weight_bytes(tmp_path) == 2


# Speed.


class FakeTranslator:
    """Advances a fake clock by the given numbers of seconds."""

    def __init__(self, name: str, durations: list[float], clock: SimpleNamespace):
        self.name, self.durations, self.clock = name, iter(durations), clock

    def translate(self, sources: list[str], **options: Any) -> Iterator[str]:
        self.clock.turns.append((self.name, list(sources)))
        self.clock.now += next(self.durations)
        return iter(sources)


def test_models_are_timed_in_turns_after_a_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ROUNDS", 2)
    clock = SimpleNamespace(now=0.0, turns=[])
    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    translators: list[Any] = [
        FakeTranslator("a", [99.0, 4.0, 5.0], clock),
        FakeTranslator("b", [88.0, 1.0, 2.0], clock),
    ]
    assert decoding_seconds(translators, ["x", "y"]) == [[4.0, 5.0], [1.0, 2.0]]
    assert clock.turns == [(name, ["x", "y"]) for name in "ababab"]


def test_speeds_come_from_medians(
    whole: Candidate, damaged: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [[3.0, 100.0, 1.0], [2.0, 2.0, 0.1]]
    monkeypatch.setattr(module, "decoding_seconds", lambda *_: times)
    monkeypatch.setattr(module, "SPEED_ROWS", 6)
    comparison = compare(whole, [damaged], ROWS[:10], data="toys")
    assert [model.seconds for model in comparison.models] == times
    assert [model.sentences_per_second for model in comparison.models] == [2.0, 3.0]
    assert [model.speedup for model in comparison.models] == [1.0, 1.5]
    assert comparison.speed["rows"] == 6


def test_progress_counts_every_sentence(
    whole: Candidate, damaged: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPEED_ROWS", 6)
    done: list[int] = []
    compare(whole, [damaged], ROWS[:10], data="toys", progress=done.append)
    assert sum(done) == sentences_to_decode(models=2, rows=10)


# What cannot be compared.


def never_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Translator, "translate", lambda *_, **__: pytest.fail("decoded before it was checked")
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "blue"}, "metric=blue is unknown; choose one of bleu, chrf, exact_match"),
        ({"students": []}, "there is no student to compare with the teacher; give at least one"),
        ({"rows": []}, "there are no rows to evaluate on"),
    ],
)
def test_bad_input_is_found_before_any_decoding(
    whole: Candidate, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    never_decoding(monkeypatch)
    with pytest.raises(UserError, match=message):
        compare(whole, **{"students": [whole], "rows": ROWS, "data": "toys", **options})


@pytest.mark.parametrize(
    ("option", "given", "other"),
    [
        ("num_beams", 4, 1),
        ("length_penalty", 0.6, 1.5),
        ("max_tokens_per_batch", 8192, 99),
        ("max_source_length", 1024, 9),
    ],
)
def test_models_must_be_decoded_in_the_same_way(
    whole: Candidate, monkeypatch: pytest.MonkeyPatch, option: str, given: float, other: float
) -> None:
    never_decoding(monkeypatch)
    odd = Candidate("odd", translator_of(**{option: other}))
    with pytest.raises(UserError, match=f"have {option}={given} and {option}={other}; give all the same"):
        compare(whole, [whole], ROWS, data="toys", baseline=odd)


def test_what_ranks_the_hypotheses_is_reported_and_equal(whole: Candidate) -> None:
    scorer = Scorer(toy_reverse_model(), toy_tokenizer())
    options = {"mbr_metric": "chrf", "reverse_model": scorer, "reverse_weight": 2.0}
    ranking = Candidate("ranking", translator_of(**options))
    comparison = compare(ranking, [ranking], ROWS, data="toys")
    report = as_markdown(comparison)
    assert "reverse_model VaswaniForConditionalGeneration, reverse_weight 2.0, mbr_metric chrf" in report
    with pytest.raises(UserError, match="have reverse_model=VaswaniForConditionalGeneration and reverse_mod"):
        compare(ranking, [whole], ROWS, data="toys")


# Loading.


def test_models_are_named_by_folder_or_by_path_where_names_clash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("a/best", "b/best", "b/last"):
        save_toy_checkpoint(tmp_path / folder)
    loaded = load_candidates(["a/best", "b/last/"], num_beams=2, dtype="bfloat16")
    assert [candidate.name for candidate in loaded] == ["best", "last"]
    assert {candidate.translator.options.num_beams for candidate in loaded} == {2}
    assert {candidate.translator.model.dtype for candidate in loaded} == {torch.bfloat16}
    assert [candidate.folder and candidate.folder.resolve() for candidate in loaded] == [
        tmp_path / "a/best",
        tmp_path / "b/last",
    ]
    assert [candidate.name for candidate in load_candidates(["a/best", "b/best"])] == ["a/best", "b/best"]


def test_a_folder_given_twice_is_found_before_any_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere/\. is given twice; give each model once"):
        load_candidates([str(tmp_path), "nowhere", "nowhere/."])
