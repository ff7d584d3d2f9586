"""Metrics compared with sacreBLEU and counts by hand, in batches, in several processes, offline."""

import socket
from multiprocessing import get_context

import evaluate
import numpy as np
import pytest
import sacrebleu
from transformers import EvalPrediction

from vaswani.data.tokenization import train_tokenizer
from vaswani.errors import UserError
from vaswani.evaluation.resampling import row_statistics, score_of_sum
from vaswani.evaluation.text_metrics import (
    METRICS,
    Bleu,
    Chrf,
    ExactMatch,
    LowercasedBleu,
    Rouge,
    TextMetrics,
    check_task,
    score_texts,
)

PREDICTIONS = ["the cat sat on a mat", "two dogs", "Ein Haus ist groß .", "a b c d e"]
REFERENCES = ["the cat sat on the mat", "two dogs", "Das Haus ist groß .", "a b c d e f"]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a metric opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path)


def test_bleu_equals_sacrebleu_and_carries_its_signature():
    result = Bleu().compute(predictions=PREDICTIONS, references=REFERENCES)
    assert result["bleu"] == sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score
    assert result["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_chrf_equals_sacrebleu_and_carries_its_signature():
    result = Chrf().compute(predictions=PREDICTIONS, references=REFERENCES)
    assert result["chrf"] == sacrebleu.corpus_chrf(PREDICTIONS, [REFERENCES]).score
    assert result["signature"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


def test_bleu_without_case_is_sacrebleus_and_says_so():
    result = LowercasedBleu().compute(predictions=PREDICTIONS, references=REFERENCES)
    expected = sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES], lowercase=True).score
    assert result["bleu_lowercased"] == expected
    assert "case:lc" in result["signature"]
    titles = [text.title() for text in PREDICTIONS]
    again = score_texts(titles, REFERENCES)[0]
    assert again["bleu_lowercased"] == expected
    assert again["bleu"] < Bleu().compute(predictions=PREDICTIONS, references=REFERENCES)["bleu"]


def test_exact_match_is_a_percentage_of_equal_texts():
    assert ExactMatch().compute(predictions=PREDICTIONS, references=REFERENCES) == {"exact_match": 25.0}
    assert ExactMatch().compute(predictions=["a "], references=["a"]) == {"exact_match": 0.0}


def f1(common: int, predicted: int, expected: int) -> float:
    return 2 * common / (predicted + expected)


def test_rouge_counts_common_words_pairs_and_the_longest_common_subsequence():
    """ROUGE of texts whose words can be counted by hand; case, punctuation and endings do not matter."""
    texts = {
        "predictions": ["The cats sat, on a mat!", "dogs"],
        "references": ["the cat sat on the mat", "dog"],
    }
    words, sequence = f1(5, 6, 6), f1(5, 6, 6)
    scores = Rouge().compute(**texts)
    assert scores["rouge1"] == pytest.approx(100 * (words + 1) / 2)
    assert scores["rouge2"] == pytest.approx(100 * (f1(3, 5, 5) + 0) / 2)
    assert scores["rougeL"] == pytest.approx(100 * (sequence + 1) / 2)


def test_rouge_l_depends_on_word_order_and_rouge_1_does_not():
    texts = {"predictions": ["mat the on sat cat"], "references": ["cat sat on the mat"]}
    scores = Rouge().compute(**texts)
    assert scores["rouge1"] == 100
    assert scores["rouge2"] == 0
    assert scores["rougeL"] == pytest.approx(100 * f1(1, 5, 5))


def test_rouge_lsum_is_of_sentences_wherever_lines_end():
    reference = "The cat sat. A dog ran away."
    swapped = {"predictions": ["A dog ran away. The cat sat."], "references": [reference]}
    scores = Rouge().compute(**swapped)
    assert scores["rougeLsum"] == 100
    assert scores["rougeL"] == pytest.approx(100 * f1(4, 7, 7))
    in_lines = {
        "predictions": ["A dog ran away.\nThe cat sat."],
        "references": ["The cat sat.\nA dog ran away."],
    }
    assert Rouge().compute(**in_lines) == scores


def test_rouge_of_empty_or_unrelated_texts_is_zero_with_a_signature():
    result = Rouge().compute(predictions=["", "a"], references=["a summary", "b"])
    assert [result[kind] for kind in ("rouge1", "rouge2", "rougeL", "rougeLsum")] == [0, 0, 0, 0]
    assert result["signature"].startswith("nrefs:1|stem:porter|version:0.1.")


def test_rouge_warns_about_texts_in_other_scripts():
    with pytest.warns(UserWarning, match="and 96% of the letters of the references are others"):
        score_texts(["Анна увидела Рим"], ["В 2020 году Анна увидела Рим, и снова x."], "summarization")
    with pytest.warns(UserWarning, match="1 of 2 references have no word of a-z or 0-9"):
        Rouge().compute(predictions=["一只猫", "a cat"], references=["一只猫", "a cat"])


@pytest.mark.parametrize(
    ("references", "tokens"),
    [
        (["我喜欢在公园里散步。", "今天下雨了 (OK)。"], "zh"),
        (["私は公園を散歩するのが好きです。", "今日は雨です。"], "char"),
        (["ฉันชอบเดินเล่นในสวน", "วันนี้ฝนตก"], "char"),
        (["The character 水 means water.", "Hello"], "13a"),
        (["나는 공원을 산책하는 것을 좋아한다.", "오늘은 비가 온다."], "13a"),
        (["", "123"], "13a"),
    ],
)
def test_the_tokens_of_bleu_are_those_of_the_script(references, tokens):
    predictions = [reference[:-2] for reference in references]
    for metric, lowercase in ((Bleu, False), (LowercasedBleu, True)):
        found = metric().compute(predictions=predictions, references=references)
        assert f"|tok:{tokens}|" in found.pop("signature")
        expected = sacrebleu.corpus_bleu(predictions, [references], tokenize=tokens, lowercase=lowercase)
        (name,) = found
        assert found[name] == expected.score
        statistics = row_statistics(predictions, references, "translation")[name]
        assert score_of_sum(name, statistics.sum(0)) == pytest.approx(expected.score)


@pytest.mark.parametrize("metric", [Bleu, Chrf, ExactMatch, Rouge])
def test_batches_add_up(metric):
    batched = metric()
    batched.add_batch(predictions=PREDICTIONS[:1], references=REFERENCES[:1])
    batched.add_batch(predictions=PREDICTIONS[1:], references=REFERENCES[1:])
    assert batched.compute() == metric().compute(predictions=PREDICTIONS, references=REFERENCES)


def test_metrics_combine():
    together = evaluate.combine([Bleu(), Chrf(), ExactMatch(), LowercasedBleu(), Rouge()])
    scores = together.compute(predictions=PREDICTIONS, references=REFERENCES)
    assert METRICS.keys() <= scores.keys()


def _score_share(process_id, cache_dir, results):
    metric = Chrf(num_process=2, process_id=process_id, experiment_id="shared", cache_dir=cache_dir)
    metric.add_batch(predictions=PREDICTIONS[process_id::2], references=REFERENCES[process_id::2])
    results.put((process_id, metric.compute()))


def test_two_processes_score_their_rows_together(tmp_path):
    context = get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_score_share, args=(i, str(tmp_path), results)) for i in range(2)]
    for process in processes:
        process.start()
    scores = dict(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert scores[1] is None  # the first process scores for all
    assert scores[0]["chrf"] == pytest.approx(sacrebleu.corpus_chrf(PREDICTIONS, [REFERENCES]).score)


def test_summaries_are_scored_by_rouge():
    scores, signatures = score_texts(PREDICTIONS, REFERENCES, "summarization")
    assert scores.keys() == signatures.keys() == {"rouge1", "rouge2", "rougeL", "rougeLsum"}
    assert scores["rouge1"] == Rouge().compute(predictions=PREDICTIONS, references=REFERENCES)["rouge1"]
    assert scores["rouge1"] > scores["rougeL"] - 1e-9 > scores["rouge2"]


def test_a_task_that_cannot_be_scored_is_refused(monkeypatch):
    check_task("summarization")
    with pytest.raises(UserError, match="task=summary is unknown; choose one of translation, summarization"):
        check_task("summary")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_task("translation")
    with pytest.raises(
        UserError, match=r"task=summarization needs .* pip install 'vaswani\[summarization\]'"
    ):
        check_task("summarization")


def test_all_scores_at_once():
    scores, signatures = score_texts(PREDICTIONS, REFERENCES)
    assert scores.keys() == {"bleu", "chrf", "exact_match", "bleu_lowercased"}
    assert signatures.keys() == {"bleu", "chrf", "bleu_lowercased"}
    assert scores["bleu"] == sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(PREDICTIONS + REFERENCES, 300)


def test_padding_of_labels_and_predictions_is_not_text(tokenizer):
    long, short = tokenizer(["the cat sat", "two"])["input_ids"]
    rows = np.full((2, len(long) + 3), -100)
    rows[0, : len(long)], rows[1, : len(short)] = long, short
    assert TextMetrics(tokenizer).decode(rows) == ["the cat sat", "two"]


@pytest.mark.parametrize("task", ["translation", "summarization"])
def test_trainer_metrics_decode_before_they_score(tokenizer, task):
    def padded(texts):
        return tokenizer(texts, padding=True, return_tensors="np")["input_ids"]

    labels = padded(REFERENCES)
    labels[labels == tokenizer.pad_token_id] = -100
    metrics = TextMetrics(tokenizer, task)
    expected, signatures = score_texts(PREDICTIONS, REFERENCES, task)
    assert metrics(EvalPrediction(padded(PREDICTIONS), labels)) == expected
    assert metrics.signatures == signatures


def test_each_direction_has_the_score_and_the_signature_of_its_own_language(tokenizer):
    metrics = TextMetrics(tokenizer)
    predictions, references = [*PREDICTIONS, "一只狗坐在地上"], [*REFERENCES, "一只狗坐在草地上"]
    directions = [*["zh-en"] * len(PREDICTIONS), "en-zh"]
    scores = metrics.compare(predictions, references, directions)
    (english, signatures), (chinese, others) = (
        score_texts(*texts) for texts in ((PREDICTIONS, REFERENCES), (predictions[-1:], references[-1:]))
    )
    assert scores["bleu_zh-en"] == english["bleu"]
    assert scores["bleu_en-zh"] == chinese["bleu"]
    assert metrics.signatures["bleu"] == signatures["bleu"]
    assert metrics.signatures_of_directions == {"bleu_en-zh": others["bleu"]}
    assert "tok:zh" in others["bleu"]
    metrics.compare(PREDICTIONS, REFERENCES)
    assert not metrics.signatures_of_directions
