"""The view of models that answer questions: the answer and its place in a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vaswani.data.text_codec import TextCodec
from vaswani.demo.html_parts import marked, paragraph, table, token_list
from vaswani.demo.view import View, ViewAnswer, check_characters
from vaswani.errors import UserError
from vaswani.inference.answer.answering import QuestionAnswerer
from vaswani.inference.answer.spans import Answer
from vaswani.insight.attention import AttentionMap

if TYPE_CHECKING:
    from gradio import Slider, Textbox

MAX_SPANS = 5  # best spans in the table
NO_ANSWER = "no answer"


class AnswerView(View):
    """Shows the answer to a question, its place in the text, and the best spans with their scores."""

    verb = "Answer"
    text_label = "Question"
    answer_label = "Answer"

    def __init__(self, name: str, answerer: QuestionAnswerer):
        super().__init__(name, TextCodec(answerer.tokenizer), answerer.model)
        self.answerer = answerer

    def controls(self) -> list[Slider | Textbox]:
        """Return the input for the text that may answer the question."""
        import gradio as gr

        return [gr.Textbox(label="Text that may answer it", lines=6, max_lines=20)]

    def attention(self, text: str, answer: str, *values: Any) -> tuple[AttentionMap, ...]:
        """Return the attention of the question and the text."""
        (context,) = values
        return self.attention_of_pair(text.strip(), context or "")

    def answer(self, text: str, *values: Any) -> ViewAnswer:
        """Return the best span, marked in the text, with the scores of other spans and of no answer."""
        question, (context,) = text.strip(), values
        context = context or ""  # a client may send null
        if not context.strip():
            return ViewAnswer("", paragraph("Give a text that may answer the question."))
        check_characters(context)
        (found,) = self.answerer.answer([(question, context)])
        if found.cut_off:
            most = self.answerer.lengths.max_question_length
            raise UserError(
                f"the question is longer than the {most:,} tokens that the model reads; shorten it"
            )
        best = found.best
        place = (best.start, best.end) if best else (0, 0)
        return ViewAnswer(
            best.text if best else NO_ANSWER,
            marked("Text", context, *place)
            + table("Answers", ["answer", "characters", "score"], _rows(found))
            + token_list("Question", self.codec, self.encode(question)),
        )


def _rows(found: Answer) -> list[tuple[str, str, float]]:
    """Return the best spans with their places and scores, and the score of no answer if there is one."""
    rows = [(span.text, f"{span.start} to {span.end}", span.score) for span in found.spans[:MAX_SPANS]]
    if found.threshold is not None:
        rows.append((NO_ANSWER, "", found.null_score + 0.0))
    return rows
