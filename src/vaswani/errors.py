"""Errors that end a command with one line on standard error."""


class UserError(ValueError):
    """What was given, what was expected and what to do, in one line.

    The command line prints it as it is, without a traceback, and exits with status 2.
    """


class RunError(RuntimeError):
    """What stopped a run and what was saved before, in one line, where the user gave nothing wrong.

    The command line prints it as it is, without a traceback, and exits with `exit_status`.
    """

    def __init__(self, message: str, exit_status: int = 1):
        super().__init__(message)
        self.exit_status = exit_status
