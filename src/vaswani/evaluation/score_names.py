"""Names and scales of scores. This module imports nothing, so that options and plots can read it."""

TEXTS = {
    "bleu": "BLEU",
    "chrf": "chrF2",
    "exact_match": "exact match",
    "bleu_lowercased": "BLEU, lower-cased",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
}
CLASSIFICATION = {"accuracy": "accuracy", "macro_f1": "macro F1", "matthews": "Matthews' correlation"}
MULTI_LABEL = {"micro_f1": "micro F1", "macro_f1": "macro F1", "subset_accuracy": "subset accuracy"}
REGRESSION = {"pearson": "Pearson's r", "spearman": "Spearman's ρ", "mse": "mean squared error"}
TAGGING = {
    "token_accuracy": "token accuracy",
    "precision": "span precision",
    "recall": "span recall",
    "f1": "span F1",
}
ANSWERS = {
    "exact_match": "exact match",
    "f1": "F1",
    "has_answer_exact_match": "exact match, answerable",
    "has_answer_f1": "F1, answerable",
    "no_answer_accuracy": "accuracy, unanswerable",
}
LANGUAGE_MODELS = {
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
    "next_sentence_accuracy": "next-sentence accuracy",
}
# All of them, as plots show them. "f1" is F1 of spans or of answers.
ALL = TEXTS | CLASSIFICATION | MULTI_LABEL | REGRESSION | TAGGING | ANSWERS | LANGUAGE_MODELS

CORRELATIONS = ("matthews", "pearson", "spearman")  # −1 to 1
LOWER_IS_BETTER = ("mse", "perplexity", "bits_per_byte")  # at least 0, as losses
PERCENTAGES = tuple(name for name in ALL if name not in (*CORRELATIONS, *LOWER_IS_BETTER))


def is_lower_better(name: str) -> bool:
    """Return True for losses and for the scores of `LOWER_IS_BETTER`."""
    return name.endswith("loss") or name in LOWER_IS_BETTER
