"""Metrics of generated texts: BLEU, chrF and exact match for translations, ROUGE for summaries.

Each is an `evaluate.Metric` that needs no network: instantiate it, then `compute`, `add_batch` or `combine`.
Texts are plain (detokenized, with their case) with one reference each; scores run from 0 to 100.
"""

import importlib.util
import re
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import datasets
import evaluate
import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from transformers import EvalPrediction, PreTrainedTokenizerBase

from vaswani.data.collation import IGNORED_LABEL
from vaswani.data.text.ngram_scores import bleu_metric
from vaswani.data.text.sentences import sentences_of
from vaswani.data.text_codec import TextCodec
from vaswani.errors import UserError

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


def _corpus_score(
    name: str, metric: BLEU | CHRF, predictions: Sequence[str], references: Sequence[str]
) -> dict[str, Any]:
    """Return a score of sacreBLEU, by its name, with the signature."""
    score = metric.corpus_score(predictions, [references]).score
    return {name: score, "signature": str(metric.get_signature())}


class Bleu(evaluate.Metric):
    """Corpus BLEU (Papineni et al., 2002), computed by sacreBLEU (Post, 2018); see `bleu_metric`."""

    def _info(self) -> evaluate.MetricInfo:
        return _describe("Corpus BLEU, 0 to 100, with sacreBLEU's signature.", "Post, 2018, arXiv:1804.08771")

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        return _corpus_score("bleu", bleu_metric(references), predictions, references)


class LowercasedBleu(evaluate.Metric):
    """`Bleu` of lower-cased texts, to compare with papers that report BLEU without case."""

    def _info(self) -> evaluate.MetricInfo:
        return _describe("Corpus BLEU of lower-cased texts, 0 to 100.", "Post, 2018, arXiv:1804.08771")

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        metric = bleu_metric(references, lowercase=True)
        return _corpus_score("bleu_lowercased", metric, predictions, references)


class Chrf(evaluate.Metric):
    """Corpus chrF2, the character n-gram F-score (Popović, 2015), computed by sacreBLEU."""

    def _info(self) -> evaluate.MetricInfo:
        return _describe("Corpus chrF2, 0 to 100, with sacreBLEU's signature.", "Popović, 2015, W15-3049")

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        return _corpus_score("chrf", CHRF(), predictions, references)


class ExactMatch(evaluate.Metric):
    """Percentage of predictions that equal their reference exactly."""

    def _info(self) -> evaluate.MetricInfo:
        return _describe("Percentage of predictions equal to their reference.", "")

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        equal = sum(
            prediction == reference for prediction, reference in zip(predictions, references, strict=True)
        )
        return {"exact_match": 100.0 * equal / max(len(references), 1)}


ROUGE_KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def rouge_f1(predictions: Sequence[str], references: Sequence[str]) -> dict[str, np.ndarray]:
    """Return ROUGE of each prediction, float64 [rows], 0 to 1 (Lin, 2004, W04-1013).

    `rouge1` and `rouge2` are the F1 of common words and word bigrams; `rougeL` is the F1 of the longest
    common subsequence of words in the whole text. `rougeLsum` is the F1 of the union of the longest common
    subsequences of each pair of sentences; papers on summarization call it ROUGE-L. Words are lower-cased,
    and stemmed with Porter's stemmer.

    Args:
        predictions: the texts to score.
        references: one for each prediction.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(ROUGE_KINDS, use_stemmer=True)
    # One line per sentence; only ROUGE-Lsum splits texts at line feeds.
    pairs = ((_in_lines(one), _in_lines(two)) for one, two in zip(predictions, references, strict=True))
    scores = [scorer.score(reference, prediction) for prediction, reference in pairs]
    return {kind: np.array([score[kind].fmeasure for score in scores]) for kind in ROUGE_KINDS}


def _in_lines(text: str) -> str:
    return "\n".join(sentences_of(text))


_MAX_FOREIGN = 0.2  # largest share of letters outside a-z without a warning; German has 0.02


def _foreign_letters(texts: Sequence[str]) -> float:
    """Return the share of letters that are not of a-z."""
    letters = [letter.isascii() for text in texts for letter in text if letter.isalpha()]
    return letters.count(False) / max(len(letters), 1)


class Rouge(evaluate.Metric):
    """Mean F1 of the rows, computed by rouge-score, which counts only words of a-z and 0-9."""

    def _info(self) -> evaluate.MetricInfo:
        return _describe(
            "Mean F1 of ROUGE-1, -2, -L and -Lsum over the rows, 0 to 100.", "Lin, 2004, W04-1013"
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        wordless = sum(re.search("[a-zA-Z0-9]", reference) is None for reference in references)
        if wordless:
            warnings.warn(
                f"{wordless} of {len(references)} references have no word of a-z or 0-9, the only ones that "
                "ROUGE counts, and score 0; for other scripts use task=translation, whose chrF counts all",
                stacklevel=1,
            )
        elif (share := _foreign_letters(references)) > _MAX_FOREIGN:
            warnings.warn(
                f"ROUGE counts only words of a-z and 0-9, and {share:.0%} of the letters of the references "
                "are others; for other scripts use task=translation, whose chrF counts all",
                stacklevel=1,
            )
        f1 = rouge_f1(predictions, references)
        scores = {kind: 100.0 * float(rows.sum()) / max(len(references), 1) for kind, rows in f1.items()}
        return {**scores, "signature": f"nrefs:1|stem:porter|version:{version('rouge-score')}"}


METRICS_OF_TASK: dict[str, dict[str, type[evaluate.Metric]]] = {  # the first one ranks models
    "translation": {
        "bleu": Bleu,
        "chrf": Chrf,
        "exact_match": ExactMatch,
        "bleu_lowercased": LowercasedBleu,
    },
    "summarization": dict.fromkeys(ROUGE_KINDS, Rouge),
}
METRICS = {name: metric for metrics in METRICS_OF_TASK.values() for name, metric in metrics.items()}
SCORING_PACKAGE = {"translation": "sacrebleu", "summarization": "rouge-score"}


def task_of_metric(metric: str) -> str:
    """Return the task of a metric; raise a UserError for an unknown metric."""
    for task, metrics in METRICS_OF_TASK.items():
        if metric in metrics:
            return task
    raise UserError(f"metric={metric} is unknown; choose one of {', '.join(METRICS)}")


def check_task(task: str) -> None:
    """Raise a UserError if a task is unknown, or the package for its metrics is missing."""
    if task not in METRICS_OF_TASK:
        raise UserError(f"task={task} is unknown; choose one of {', '.join(METRICS_OF_TASK)}")
    if task == "summarization" and importlib.util.find_spec("rouge_score") is None:
        raise UserError("task=summarization needs a package for ROUGE: pip install 'vaswani[summarization]'")


def score_texts(
    predictions: Sequence[str], references: Sequence[str], task: str = "translation"
) -> tuple[dict[str, float], dict[str, str]]:
    """Compute all metrics of a task.

    Returns:
        The scores by metric (see `METRICS_OF_TASK`; 0 to 100), and the signatures of metrics that have one.
    """
    scores: dict[str, float] = {}
    signatures: dict[str, str] = {}
    for metric in dict.fromkeys(METRICS_OF_TASK[task].values()):  # each class once
        result = metric(keep_in_memory=True).compute(predictions=predictions, references=references)
        signature = result.pop("signature", None)
        scores.update(result)
        if signature:
            signatures.update(dict.fromkeys(result, signature))
    return scores, signatures


class TextMetrics:
    """`compute_metrics` for a `Seq2SeqTrainer` that evaluates with `predict_with_generate`.

    Keeps the latest scores, with their signatures and texts, which a trainer cannot log.

    Args:
        target_tokenizer: decodes predictions and labels.
        task: selects the metrics.
    """

    def __init__(self, target_tokenizer: PreTrainedTokenizerBase, task: str = "translation"):
        self.targets = TextCodec(target_tokenizer, "target")
        self.task = task
        self.scores: dict[str, float] = {}
        self.signatures: dict[str, str] = {}
        self.predictions: list[str] = []
        self.references: list[str] = []
        self.of_directions: dict[str, float] = {}
        self.signatures_of_directions: dict[str, str] = {}

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        """Score generated token ids [rows, length] against label ids [rows, length].

        References are decoded from label ids, so they lack whatever the tokenizer loses of a text.
        """
        return self.compare(self.decode(prediction.predictions), self.decode(prediction.label_ids))

    def decode(self, token_ids: Any) -> list[str]:
        """Decode token ids [rows, length], in which −100 is padding."""
        padding = self.targets.tokenizer.pad_token_id
        return self.targets.decode(np.where(token_ids == IGNORED_LABEL, padding, token_ids))

    def compare(
        self, predictions: list[str], references: list[str], directions: Sequence[str] = ()
    ) -> dict[str, float]:
        """Score each text against its reference.

        If the direction of each is given, the task's first metric also scores each direction alone, as in
        `bleu_en-de`. Its signature is kept if it differs from that of all rows, as for a target in Chinese.
        """
        self.predictions, self.references = predictions, references
        self.scores, self.signatures = score_texts(predictions, references, self.task)
        name, metric = next(iter(METRICS_OF_TASK[self.task].items()))
        self.of_directions, self.signatures_of_directions = {}, {}
        for direction in dict.fromkeys(directions):
            rows = [row for row, each in enumerate(directions) if each == direction]
            texts = {"predictions": [predictions[row] for row in rows]}
            texts["references"] = [references[row] for row in rows]
            result = metric(keep_in_memory=True).compute(**texts)
            self.of_directions[f"{name}_{direction}"] = result[name]
            if (signature := result.get("signature")) != self.signatures.get(name):
                self.signatures_of_directions[f"{name}_{direction}"] = signature
        return self.scores | self.of_directions
