"""The view of classifiers, regressors and taggers: the labels of a text with probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vaswani.data.text_codec import TextCodec
from vaswani.demo.html_parts import paragraph, table, token_list
from vaswani.demo.view import View, ViewAnswer, check_characters, check_length
from vaswani.errors import UserError
from vaswani.inference.classify.classification import Classifier, Prediction, Text
from vaswani.insight.attention import AttentionMap

if TYPE_CHECKING:
    from gradio import Slider, Textbox

MAX_LABELS = 10  # most probable labels in a table
SECOND_TEXT = "Second text"


class ClassificationView(View):
    """Shows the label of a text with the probabilities of the labels, or the tags of its words."""

    verb = "Classify"
    text_label = "Text"
    answer_label = "Label"

    def __init__(self, name: str, classifier: Classifier):
        super().__init__(name, TextCodec(classifier.tokenizer), classifier.model)
        self.classifier = classifier

    def answer(self, text: str, *values: Any) -> ViewAnswer:
        """Return the label, and the probabilities of the most probable labels."""
        token_ids = self.encode(text)
        check_length(len(token_ids), self.classifier.max_length)
        prediction = self.predict(text)
        shown = _table(prediction, self.classifier.task)
        return ViewAnswer(_label(prediction), shown + token_list("Text", self.codec, token_ids))

    def predict(self, text: Text) -> Prediction:
        """Return the prediction for a text, or for a pair of texts.

        Raises:
            UserError: the tokenizer gives no tokens for the text, or more than the model reads.
        """
        (prediction,) = self.classifier([text])
        if prediction.label is None:
            raise UserError("the tokenizer finds no words in the text; write others")
        if prediction.cut_off:  # of a pair, or of words that a tagger splits otherwise than a text
            raise UserError(
                f"the text has more than the {self.classifier.max_length:,} tokens that the model reads; "
                "shorten it"
            )
        return prediction


class PairView(ClassificationView):
    """Shows the label of a pair of texts."""

    text_label = "First text"

    def controls(self) -> list[Slider | Textbox]:
        """Return the input for the second text."""
        import gradio as gr

        return [gr.Textbox(label=SECOND_TEXT, lines=3, max_lines=12)]

    def attention(self, text: str, answer: str, *values: Any) -> tuple[AttentionMap, ...]:
        """Return the attention of both texts."""
        (second,) = values
        return self.attention_of_pair(text, second or "")

    def answer(self, text: str, *values: Any) -> ViewAnswer:
        """Return the label of the pair, and the probabilities of the most probable labels."""
        (second,) = values
        second = second or ""  # a client may send null
        if not second.strip():
            return ViewAnswer("", paragraph("Give a second text; the model reads pairs."))
        check_characters(second)
        prediction = self.predict((text, second))
        lists = [
            token_list(title, self.codec, self.encode(one))
            for title, one in {self.text_label: text, SECOND_TEXT: second}.items()
        ]
        return ViewAnswer(_label(prediction), _table(prediction, self.classifier.task) + "".join(lists))


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
