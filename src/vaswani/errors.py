"""The error that a user can cause and mend."""


class UserError(ValueError):
    """What was given, what was expected and what to do, in one line.

    The command line prints it as it is, without a traceback, and exits with status 2.
    """
