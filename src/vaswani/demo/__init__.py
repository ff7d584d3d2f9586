"""A page in the browser that shows what models do with a text.

    from vaswani.demo import build_demo, open_model

    build_demo({"dates": open_model("runs/dates")}).launch()

Gradio, which is optional, is imported by `build_demo`.
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
        models: of one kind, each with the name that the page shows (see `open_model`).
        examples: texts that a click chooses; of models that answer questions, pairs of a question and a text.

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
