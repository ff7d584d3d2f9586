"""Models of other libraries: converted into ours and back, and with our sparse attention in them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vaswani.interop.combination import combine
    from vaswani.interop.conversion import convert, export

__all__ = ["combine", "convert", "export"]

# Imported when first asked for: they import a good part of the library.
_LATE = {
    "combine": "vaswani.interop.combination",
    "convert": "vaswani.interop.conversion",
    "export": "vaswani.interop.conversion",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
