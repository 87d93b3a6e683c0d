"""The errors that a user can cause, each with one line that says what, where and what to do."""

from __future__ import annotations

import re

# By sound: an int, an LSTM, an Upsample, but a UNet and a UserDict.
_AN = re.compile(r"[AEIOaeio]|[Uu](p|n[^ei])|[FLMNRSX][A-Z]")


def a_type(kind: type) -> str:
    """The name of a type with its article: `an int`, `a Tensor`."""
    return f"{'an' if _AN.match(kind.__name__) else 'a'} {kind.__name__}"


def text_of(error: BaseException) -> str:
    """The message of an error of somebody else's, even if its `__str__` fails."""
    try:
        return str(error)
    except Exception:
        return "its message cannot be shown"


class LowtideError(Exception):
    """Base of every error that lowtide raises on purpose; `exit_code` is the command line's."""

    exit_code = 1


class InputError(LowtideError):
    """A broken file, an unknown name, an unreadable budget: the input is at fault."""

    exit_code = 2


class CheckError(LowtideError):
    """A plan that breaks a rule; the message names the first violation."""

    exit_code = 1


class OtherGraphError(CheckError):
    """A plan that was made for another graph: the two were never meant for each other."""

    exit_code = 2


class InfeasibleError(LowtideError):
    """No schedule was found, or none exists, under the budget.

    Attributes
    ----------
    smallest_bytes
        Smallest budget for which a schedule was found, resident bytes included; None if unknown.
    limiting_op
        Name of the op that sets that peak.
    proven
        True when no schedule of the searched class can meet the budget.
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        smallest_bytes: int | None = None,
        limiting_op: str | None = None,
        proven: bool = False,
    ) -> None:
        super().__init__(message)
        self.smallest_bytes = smallest_bytes
        self.limiting_op = limiting_op
        self.proven = proven


class NoPlanError(LowtideError):
    """The time limit passed before any schedule within the budget was found.

    Attributes
    ----------
    smallest_bytes
        Smallest peak seen, resident bytes included; None if no schedule was looked at.
    """

    exit_code = 5

    def __init__(self, message: str, *, smallest_bytes: int | None = None) -> None:
        super().__init__(message)
        self.smallest_bytes = smallest_bytes


class CaptureError(InputError):
    """A model that cannot be exported; the message names the user's line where known."""


class ReplayError(LowtideError):
    """A replayed step was called in a way its plan was not made for."""

    exit_code = 2
