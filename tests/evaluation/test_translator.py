"""Evaluation translates every row and hands the texts to the metrics in order."""

import json
from itertools import count
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from toy_translation import toy_model, toy_rows, toy_tokenizer
from vaswani.errors import UserError
from vaswani.evaluation.text_metrics import score_texts
from vaswani.evaluation.translator import evaluate
from vaswani.inference.translate.translation import Translator


def rows_of(pairs: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"source": source, "target": target} for source, target in pairs]


def test_scores_are_those_of_the_translations_and_their_references() -> None:
    translator = Translator(toy_model(), toy_tokenizer())
    pairs = toy_rows(30, seed=-1, longest=3)
    progress: list[int] = []
    clock = SimpleNamespace(perf_counter=map(float, count(0, 4)).__next__)  # others read the time, too
    with patch("vaswani.evaluation.translator.time", clock):
        evaluation = evaluate(translator, iter(rows_of(pairs)), "translation", progress.append)
    texts = translator([source for source, _ in pairs])
    scores, signatures = score_texts(texts, [target for _, target in pairs])
    right = sum(text == target for text, (_, target) in zip(texts, pairs, strict=True)) / 30
    assert [translation.text for translation in evaluation.translations] == texts
    assert evaluation.scores == scores
    assert scores["exact_match"] == pytest.approx(100 * right)
    assert 0 < right < 1
    assert sum(progress) == 30
    lines = str(evaluation).splitlines()
    assert lines[0] == f"bleu            {scores['bleu']:>7.2f}  {signatures['bleu']}"
    assert lines[-1] == "30 rows in 4.0 s (7.5 a second)"
    assert json.loads(json.dumps(evaluation.to_dict())) == {
        "rows": 30,
        "untranslated_rows": 0,
        "cut_off_rows": 0,
        "unfinished_rows": 0,
        **scores,
        "signatures": signatures,
        "seconds": 4.0,
    }


@pytest.mark.slow
def test_a_source_that_is_too_long_counts_as_empty_and_is_reported() -> None:
    model = toy_model(position_embedding="learned", max_position_embeddings=40)
    pairs = [("one", Translator(model, toy_tokenizer())(["one"])[0]), ("one " * 60, "1")]
    evaluation = evaluate(Translator(model, toy_tokenizer()), rows_of(pairs))
    assert evaluation.scores["exact_match"] == 50
    assert evaluation.to_dict()["untranslated_rows"] == 1
    assert "not translated, counted as empty: 1; the first: it has " in str(evaluation)
    cut = Translator(model, toy_tokenizer(), max_source_length=40)
    evaluation = evaluate(cut, rows_of(pairs))
    assert (evaluation.untranslated_rows, evaluation.to_dict()["cut_off_rows"]) == (0, 1)
    assert "source cut off: 1" in str(evaluation)


def test_no_rows_are_an_error() -> None:
    with pytest.raises(UserError, match="there are no rows to evaluate on"):
        evaluate(Translator(toy_model(), toy_tokenizer()), [])
