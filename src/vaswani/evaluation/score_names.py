"""The names of scores as `vaswani plot curves` and `vaswani report` show them."""

from vaswani.evaluation.answer_metrics import AnswerMetric
from vaswani.evaluation.label_metrics import METRICS_OF_TASK
from vaswani.evaluation.score_scales import CORRELATIONS, LOWER_IS_BETTER
from vaswani.evaluation.text_metrics import METRIC_NAMES

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
PERCENTAGES = tuple(name for name in SCORE_NAMES if name not in (*CORRELATIONS, *LOWER_IS_BETTER))
