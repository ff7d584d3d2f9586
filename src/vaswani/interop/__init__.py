"""Conversion of other libraries' models, and sparse attention for them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vaswani.interop.combination import combine
    from vaswani.interop.conversion import convert, export

__all__ = ["combine", "convert", "export"]

# Imported on first use, as they import much of transformers.
_LATE = {"combine": "combination", "convert": "conversion", "export": "conversion"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
