"""What makes the imports of the command `vaswani` safe; `vaswani` imports it first.

`python -m vaswani.cli` puts the current folder first on `sys.path`, so that a `yaml.py` beside the data would
run; that folder is taken away again. Ctrl-C during the imports, which take seconds, ends the command with one
line. For a program that imports the package, nothing changes. Python has loaded what is imported here.
"""

import _signal  # what `signal` is made of; that imports more
import os
import sys

# For the processes of a launcher. `python -c` and `-m` both begin with the current folder. `vaswani` is the
# launcher's own copy, wherever Python would look for it.
_CODE = """# vaswani
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
sys.argv[0] = "vaswani"
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
spec = PathFinder.find_spec("vaswani", [{parent!r}])
sys.modules["vaswani"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["vaswani"])
from vaswani.cli import main
main()
"""


def command_code() -> str:
    """Code for `python -c` that runs the command from this copy of the package."""
    return _CODE.format(parent=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def is_module() -> bool:
    """Whether this process was started by `python -m vaswani.cli` and is still importing the package."""
    return sys.argv[:1] == ["-m"] and _started().removeprefix("-m") == "vaswani.cli"


def is_command() -> bool:
    """Whether this process is the command `vaswani`, rather than a program that imports the package."""
    started = _started()
    return is_module() or os.path.basename(started) == "vaswani" or started == command_code()


def _started() -> str:
    """What Python was told to run: a script, a module or code; its arguments come after it."""
    return sys.orig_argv[-len(sys.argv)] if 0 < len(sys.argv) < len(sys.orig_argv) else ""


def _leave_out_current_folder() -> None:
    try:
        folder = os.getcwd()
    except OSError:  # it was deleted, and Python has left it out
        return
    if is_module() and not getattr(sys.flags, "safe_path", False) and sys.path[:1] == [folder]:
        del sys.path[0]


def _end_at_once(*_: object) -> None:
    # Libraries turn an exception in the middle of an import into errors of their own.
    end("interrupted", 1)


def end(message: str, status: int) -> None:
    """End this process with one line; of several processes, the first speaks for all."""
    try:
        if rank() == 0:
            os.write(2, f"vaswani: {message}\n".encode())
    finally:  # standard error may be closed
        os._exit(status)


def rank() -> int:
    """The number of this process among those that run the command together."""
    number = os.environ.get("RANK", "")
    return int(number) if number.isdecimal() else 0


def restore_ctrl_c() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt, as everywhere in Python."""
    if _signal.getsignal(_signal.SIGINT) is _end_at_once:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


if is_command():
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # a background job ignores it
        _signal.signal(_signal.SIGINT, _end_at_once)
    _leave_out_current_folder()
