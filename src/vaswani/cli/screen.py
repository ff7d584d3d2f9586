"""Print results on standard output, and progress and messages on standard error.

If standard error is closed or full, or its reader has ended, messages are lost without an error. For standard
output this is an error, raised after the results that go into files are safely written.
"""

import sys
import time
from threading import Event, Thread
from typing import TYPE_CHECKING

from vaswani.cli.startup import restore_ctrl_c
from vaswani.errors import PipeClosedError, RunError
from vaswani.files.line_files import STANDARD_STREAM, LineWriter, give_up, reason

if TYPE_CHECKING:
    from tqdm import tqdm

    from vaswani.inference.inputs import Texts
    from vaswani.inference.pair_inputs import Pairs

FIRST_DELAY, LONGEST_DELAY = 5.0, 60.0  # seconds between two lines of progress; they double


def begin_work() -> None:
    """Let Ctrl-C raise KeyboardInterrupt and hide the library's progress bars; call it after the imports.

    This hides the bars of loading and saving weights. The bars of training and of this package stay.
    """
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    restore_ctrl_c()


def check_standard_output() -> None:
    """Raise a RunError before the work begins if standard output is closed or its disk is full."""
    LineWriter(STANDARD_STREAM)


def print_line(text: str) -> None:
    """Write a line on standard output, or raise a RunError."""
    LineWriter(STANDARD_STREAM).write(text)


def flush_standard_output() -> None:
    """Write what `print` has buffered.

    Raises:
        PipeClosedError: standard output is a pipe that nobody reads any more.
        RunError: it cannot be written for another reason.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError as error:
        give_up(sys.stdout)
        raise PipeClosedError("nobody reads standard output any more") from error
    except OSError as error:
        give_up(sys.stdout)
        raise RunError(f"cannot write standard output: {reason(error)}") from error


def print_message(message: str) -> None:
    """Write a line on standard error, if possible."""
    try:
        print(f"vaswani: {message}", file=sys.stderr, flush=True)
    except OSError:
        give_up(sys.stderr)


def warn(message: str) -> None:
    """Write a line on standard error, above a progress bar if there is one."""
    from tqdm import tqdm

    with tqdm.external_write_mode(file=sys.stderr):
        print_message(message)


def progress_bar(
    total: int | None, unit: str, hidden: bool = False, typed: bool = False
) -> "tqdm | ProgressLines":
    """Return a bar on the terminal, or occasional lines if there is no terminal or it shows the results.

    Args:
        total: amount of work; None if unknown.
        unit: unit of the work, such as " lines".
        hidden: True if the terminal shows the results.
        typed: True if the user types the input; then nothing is shown.
    """
    from tqdm import tqdm

    if not typed and (hidden or not sys.stderr.isatty()):
        return ProgressLines(total, unit)
    return tqdm(total=total, unit=unit, file=sys.stderr, disable=typed)


def progress_of_texts(texts: "Texts | Pairs", output_name: str) -> "tqdm | ProgressLines":
    """Return a `progress_bar` for the texts of an input whose results go to an output."""
    hidden = output_name == STANDARD_STREAM and sys.stdout.isatty()
    return progress_bar(texts.total, f" {texts.report.unit}s", hidden, texts.typed)


class ProgressLines:
    """Reports progress on standard error after 5 seconds, after 10 more, and so on up to every minute.

    Without a known total the input may be a pipe: a line appears only after new work is done.
    """

    def __init__(self, total: int | None, unit: str):
        self.total = total
        self.unit = unit
        self.done = 0
        self._start = time.monotonic()
        self._ended = Event()
        self._thread = Thread(target=self._report, daemon=True)

    def update(self, count: int = 1) -> None:
        """Add to the amount of work done."""
        self.done += count

    def __str__(self) -> str:
        of = "" if self.total is None else f" of {self.total:,}"
        return f"{self.done:,}{of}{self.unit} after {time.monotonic() - self._start:.0f} s"

    def __enter__(self) -> "ProgressLines":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _report(self) -> None:
        told, delay = None, FIRST_DELAY
        while not self._ended.wait(delay):
            if self.total is not None or self.done != told:
                print_message(str(self))
            told, delay = self.done, min(2 * delay, LONGEST_DELAY)
