"""The scores of validations as `vaswani plot curves` and `vaswani report` show them: names and scales.

A score of texts, labels or answers that is in none of the groups below is on the scale from 0 to 100.
"""

from vaswani.evaluation.answer_metrics import AnswerMetric
from vaswani.evaluation.label_metrics import METRICS_OF_TASK
from vaswani.evaluation.text_metrics import METRIC_NAMES

CORRELATIONS = ("matthews", "pearson", "spearman")  # −1 to 1
ERRORS = ("mse", "perplexity", "bits_per_byte")  # at least 0; lower is better, as for losses
LANGUAGE_MODEL_NAMES = {
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
    "next_sentence_accuracy": "next-sentence accuracy",
}
SCORE_NAMES: dict[str, str] = {
    **METRIC_NAMES,
    **{name: shown for metric in METRICS_OF_TASK.values() for name, shown in metric.names.items()},
    **AnswerMetric.names,  # after the labels: "f1" is F1 of spans or of answers
    **LANGUAGE_MODEL_NAMES,
}
PERCENTAGES = tuple(name for name in SCORE_NAMES if name not in (*CORRELATIONS, *ERRORS))
