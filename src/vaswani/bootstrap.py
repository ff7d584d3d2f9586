"""Keep the command from importing files of the current folder. `vaswani` imports this module first.

`python -m vaswani` puts the current folder first on `sys.path`, so that it would import a `yaml.py`
beside the data. This module removes the folder from the path. It imports only modules that Python has already
loaded.
"""

import os
import sys

LAUNCHER_VARIABLE = "VASWANI_LAUNCHER"  # the launcher's process id, in the environment of its processes

# `python -c` puts the current folder first, too. The code imports the launcher's copy of the package.
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
    """Return code for `python -c` that runs the command from this copy of the package."""
    return _CODE.format(parent=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _leave_out_current_folder() -> None:
    try:
        folder = os.getcwd()
    except OSError:  # the folder was deleted; Python does not add it
        return
    if _is_module() and not getattr(sys.flags, "safe_path", False) and sys.path[:1] == [folder]:
        del sys.path[0]


def _is_module() -> bool:
    """Return whether `python -m vaswani` is importing the package."""
    if sys.argv[:1] != ["-m"] or len(sys.orig_argv) <= len(sys.argv):
        return False
    return sys.orig_argv[-len(sys.argv)].removeprefix("-m") == "vaswani"


_leave_out_current_folder()
