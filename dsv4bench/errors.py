"""The errors a user can cause, and the exit codes that the specification gives them."""


class UserError(Exception):
    """Wrong input. The message is one sentence: what was wrong, where, and what would be right."""

    exit_code = 2


class IncomparableError(UserError):
    """Two results that may not be compared, or a result file that cannot be read."""

    exit_code = 4


class MeasurementError(UserError):
    """A measurement that did not come about: a crash, a wrong result, or no case selected."""

    exit_code = 5
