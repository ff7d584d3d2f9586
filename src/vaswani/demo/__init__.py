"""A page in the browser that shows the output of models for a text.

    from vaswani.demo import build_demo, open_model

    build_demo({"dates": open_model("runs/dates")}).launch()

`build_demo` imports Gradio, which is optional.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from vaswani.demo.models import MaskFiller, Model, open_model
from vaswani.errors import UserError

if TYPE_CHECKING:
    import gradio

__all__ = ["MaskFiller", "build_demo", "check_gradio", "open_model"]


def build_demo(models: Mapping[str, Model], examples: Sequence[str | tuple[str, ...]] = ()) -> gradio.Blocks:
    """Return a page for one model, or for two or more side by side.

    Args:
        models: models of one kind (see `open_model`), by the names that the page shows.
        examples: texts to choose with a click; for models that answer questions, pairs of a question and a
            text.

    Raises:
        UserError: Gradio is not installed, there is no model, or the models are of several kinds.
    """
    check_gradio()
    from vaswani.demo.page import build_page

    return build_page(models, examples)


def check_gradio() -> None:
    """Raise a UserError unless Gradio is installed."""
    if find_spec("gradio") is None:
        raise UserError("the demo needs Gradio: pip install 'vaswani[demo]'")
