"""Conversion of other libraries' models, and sparse attention for them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vaswani.interop.combination import combine
    from vaswani.interop.conversion import convert, export

__all__ = ["combine", "convert", "export"]

# Loaded on first use, as they import much of transformers.
_LATE = {
    "combine": "vaswani.interop.combination",
    "convert": "vaswani.interop.conversion",
    "export": "vaswani.interop.conversion",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
