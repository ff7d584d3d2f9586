"""Metrics against sacreBLEU itself, in batches and from several processes, without a network."""

import socket
from multiprocessing import get_context

import evaluate
import numpy as np
import pytest
import sacrebleu
from transformers import EvalPrediction

from vaswani.data.tokenization import train_tokenizer
from vaswani.training.metrics import Bleu, Chrf, ExactMatch, TranslationMetrics, decode, score_translations

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


def test_exact_match_is_a_percentage_of_equal_texts():
    assert ExactMatch().compute(predictions=PREDICTIONS, references=REFERENCES) == {"exact_match": 25.0}
    assert ExactMatch().compute(predictions=["a "], references=["a"]) == {"exact_match": 0.0}


@pytest.mark.parametrize("metric", [Bleu, Chrf, ExactMatch])
def test_batches_add_up(metric):
    batched = metric()
    batched.add_batch(predictions=PREDICTIONS[:1], references=REFERENCES[:1])
    batched.add_batch(predictions=PREDICTIONS[1:], references=REFERENCES[1:])
    assert batched.compute() == metric().compute(predictions=PREDICTIONS, references=REFERENCES)


def test_metrics_combine():
    together = evaluate.combine([Bleu(), Chrf(), ExactMatch()])
    scores = together.compute(predictions=PREDICTIONS, references=REFERENCES)
    assert {"bleu", "chrf", "exact_match"} <= scores.keys()


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


def test_all_scores_at_once():
    scores, signatures = score_translations(PREDICTIONS, REFERENCES)
    assert scores.keys() == {"bleu", "chrf", "exact_match"}
    assert signatures.keys() == {"bleu", "chrf"}
    assert scores["bleu"] == sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(PREDICTIONS + REFERENCES, 300)


def test_padding_of_labels_and_predictions_is_not_text(tokenizer):
    long, short = tokenizer(["the cat sat", "two"])["input_ids"]
    rows = np.full((2, len(long) + 3), -100)
    rows[0, : len(long)], rows[1, : len(short)] = long, short
    assert decode(rows, tokenizer) == ["the cat sat", "two"]


def test_trainer_metrics_decode_before_they_score(tokenizer):
    def padded(texts):
        return tokenizer(texts, padding=True, return_tensors="np")["input_ids"]

    labels = padded(REFERENCES)
    labels[labels == tokenizer.pad_token_id] = -100
    metrics = TranslationMetrics(tokenizer)
    assert (
        metrics(EvalPrediction(padded(PREDICTIONS), labels)) == score_translations(PREDICTIONS, REFERENCES)[0]
    )
    assert metrics.signatures == score_translations(PREDICTIONS, REFERENCES)[1]
