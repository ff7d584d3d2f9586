"""What commands show on standard error: progress, and remarks."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm


def hide_library_progress() -> None:
    """Bars of the loading and writing of weights; those of trainings and of ours stay."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def progress_bar(total: int | None, unit: str, hidden: bool = False) -> "tqdm":
    from tqdm import tqdm

    return tqdm(total=total, unit=unit, file=sys.stderr, disable=hidden or None)  # None: unless on a terminal


def warn(message: str) -> None:
    from tqdm import tqdm

    tqdm.write(f"vaswani: {message}", file=sys.stderr)  # above the bar, if there is one
