"""The base class of the views of a model; each kind of model has a subclass in its own file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from transformers import AutoModelForCausalLM

from vaswani.data.sources.reading import is_utf8
from vaswani.data.text_codec import TextCodec
from vaswani.demo.html_parts import alert, paragraph, part
from vaswani.errors import RunError, UserError, one_line
from vaswani.hub.checkpoint import serves
from vaswani.inference.onnx.base import OnnxPreTrainedModel
from vaswani.insight.attention import AttentionMap, read_attention

if TYPE_CHECKING:
    from gradio import Slider, Textbox

logger = logging.getLogger(__name__)

MAX_CHARACTERS = 50_000  # tokenizers need a second for more, even if the model reads less
Result = TypeVar("Result")


@dataclass(frozen=True)
class ViewAnswer:
    """A model's output for a text.

    Args:
        text: the result in short.
        details: HTML with scores and tokens.
    """

    text: str
    details: str


class View:
    """Shows the output of a model for a text. Several threads share a view.

    Args:
        name: name of the model on the page.
        codec: encodes the texts that the model reads.
        model: the model; None if there is not one of PyTorch, as with CTranslate2 or several models.

    Class attributes are words on the page: `verb` on the button, and the labels of the text and its answer.
    """

    verb: ClassVar[str]
    text_label: ClassVar[str]
    answer_label: ClassVar[str]

    def __init__(self, name: str, codec: TextCodec, model: Any):
        self.name = name
        self.codec = codec
        # Exported models show neither attention nor their size.
        self.model: Any = None if isinstance(model, OnnxPreTrainedModel) else model

    def controls(self) -> list[Slider | Textbox]:
        """Return the inputs of the page beside the text; `answer` gets their values."""
        return []

    def answer(self, text: str, *values: Any) -> ViewAnswer:
        """Return the answer to a text that is not empty.

        Raises:
            UserError: the text cannot be read.
            RunError: the computation fails.
        """
        raise NotImplementedError

    def attention(self, text: str, answer: str, *values: Any) -> tuple[AttentionMap, ...]:
        """Return the attention of the tokens of a text and, if the model reads them, of its answer.

        Args:
            text: the text.
            answer: the answer to the text.
            values: values of the controls.

        Raises:
            UserError: the model returns no weights, or the text is too long.
        """
        return read_attention(self.model, self.codec.tokenizer, text)

    def attention_of_pair(self, first: str, second: str) -> tuple[AttentionMap, ...]:
        """Return the attention of the tokens of two texts that the model reads together."""
        texts: tuple[str, ...] = (first, second)
        if serves(AutoModelForCausalLM, self.model.config):  # `read_attention` reads one text then
            texts = (" ".join(texts),)
        return read_attention(self.model, self.codec.tokenizer, *texts)

    def describe(self) -> str:
        """Return a line about the model: its size, class, type of weights and device."""
        if self.model is None:
            return ""
        size = f"{self.model.num_parameters():,} parameters"
        dtype = str(self.model.dtype).removeprefix("torch.")
        return " · ".join([size, type(self.model).__name__, dtype, self.model.device.type])

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return self.codec.token_ids([text])[0]

    def show(self, text: str | None, *values: Any) -> tuple[str, str]:
        """Return the answer to a text, and HTML with its details and time or the reason of a failure."""
        if text is None or not text.strip():  # a client may send null
            return "", ""
        start = time.perf_counter()
        answer, problem = result_or_error(lambda: self._checked_answer(text, *values))
        if answer is None:
            return "", problem
        took = paragraph(f"{1000 * (time.perf_counter() - start):,.0f} ms")
        return answer.text, part(took, answer.details)

    def _checked_answer(self, text: str, *values: Any) -> ViewAnswer:
        check_characters(text)
        return self.answer(text, *values)


def result_or_error(work: Callable[[], Result]) -> tuple[Result | None, str]:
    """Return the result of a function and an empty text, or None and the reason of its failure as HTML."""
    try:
        return work(), ""
    except (UserError, RunError) as error:
        return None, part(alert(str(error)))
    except Exception as error:
        logger.exception("the demo failed")  # the traceback is for the terminal
        return None, part(alert(f"{type(error).__name__}: {one_line(error)}"))


def html_or_error(work: Callable[[], str]) -> str:
    """Return the HTML that a function makes, or the reason of its failure as HTML."""
    made, problem = result_or_error(work)
    return problem if made is None else made


def check_characters(text: str) -> None:
    """Raise a UserError if a text has too many characters, or half of a surrogate pair."""
    if not is_utf8(text):
        raise UserError("the text has half of a surrogate pair, which is not a character; type it again")
    if len(text) > MAX_CHARACTERS:
        raise UserError(
            f"the text has {len(text):,} characters, and at most {MAX_CHARACTERS:,} are read; shorten it"
        )


def check_length(tokens: int, max_tokens: int | None) -> None:
    """Raise a UserError if a text has too many tokens."""
    if max_tokens is not None and tokens > max_tokens:
        raise UserError(
            f"the text has {tokens:,} tokens, and the model reads at most {max_tokens:,}; shorten it"
        )
