"""One difference from what was captured."""

from __future__ import annotations

from typing import NamedTuple

ADVICE = "capture and solve again for it, or call the original model"


class Difference(NamedTuple):
    """One difference from what was captured.

    Attributes
    ----------
    what, advice
        What differs, and what to do; the advice may be empty.
    of_module
        True if the module is another one than it was: no plan of it can be trusted. False if only
        the call differs (arguments, modes, types, autocast, what is trained): a plan made for such
        calls is right.
    number
        True for a number outside of the arguments: a plan for it would be right, but one that
        changes in each step would be planned in each step.
    """

    what: str
    advice: str
    of_module: bool
    number: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {self.advice}" if self.advice else self.what
