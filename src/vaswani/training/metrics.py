"""Translation quality: sacreBLEU's BLEU and chrF with their signatures, and exact match.

Each is an `evaluate.Metric` that needs no network: instantiate it, then `compute`, `add_batch` or `combine`.
Texts are compared as they are (cased, detokenized); scores run from 0 to 100.
"""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from transformers import EvalPrediction, PreTrainedTokenizerBase

from vaswani.data.batching import IGNORED_LABEL

_PAIR_OF_TEXTS = datasets.Features(
    {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
)


def _describe(description: str, citation: str) -> evaluate.MetricInfo:
    return evaluate.MetricInfo(
        description=description,
        citation=citation,
        inputs_description="predictions: list of texts; references: one text for each prediction.",
        features=_PAIR_OF_TEXTS,
    )


class Bleu(evaluate.Metric):
    """Corpus BLEU (Papineni et al., 2002) as sacreBLEU computes it (Post, 2018)."""

    def _info(self) -> evaluate.MetricInfo:
        return _describe("Corpus BLEU, 0 to 100, with sacreBLEU's signature.", "Post, 2018, arXiv:1804.08771")

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        metric = BLEU()
        score = metric.corpus_score(predictions, [references]).score
        return {"bleu": score, "signature": str(metric.get_signature())}


class Chrf(evaluate.Metric):
    """Corpus chrF2, the character n-gram F-score (Popović, 2015), as sacreBLEU computes it."""

    def _info(self) -> evaluate.MetricInfo:
        return _describe("Corpus chrF2, 0 to 100, with sacreBLEU's signature.", "Popović, 2015, W15-3049")

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        metric = CHRF()
        score = metric.corpus_score(predictions, [references]).score
        return {"chrf": score, "signature": str(metric.get_signature())}


class ExactMatch(evaluate.Metric):
    """Percentage of predictions that equal their reference, character by character."""

    def _info(self) -> evaluate.MetricInfo:
        return _describe("Percentage of predictions equal to their reference.", "")

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        equal = sum(
            prediction == reference for prediction, reference in zip(predictions, references, strict=True)
        )
        return {"exact_match": 100.0 * equal / max(len(references), 1)}


METRICS: dict[str, type[evaluate.Metric]] = {"bleu": Bleu, "chrf": Chrf, "exact_match": ExactMatch}
METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF2", "exact_match": "exact match"}  # for people


def score_translations(
    predictions: Sequence[str], references: Sequence[str]
) -> tuple[dict[str, float], dict[str, str]]:
    """Every metric of this file at once.

    Returns:
        The scores (`bleu`, `chrf`, `exact_match`; 0 to 100), and the signatures of sacreBLEU's.
    """
    scores, signatures = {}, {}
    for name, metric in METRICS.items():
        result = metric(keep_in_memory=True).compute(predictions=predictions, references=references)
        scores[name] = result[name]
        if "signature" in result:
            signatures[name] = result["signature"]
    return scores, signatures


def decode(token_ids: Any, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Texts of [rows, length] token ids; −100, which marks padding in labels, counts as padding."""
    token_ids = np.where(token_ids == IGNORED_LABEL, tokenizer.pad_token_id, token_ids)
    return tokenizer.batch_decode(token_ids, skip_special_tokens=True)


class TranslationMetrics:
    """The `compute_metrics` of a `Seq2SeqTrainer` that evaluates with `predict_with_generate`.

    Holds the latest scores with what has no place among the numbers that a trainer logs: signatures, texts.
    """

    def __init__(self, target_tokenizer: PreTrainedTokenizerBase):
        self.target_tokenizer = target_tokenizer
        self.scores: dict[str, float] = {}
        self.signatures: dict[str, str] = {}
        self.predictions: list[str] = []
        self.references: list[str] = []

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        """Score generated token ids [rows, length] against label ids [rows, length]."""
        self.predictions = decode(prediction.predictions, self.target_tokenizer)
        self.references = decode(prediction.label_ids, self.target_tokenizer)
        self.scores, self.signatures = score_translations(self.predictions, self.references)
        return self.scores
