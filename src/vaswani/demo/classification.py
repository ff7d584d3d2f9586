"""The view of classifiers, regressors and taggers: the labels of a text with probabilities."""

from __future__ import annotations

from vaswani.data.text_codec import TextCodec
from vaswani.demo.html_parts import table, token_list
from vaswani.demo.view import View, ViewAnswer, check_length
from vaswani.inference.classify.classification import Classifier, Prediction

MAX_LABELS = 10  # most probable labels in a table


class ClassificationView(View):
    """Shows the label of a text with the probabilities of the labels, or the tags of its words."""

    verb = "Classify"
    text_label = "Text"
    answer_label = "Label"

    def __init__(self, name: str, classifier: Classifier):
        super().__init__(name, TextCodec(classifier.tokenizer), classifier.model)
        self.classifier = classifier

    def answer(self, text: str) -> ViewAnswer:
        """Return the label, and the probabilities of the most probable labels."""
        token_ids = self.encode(text)
        check_length(len(token_ids), self.classifier.max_length)
        (prediction,) = self.classifier([text])
        shown = _table(prediction, self.classifier.task)
        return ViewAnswer(_label(prediction), shown + token_list("Text", self.codec, token_ids))


def _label(prediction: Prediction) -> str:
    if isinstance(prediction.label, float):
        return f"{prediction.label:.3f}"
    if isinstance(prediction.label, list):
        return " ".join(map(str, prediction.label)) if prediction.words else ", ".join(prediction.label)
    return str(prediction.label)


def _table(prediction: Prediction, task: str) -> str:
    """Return a table of the labels, or of the words with their tags; empty for regression."""
    if task == "tagging":
        tags = zip(prediction.words or (), prediction.label, prediction.probability, strict=True)
        return table("Tags", ["word", "tag", "probability"], [*tags])
    if task == "regression":
        return ""
    labels = list(prediction.probabilities.items())[:MAX_LABELS]
    return table("Labels", ["label", "probability"], labels)
