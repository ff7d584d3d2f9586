"""Errors that end a command with one line on standard error, without a traceback."""


class UserError(ValueError):
    """What was given, what was expected and what to do, in one line; the exit status is 2."""


class RunError(RuntimeError):
    """What stopped a run that was given nothing wrong, and what is saved, in one line; exit status 1."""
