"""Conversion, export, combination and averaging of models; sparse attention for models of transformers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vaswani.interop.averaging import average
    from vaswani.interop.combination import combine
    from vaswani.interop.conversion import convert, export
    from vaswani.interop.folders import export_folder

__all__ = ["average", "combine", "convert", "export", "export_folder"]

# Imported on first use, because these modules import much of transformers.
_LATE = {
    "average": "averaging",
    "combine": "combination",
    "convert": "conversion",
    "export": "conversion",
    "export_folder": "folders",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
