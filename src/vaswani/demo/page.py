"""The page: a text box and, below it, a column for each model with the model's output.

The text is sent when the user pauses. A page computes one text at a time; the last one is always computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import gradio as gr

from vaswani.demo.answering import AnswerView
from vaswani.demo.classification import ClassificationView, PairView
from vaswani.demo.html_parts import STYLE, heading, part
from vaswani.demo.language_model import CompletionView, MaskView
from vaswani.demo.models import MaskFiller, Model, PairClassifier, Summarizer
from vaswani.demo.sparse import show_pattern, sparse_patterns
from vaswani.demo.translation import SummaryView, TranslationView
from vaswani.demo.view import View, html_or_error
from vaswani.errors import UserError
from vaswani.inference.answer.answering import QuestionAnswerer
from vaswani.inference.classify.classification import Classifier
from vaswani.inference.prompt.prompting import Prompter
from vaswani.inference.translate.translation import Translator
from vaswani.insight.attention_page import attention_page

THREADS = 4  # texts that one model reads at a time
MAX_WAITING = 64  # texts in the queue; if it is full, users get a message
PAUSE = 300  # milliseconds without a key press, after which a text is sent

VIEWS: dict[type[Model], Any] = {
    Summarizer: SummaryView,  # before `Translator`, its base class
    Translator: TranslationView,
    PairClassifier: PairView,  # likewise
    Classifier: ClassificationView,
    Prompter: CompletionView,
    MaskFiller: MaskView,
    QuestionAnswerer: AnswerView,
}

_numbers = count()  # of pages: unique element ids, so that pages can be combined into one


def build_page(models: Mapping[str, Model], examples: Sequence[str | tuple[str, ...]] = ()) -> gr.Blocks:
    """Return the page (see `vaswani.demo.build_demo`)."""
    views = _views(models)
    number = next(_numbers)
    first = views[0]
    title = " and ".join(models)
    with gr.Blocks(title=f"{title} · vaswani", analytics_enabled=False) as page:
        _html(STYLE + part(heading(1, title, first.describe() if len(views) == 1 else "")))
        text = gr.Textbox(label=first.text_label, lines=3, max_lines=12, autofocus=True)
        controls = first.controls()
        button = gr.Button(first.verb, variant="primary", elem_id=f"vaswani-send-{number}")
        if examples:
            rows = [[example] if isinstance(example, str) else [*example] for example in examples]
            gr.Examples(rows, [text, *controls][: len(rows[0])], label="Examples")
        with gr.Row():
            for view in views:
                with gr.Column(min_width=320):
                    if len(views) > 1:
                        _html(part(heading(2, view.name, view.describe())))
                    _add_column(view, text, controls, button)
        changes = [control.change for control in controls]
        gr.on([text.change, *changes], None, js=_send_after_pause(button))
    return page.queue(max_size=MAX_WAITING, default_concurrency_limit=THREADS)


def _views(models: Mapping[str, Model]) -> list[View]:
    """Return a view for each model.

    Raises:
        UserError: there is no model, or the models are of several kinds.
    """
    if not models:
        raise UserError("a demo needs a model; give one or more")
    kinds = {name: next(kind for kind in VIEWS if isinstance(model, kind)) for name, model in models.items()}
    if len(set(kinds.values())) > 1:
        told = ", ".join(f"{name} ({kind.__name__})" for name, kind in kinds.items())
        raise UserError(f"the models of a demo must be of one kind; got {told}")
    return [VIEWS[kinds[name]](name, model) for name, model in models.items()]


def _html(value: str = "") -> gr.HTML:
    return gr.HTML(value, apply_default_css=False, padding=True)


def _add_column(
    view: View, text: gr.Textbox, controls: list[gr.Slider | gr.Textbox], button: gr.Button
) -> None:
    """Add the column of one model."""
    answer = gr.Textbox(label=view.answer_label, lines=2, interactive=False)
    details = _html()
    answered = button.click(
        view.show,
        [text, *controls],
        [answer, details],
        api_name=re.sub(r"\W+", "_", view.name),
        trigger_mode="always_last",
        show_progress="minimal",
    )
    if view.model is not None:

        def show_attention(text: str | None, answer: str | None, *values: Any) -> str:
            if text is None or not text.strip():  # a client may send null
                return ""
            return html_or_error(
                lambda: attention_page(view.attention(text, answer or "", *values))._repr_html_()
            )

        _add_panel("Attention", show_attention, [text, answer, *controls], answered)
    if patterns := sparse_patterns(view.model):

        def show_sparse(text: str | None, layer: str) -> str:
            return html_or_error(lambda: show_pattern(patterns[layer], max(1, len(view.encode(text or "")))))

        _add_panel("Sparse pattern", show_sparse, [text], answered, choices={"Layer": list(patterns)})


def _add_panel(
    title: str,
    show: Callable[..., str],
    inputs: list[gr.Component],
    answered: Any,
    choices: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Add a panel that is computed only while it is open.

    Args:
        title: title of the panel.
        show: returns the panel's HTML from the values of the inputs and the choices.
        inputs: the inputs that the panel depends on.
        answered: the event after which the text has a new answer.
        choices: labels of menus in the panel with their items; None for no menus.
    """
    hidden: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
    is_open = gr.State(False)
    with gr.Accordion(title, open=False) as panel:
        chosen = [gr.Dropdown([*values], label=label) for label, values in (choices or {}).items()]
        content = _html()
    inputs = [*inputs, *chosen]

    def show_if_open(is_open: bool, *values: Any) -> Any:
        return show(*values) if is_open else gr.skip()

    panel.expand(lambda: True, None, is_open, **hidden).then(show, inputs, content, **hidden)
    panel.collapse(lambda: False, None, is_open, **hidden)
    answered.then(show_if_open, [is_open, *inputs], content, **hidden)
    for choice in chosen:
        choice.change(show, inputs, content, **hidden)


def _send_after_pause(button: gr.Button) -> str:
    """Return JavaScript that clicks the button when no key has been pressed for a while."""
    return (
        f"() => {{ clearTimeout(window.{_timer(button)}); window.{_timer(button)} = setTimeout("
        f"() => document.getElementById('{button.elem_id}').click(), {PAUSE}); }}"
    )


def _timer(button: gr.Button) -> str:
    return str(button.elem_id).replace("-", "_")
